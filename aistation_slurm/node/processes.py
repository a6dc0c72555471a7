"""Processes of this node as /proc shows them: who owns one, and which jobs live here (proc(5)).

Everything is read as root; names, environments and command lines of users' processes are their own words.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Optional

__all__ = ["ProcessFacts", "live_jobs", "read_process", "start_ticks"]

MAX_BYTES = 1 << 20
MAX_ANCESTORS = 64
_CGROUP_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
# slurmstepd renames itself: "slurmstepd: [4711.batch]", "slurmstepd: [4711.0]", "slurmstepd: [4711+1.extern]"
_STEPD = re.compile(rb"slurmstepd: \[(\d+)")
_ENV_JOB = re.compile(rb"(?:^|\0)SLURM_JOB_ID=(\d{1,10})(?:\0|$)")


@dataclass(frozen=True)
class ProcessFacts:
    """One process. uid: real. start: clock ticks since boot, which with the pid names it for good.

    cgroup_jobs, ancestor_jobs: job ids that Slurm itself put there (cgroup path, slurmstepd above it). env_job: the
    SLURM_JOB_ID it was started with, None where it has none.
    """

    pid: int
    uid: int
    start: int
    name: str
    program: str = ""
    cgroup_jobs: frozenset[int] = frozenset()
    ancestor_jobs: frozenset[int] = frozenset()
    env_job: Optional[int] = None


def read_process(pid: int, proc: str = "/proc") -> Optional[ProcessFacts]:
    """None when there is no such process (any more)."""
    start = start_ticks(pid, proc)
    status = _read(f"{proc}/{pid}/status").decode("utf-8", "replace")
    uid = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    name = re.search(r"^Name:\t(.*)$", status, re.MULTILINE)
    if start is None or uid is None or name is None:
        return None
    try:
        program = os.path.basename(os.readlink(f"{proc}/{pid}/exe"))
    except OSError:
        program = ""
    cgroup = _read(f"{proc}/{pid}/cgroup").decode("utf-8", "replace")
    env = _ENV_JOB.search(_read(f"{proc}/{pid}/environ"))
    return ProcessFacts(
        pid=pid,
        uid=int(uid.group(1)),
        start=start,
        name=name.group(1),
        program=program,
        cgroup_jobs=frozenset(int(job) for job in _CGROUP_JOB.findall(cgroup)),
        ancestor_jobs=frozenset(_ancestor_jobs(pid, proc)),
        env_job=int(env.group(1)) if env else None,
    )


def start_ticks(pid: int, proc: str = "/proc") -> Optional[int]:
    """Field 22 of stat; None when the process is gone or a zombie, which holds nothing any more."""
    fields = _stat(pid, proc)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else None


def live_jobs(proc: str = "/proc") -> frozenset[int]:
    """Ids of the jobs that have a slurmstepd of root's on this node."""
    found = set()
    for entry in os.listdir(proc):
        if entry.isdigit():
            job = _stepd_job(int(entry), proc)
            if job is not None:
                found.add(job)
    return frozenset(found)


def _ancestor_jobs(pid: int, proc: str) -> list[int]:
    found = []
    for _ in range(MAX_ANCESTORS):
        fields = _stat(pid, proc)
        if len(fields) < 2 or int(fields[1]) <= 1:
            break
        pid = int(fields[1])
        job = _stepd_job(pid, proc)
        if job is not None:
            found.append(job)
    return found


def _stepd_job(pid: int, proc: str) -> Optional[int]:
    """The job of a slurmstepd; only root's count, since anyone may call a process so."""
    match = _STEPD.match(_read(f"{proc}/{pid}/cmdline"))
    if match is None:
        return None
    try:
        return int(match.group(1)) if os.stat(f"{proc}/{pid}").st_uid == 0 else None
    except OSError:
        return None


def _stat(pid: int, proc: str) -> list[str]:
    """Fields of stat from the state on: the name before it may hold blanks and parentheses."""
    return _read(f"{proc}/{pid}/stat").decode("ascii", "replace").rpartition(")")[2].split()


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)
