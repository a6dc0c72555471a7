"""What was done to whom and when, and what was seen of jobs and nodes. Values only; times are unix seconds of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from aistation_slurm.slurm import hostlist
from tests.cluster.torture.workload import Plan

OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE")


@dataclass
class Deed:
    """One thing that was done. until: when it was undone, None while it lasts.

    node, job: whom it can hurt, empty and 0 for the controller's own. gpu: Slurm's index, -1: all of the node.
    """

    round: int
    time: float
    kind: str
    node: str = ""
    job: int = 0
    gpu: int = -1
    check: str = ""
    """Pattern of the drain reasons of ours that it justifies; empty: none."""
    until: Optional[float] = None
    harmless: bool = False
    """Names a node or a job, but ends no attempt."""

    def __str__(self) -> str:
        whom = self.node or (f"job {self.job}" if self.job else "")
        gpu = f" GPU{self.gpu}" if self.gpu >= 0 else ""
        end = "lasts" if self.until is None else f"{self.until - self.time:.1f} s"
        return f"{clock(self.time)} round {self.round}: {self.kind} {whom}{gpu} ({end})"


@dataclass
class Attempt:
    """One allocation of a job, as slurmctld's log has it. ended: None while it lasts."""

    job_id: int
    nodes: tuple[str, ...]
    began: float
    ended: Optional[float] = None
    how: str = ""


@dataclass
class Watched:
    """A job with all that was seen of it. row: its last record of ``squeue --json``."""

    job_id: int
    plan: Plan
    round: int
    row: dict[str, Any] = field(default_factory=dict)
    over_since: Optional[float] = None
    judged: bool = False
    cancelled_by_us: bool = False
    """At the end of the campaign, to be rid of it."""

    @property
    def state(self) -> str:
        return str(self.row.get("job_state", "UNKNOWN"))

    @property
    def begins(self) -> float:
        """The begin time that a job waits for; 0 where it waits for none."""
        if self.state != "PENDING" or self.row.get("state_reason") != "BeginTime":
            return 0.0
        return float(self.row.get("start_time") or 0)

    def see(self, row: dict[str, Any], now: float) -> None:
        if row["job_state"] not in OVER:
            self.over_since = None
        elif self.over_since is None or row["job_state"] != self.state:
            self.over_since = now
        self.row = row


@dataclass
class History:
    """Everything, in order."""

    deeds: list[Deed] = field(default_factory=list)
    jobs: dict[int, Watched] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    controller_log: list[tuple[float, str]] = field(default_factory=list)

    def do(self, deed: Deed) -> Deed:
        self.deeds.append(deed)
        return deed

    def open(self, node: str = "", kind: str = "") -> Iterator[Deed]:
        """Deeds that last, on this node and of this kind where one is given."""
        for deed in self.deeds:
            if deed.until is None and node in ("", deed.node) and kind in ("", deed.kind):
                yield deed

    def attempts_of(self, job_id: int) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.job_id == job_id]

    def read_log(self, lines: Sequence[str], now: float) -> None:
        """Take in new lines of slurmctld's log, seen at ``now`` (its own times follow a clock that may be set)."""
        for line in lines:
            self.controller_log.append((now, line))
            began = _BEGAN.search(line)
            if began:
                job_id = int(began[1])
                self._end(job_id, now, "a new allocation")
                nodes = tuple(hostlist.expand(began[2]))
                self.attempts.append(Attempt(job_id, nodes, now))
                continue
            for pattern in _ENDED:
                ended = pattern.search(line)
                if ended:
                    self._end(int(ended[1]), now, line.partition("] ")[2])

    def _end(self, job_id: int, now: float, how: str) -> None:
        for attempt in reversed(self.attempts):
            if attempt.job_id == job_id:
                if attempt.ended is None:
                    attempt.ended, attempt.how = now, how
                return


_BEGAN = re.compile(r"(?:sched: Allocate|Started) JobId=(\d+) (?:NodeList=|in \S+ on )(\S+)")
_ENDED = (
    re.compile(r"Requeuing JobId=(\d+)"),
    re.compile(r"requeue job JobId=(\d+) due to failure of node"),
    re.compile(r"Batch JobId=(\d+) missing from batch node"),
    re.compile(r"_job_complete: JobId=(\d+) (?:done|WEXITSTATUS|WTERMSIG)"),
    re.compile(r"_slurm_rpc_kill_job: .*JobId=(\d+)"),
    re.compile(r"job_signal: .*JobId=(\d+)"),
)


def clock(time: float) -> str:
    return datetime.fromtimestamp(time).strftime("%H:%M:%S.%f")[:-3]
