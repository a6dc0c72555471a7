"""Nodes on which job after job dies at once. Pure, over what the watchdog saw in the last minutes.

A node is one only where the evidence leaves no other reading: several jobs of more than one user failed there quickly,
nothing ran longer there in the same time, and the same users' jobs did run elsewhere in that partition (else it is their
script, a full file system, or the whole cluster; a notebook that runs in another partition proves nothing of them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aistation_slurm.config import BlackHole
from aistation_slurm.slurm.client import Job

__all__ = ["Deaths", "Suspect"]

_FAILED = frozenset({"FAILED", "BOOT_FAIL", "NODE_FAIL"})


@dataclass(frozen=True)
class Suspect:
    """node, and why in one line."""

    node: str
    evidence: str


@dataclass(frozen=True)
class _End:
    time: float
    job_id: int
    user_id: int
    partition: str
    nodes: tuple[str, ...]
    quick: bool


class Deaths:
    """What ended where, in the last ``window_s`` seconds. Kept in memory: it is made anew from Slurm's own list in minutes."""

    def __init__(self, settings: BlackHole) -> None:
        self._settings = settings
        self._ends: dict[tuple[int, int], _End] = {}

    def see(self, jobs: Iterable[Job], now: float) -> None:
        """Take in Slurm's list of jobs; jobs that run for long enough count as proof that their nodes work."""
        for job in jobs:
            if job.start_time is None or not job.nodes or job.completing:
                continue
            until = job.end_time if job.finished and job.end_time else now
            ran = until - job.start_time
            if job.state in _FAILED:
                quick = 0 <= ran < self._settings.quick_s
            elif job.state == "COMPLETED" or (job.state == "RUNNING" and ran >= self._settings.quick_s):
                quick = False
            else:
                continue  # cancelled, preempted, held: says nothing about a node
            self._ends[job.job_id, job.start_time] = _End(
                until, job.job_id, job.user_id, job.partition, job.nodes, quick
            )
        first = now - self._settings.window_s
        self._ends = {key: end for key, end in self._ends.items() if first <= end.time <= now + 1.0}

    def suspects(self) -> list[Suspect]:
        """The nodes that fit, the worst first. A job of n nodes that died counts 1/n against each."""
        works = {name for end in self._ends.values() if not end.quick for name in end.nodes}
        runs_elsewhere = {(end.user_id, end.partition) for end in self._ends.values() if not end.quick}
        weight: dict[str, float] = {}
        users: dict[str, set[int]] = {}
        for end in self._ends.values():
            if not end.quick or (end.user_id, end.partition) not in runs_elsewhere:
                continue
            for name in end.nodes:
                weight[name] = weight.get(name, 0.0) + 1.0 / len(end.nodes)
                users.setdefault(name, set()).add(end.user_id)
        return [
            Suspect(
                name,
                f"{len([e for e in self._ends.values() if e.quick and name in e.nodes])} jobs of {len(users[name])} users failed "
                f"within {self._settings.quick_s:.0f} s each and none ran longer here in {self._settings.window_s / 60:.0f} min",
            )
            for name, deaths in sorted(weight.items(), key=lambda item: (-item[1], item[0]))
            if name not in works and deaths >= self._settings.jobs and len(users[name]) >= self._settings.users
        ]
