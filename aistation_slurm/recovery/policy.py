"""What to do about it. Pure: the job now, its last attempt, the verdict and the limits -> one step.

The steps of a recovery are taken one at a time, and each is decided anew from what Slurm shows: so a step that was taken
just before a crash is seen as taken, and is not taken again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Optional

from aistation_slurm.recovery.attribution import Attempt, Cause, Verdict
from aistation_slurm.slurm.client import Job, Node

__all__ = ["Limits", "Step", "StepKind", "decide", "excluded"]


class StepKind(str, Enum):
    """NOTHING: not our business, or done. WAIT: look again soon. The rest change the job."""

    NOTHING = "nothing"
    WAIT = "wait"
    REQUEUE = "requeue"
    START = "start"
    RELEASE = "release"
    HOLD = "hold"


@dataclass(frozen=True)
class Step:
    """One step, with its reason in words and the nodes to keep the job away from (START and RELEASE)."""

    kind: StepKind
    why: str
    exclude: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Limits:
    """restarts_done: by us, of this job. agent_grace_s: the node's own agent requeues first; the watchdog is its second."""

    max_restarts: int
    restarts_done: int
    start_gap_s: float
    agent_grace_s: float = 5.0


def decide(
    job: Job,
    attempt: Attempt,
    verdict: Verdict,
    limits: Limits,
    now: float,
    nodes: Mapping[str, Node],
    calm_since: Optional[float],
) -> Step:
    """The next step for one managed job.

    calm_since: unix time at which the job was first seen without COMPLETING after this attempt; None while it completes.
    """
    if attempt.state == "restarted":
        return Step(StepKind.NOTHING, "restarted already")
    if verdict.cause is not Cause.INFRASTRUCTURE:
        return Step(StepKind.NOTHING, verdict.text)
    if job.requeue is False:
        return Step(StepKind.NOTHING, f"{verdict.text}; the job asked for --no-requeue")
    if not job.batch:
        return Step(StepKind.NOTHING, f"{verdict.text}; only batch jobs can be requeued")
    if job.state != "PENDING":
        return _away(job, verdict, limits, now, nodes)
    if job.completing or calm_since is None:
        return Step(StepKind.WAIT, "waiting for the last attempt's nodes to finish")
    if job.held_by_failed_launch:
        kind = StepKind.RELEASE
    elif job.priority == 0:
        return Step(StepKind.NOTHING, f"held ({job.reason}), and not by a failed prolog: not ours to release")
    elif job.reason in ("JobHoldMaxRequeue", "launch failure limit exceeded requeued held"):
        return Step(StepKind.NOTHING, f"{job.reason}: not ours to release")
    else:
        kind = StepKind.START
    if limits.restarts_done >= limits.max_restarts:
        text = f"restart limit {limits.max_restarts} reached; last: {verdict.text}"
        return Step(StepKind.NOTHING if kind is StepKind.RELEASE else StepKind.HOLD, text)
    if now < calm_since + limits.start_gap_s:
        return Step(StepKind.WAIT, f"starting {limits.start_gap_s:g} s after the last attempt's end")
    exclude, notes = excluded(job, verdict, nodes)
    return Step(kind, verdict.text, exclude, notes)


def _away(job: Job, verdict: Verdict, limits: Limits, now: float, nodes: Mapping[str, Node]) -> Step:
    """The job runs, or has failed, on a node that is bad."""
    if limits.restarts_done >= limits.max_restarts:
        return Step(StepKind.NOTHING, f"restart limit {limits.max_restarts} reached; last: {verdict.text}")
    if job.completing:
        return Step(StepKind.WAIT, "ending")
    if job.state in ("RUNNING", "SUSPENDED"):
        first = min((nodes[n].reason_time or 0 for n in verdict.bad if n in nodes), default=0)
        if not all(nodes[n].responding for n in verdict.bad if n in nodes):
            # slurmd may be dead while the job's processes live: Slurm itself decides when the node is gone
            return Step(StepKind.WAIT, f"{verdict.text}; Slurm decides when a silent node is gone")
        if now < first + limits.agent_grace_s:
            return Step(StepKind.WAIT, "the node's agent requeues first")
    elif job.state not in ("FAILED", "NODE_FAIL", "BOOT_FAIL"):
        return Step(StepKind.NOTHING, f"job is {job.state}")
    return Step(StepKind.REQUEUE, verdict.text)


def excluded(job: Job, verdict: Verdict, nodes: Mapping[str, Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The whole new exclusion list (it replaces the old one), and what was left out and why.

    Excluding never makes a job impossible: a drained or down node is not used anyway while it is that.
    """
    wanted = sorted({*job.excluded_nodes, *verdict.bad} & set(nodes))
    pool = [n for n in nodes.values() if not job.partition or not n.partitions or _in_partition(job, n)]
    left = [n for n in pool if n.name not in wanted]
    if len(left) < max(job.node_count, 1):
        text = f"not excluded ({', '.join(verdict.bad)}): {len(left)} nodes would be left and the job needs {job.node_count}"
        return tuple(sorted(set(job.excluded_nodes) & set(nodes))), (text,)
    return tuple(wanted), ()


def _in_partition(job: Job, node: Node) -> bool:
    return bool(set(job.partition.split(",")) & set(node.partitions))
