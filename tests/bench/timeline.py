"""One recovery, step by step, from what the daemons wrote down: nothing has to be asked while it is measured.

slurmctld's log has milliseconds ("[2026-12-01T05:14:00.441] Requeuing JobId=1"), the agent's too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

__all__ = ["STEPS", "Recovery", "agent_detected", "ended_jobs", "read_log", "slurm_marks"]

STEPS = ("ended", "detected", "drained", "down", "requeued", "calm", "start_asked", "running", "script")
"""In order. ended: the job failed by itself. calm: COMPLETING is over, the job is PENDING.
script: the restarted job's first command."""
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{3})\] (.*)$")
_AGENT = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) aistation agent: kernel: ")
_ENDED = re.compile(r"^_job_complete: JobId=(\d+) done")
_STARTED = re.compile(r"^(?:sched: Allocate|sched/backfill: _start_job: Started|backfill: Started) JobId=(\d+) ")
Line = tuple[float, str]


@dataclass(frozen=True)
class Recovery:
    """One round. marks: step -> seconds after the fault, the steps that were seen. overtook: jobs of the backlog that
    started between the requeue and the restart. after_freed: seconds from the end of the last backlog job before the
    restart, None on an idle cluster."""

    way: str
    fault: str
    marks: dict[str, float]
    overtook: int = 0
    after_freed: Optional[float] = None

    @property
    def running(self) -> Optional[float]:
        """Seconds from the fault to RUNNING elsewhere; None: not back within the patience."""
        return self.marks.get("running")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_log(text: str) -> list[Line]:
    """slurmctld's log as (unix time, words); lines without a time stamp are left out."""
    lines = []
    for line in text.splitlines():
        match = _STAMP.match(line)
        if match:
            stamp = time.mktime(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S"))
            lines.append((stamp + int(match.group(2)) / 1000, match.group(3)))
    return lines


def agent_detected(text: str, since: float) -> Optional[float]:
    """Unix time of the first kernel record that the agent took in after ``since``."""
    for line in text.splitlines():
        match = _AGENT.match(line)
        if match:
            at = time.mktime(time.strptime(match.group(1), "%Y-%m-%d %H:%M:%S")) + int(match.group(2)) / 1000
            if at >= since - 0.002:
                return at
    return None


def ended_jobs(lines: Sequence[Line]) -> set[int]:
    """Jobs that ended by themselves."""
    return {int(match.group(1)) for _, words in lines if (match := _ENDED.match(words))}


def slurm_marks(lines: Sequence[Line], job_id: int, node: str) -> tuple[dict[str, float], int, Optional[float]]:
    """What slurmctld's log, from the fault on, tells of the job: marks (unix times), overtook, end of the last other job.

    node: the one with the fault. The restart is the job's first start in ``lines``.
    """
    job = rf"JobId={job_id}\b"
    patterns = {
        "drained": re.compile(rf"update_node: node {re.escape(node)} state set to DRAIN"),
        "down": re.compile(rf"error: Nodes {re.escape(node)} not responding, setting DOWN"),
        "ended": re.compile(rf"_job_complete: {job} done"),
        "requeued": re.compile(
            rf"(?:job_step_signal: {job} is in state COMPLETING|requeue job {job} due to"
            rf"|_slurm_rpc_requeue: {job}|_slurm_rpc_requeue: Requeue of {job}|Requeuing {job})"
        ),
        "calm": re.compile(rf"Requeuing {job}"),
        "start_asked": re.compile(rf"sched: _update_job: setting begin to \S+ for {job}"),
    }
    marks: dict[str, float] = {}
    overtook, freed = 0, None
    for at, words in lines:
        started = _STARTED.match(words)
        if started and int(started.group(1)) == job_id:
            marks["running"] = at
            break
        if started and "requeued" in marks:
            overtook += 1
        ended = _ENDED.match(words)
        if ended and int(ended.group(1)) != job_id:
            freed = at
        for step, pattern in patterns.items():
            if step not in marks and pattern.search(words):
                marks[step] = at
    return marks, overtook, freed
