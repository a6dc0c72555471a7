"""A user with processes, a work directory that is the user's, and Slurm's words about the user's job."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Optional

import pytest

from aistation_slurm.node.hang_processes import JobProcesses, Process
from aistation_slurm.probes.user import Credentials

UID = 20001 if os.geteuid() == 0 else os.getuid()
GID = 20001 if os.geteuid() == 0 else os.getgid()
USER = Credentials(UID, GID, (GID,) if os.geteuid() == 0 else tuple(os.getgroups()))
SHOWN = """JobId=7 JobName=train
   UserId=alice({uid}) GroupId=root(0) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   StartTime={start} EndTime=Unknown Deadline=N/A
   NodeList=gpu1
   BatchHost=gpu1
   NumNodes=1 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   WorkDir={work}
   AdminComment={admin_comment}
   StdErr={work}/slurm-7.out
   StdIn=/dev/null
   StdOut={work}/slurm-7.out

"""
STARTED = "2026-12-01T04:00:00"


class UserWorld:
    """``work`` is the user's folder; ``sleeper`` a process of the user's, as the job's batch script."""

    def __init__(self) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="ais-hang-", dir="/tmp"))
        self.work.chmod(0o755)
        os.chown(self.work, UID, GID)
        self.output = self.work / "slurm-7.out"
        self.user_file(self.output, "step 1\n")
        self.sleeper = self.start_process()

    def start_process(self, stdout: Optional[IO[str]] = None) -> subprocess.Popen[bytes]:
        """A process of the user's; the caller ends it."""
        extra: dict[str, object] = {"user": UID, "group": GID, "extra_groups": [GID]} if os.geteuid() == 0 else {}
        return subprocess.Popen(["sleep", "600"], cwd="/", stdout=stdout, **extra)  # type: ignore[call-overload,no-any-return]

    def close(self) -> None:
        self.sleeper.kill()
        self.sleeper.wait()
        shutil.rmtree(self.work, ignore_errors=True)

    def user_file(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for made in (path, path.parent):
            os.chown(made, UID, GID)
        return path

    def processes(self, state: str = "S") -> JobProcesses:
        return JobProcesses(batch=(Process(self.sleeper.pid, "sleep", state),))

    def shown(
        self, state: str = "RUNNING", start: str = STARTED, admin_comment: str = "[ais resume=auto hang=10]"
    ) -> str:
        return SHOWN.format(uid=UID, work=self.work, state=state, start=start, admin_comment=admin_comment)


def needs_a_user() -> pytest.MarkDecorator:
    return pytest.mark.skipif(UID == 0, reason="needs a user other than root")
