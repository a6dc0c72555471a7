"""The processes of this node's jobs, by the slurmstepds above them: one pass over /proc/PID/stat (proc(5)).

Nothing is read that needs a process's memory lock (command line, environment): such a read hangs with the process.
Only a slurmstepd's own command line is, since its title names the step: ``slurmstepd: [4711.batch]``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["JobProcesses", "Process", "job_processes"]

_STEPD = re.compile(rb"slurmstepd: \[(\d+)(?:\+\d+)?\.(\w+)")
STOPPED = "Tt"
"""Stopped by a signal (which is how Slurm suspends), or by a debugger."""


@dataclass(frozen=True)
class Process:
    """state: letter of proc(5)."""

    pid: int
    name: str
    state: str

    @property
    def python(self) -> bool:
        """By the program that runs; torch and others change the name."""
        try:
            program = os.path.basename(os.readlink(f"/proc/{self.pid}/exe"))
        except OSError:
            program = ""
        return (program or self.name).startswith("python")


@dataclass(frozen=True)
class JobProcesses:
    """Of one job on this node, children after parents. batch: below the batch step, whose host this node then is."""

    batch: tuple[Process, ...] = ()
    steps: tuple[Process, ...] = ()

    @property
    def all(self) -> tuple[Process, ...]:
        return self.batch + self.steps

    @property
    def stopped(self) -> bool:
        """Every one of them is: the job is suspended, or somebody debugs it."""
        return bool(self.all) and all(process.state in STOPPED for process in self.all)


def job_processes(proc: str = "/proc") -> dict[int, JobProcesses]:
    """By job id. What has left the tree below its slurmstepd, and what sits in the extern step, is not there."""
    children: dict[int, list[Process]] = {}
    stepds: list[int] = []
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        found = _read(f"{proc}/{entry}/stat")
        name, _, rest = found.partition(b"(")[2].rpartition(b")")
        fields = rest.split()
        if len(fields) < 2 or fields[0] in (b"Z", b"X"):
            continue
        process = Process(int(entry), name.decode("utf-8", "replace"), fields[0].decode("ascii", "replace"))
        children.setdefault(int(fields[1]), []).append(process)
        if process.name == "slurmstepd":
            stepds.append(process.pid)
    jobs: dict[int, JobProcesses] = {}
    for pid in sorted(stepds):
        job_id, step = _step(pid, proc)
        if not job_id or step == "extern":
            continue
        before, below = jobs.get(job_id, JobProcesses()), _below(pid, children)
        batch = step in ("batch", "4294967291")  # SLURM_BATCH_SCRIPT of slurm.h
        jobs[job_id] = (
            JobProcesses(before.batch + below, before.steps)
            if batch
            else JobProcesses(before.batch, before.steps + below)
        )
    return jobs


def _below(pid: int, children: dict[int, list[Process]]) -> tuple[Process, ...]:
    found = list(children.get(pid, ()))
    for process in found:  # grows while it is walked
        found += children.get(process.pid, ())
    # a slurmstepd forks itself for a moment before it becomes the user's program
    return tuple(process for process in found if process.name != "slurmstepd")


def _step(pid: int, proc: str) -> tuple[int, str]:
    """Job and step of a slurmstepd; (0, "") unless it is root's, since anyone may call a process so."""
    match = _STEPD.match(_read(f"{proc}/{pid}/cmdline"))
    try:
        if match is None or os.stat(f"{proc}/{pid}").st_uid != 0:
            return 0, ""
    except OSError:
        return 0, ""
    return int(match.group(1)), match.group(2).decode("ascii", "replace")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
