"""Stand-ins for Slurm's commands: they print text as the real ones do (22.05.8)."""

from __future__ import annotations

import shlex
from pathlib import Path

from aistation_slurm.checkpoints.slurm_view import Deadline, SlurmView

JOB = """JobId=3 ArrayJobId=2 ArrayTaskId=1 JobName=sbatch
   UserId=alice(20001) GroupId=alice(20001) MCS_label=N/A
   Priority=4294901758 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A
   SubmitTime=1796098694 EligibleTime=1796098697
   StartTime=1796098697 EndTime=Unknown Deadline=N/A
   Partition=gpu AllocNode:Sid=ctl:0
   ReqNodeList=(null) ExcNodeList=gpu[1,3-5]
   NodeList=gpu2
   Features=(null) DelayBoot=00:00:00
   Command=(null)
   WorkDir=/shared/alice
   AdminComment=site text [ais resume=hf max=3 attempt=1 last=infra]
   Comment=mine [ais: hi] text with = and "q"\x20
   StdErr=/shared/alice/slurm-2_1.out
   StdIn=/dev/null
   StdOut=/shared/alice/slurm-2_1.out
   Power=
\x20\x20\x20

"""


class Tools:
    """A folder with stand-ins for Slurm's commands, which print text as the real ones do."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env: dict[str, str] = {}
        self.command("scontrol", "exit 1")

    def command(self, name: str, body: str) -> None:
        path = self.root / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.root}/asked\n{body}\n', encoding="utf-8")
        path.chmod(0o755)

    def answer(self, name: str, text: str) -> None:
        self.command(name, f"printf %s {shlex.quote(text)}")

    def view(self, seconds: float = 30) -> SlurmView:
        return SlurmView(self.env, Deadline(seconds), directories=(str(self.root),))

    @property
    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
