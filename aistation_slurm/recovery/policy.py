"""What to do about it. Pure: the job now, its last attempt, the verdict and the limits -> one step.

The steps of a recovery are taken one at a time, and each is decided anew from what Slurm shows: so a step that was taken
just before a crash is seen as taken, and is not taken again.

    RUNNING on a bad node --REQUEUE--> COMPLETING --WAIT--> PENDING --WAIT (start gap)--> START or RELEASE --> runs elsewhere
    FAILED with a fault   --REQUEUE--> PENDING ...            at the restart limit --> HOLD (or ANNOTATE where it is held)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Optional

from aistation_slurm.findings import is_our_reason
from aistation_slurm.recovery.attribution import LATE_EVIDENCE_S, Attempt, Cause, Verdict
from aistation_slurm.slurm.client import Job, Node

__all__ = ["Limits", "Step", "StepKind", "decide", "excluded", "readmit"]

COMPLETING_LOOK_S = 0.3
FOREIGN_BEGIN_S = 900
"""Slurm's own delay of a requeued job is 121 s, or a little over AuthInfo's cred_expire; a later begin time is someone's."""


class StepKind(str, Enum):
    """NOTHING: not our business, or done. WAIT: look again soon. The rest change the job."""

    NOTHING = "nothing"
    WAIT = "wait"
    REQUEUE = "requeue"
    START = "start"
    RELEASE = "release"
    HOLD = "hold"
    ANNOTATE = "annotate"
    READMIT = "readmit"


@dataclass(frozen=True)
class Step:
    """One step, with its reason in words.

    exclude: the whole new exclusion list (START and RELEASE); notes: what was left out of it and why. start_now: also set
    StartTime. again_s: look again after this long, None: at the slow poll. final: nothing will ever be done for this attempt.
    """

    kind: StepKind
    why: str
    exclude: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    start_now: bool = True
    again_s: Optional[float] = None
    final: bool = False


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

    nodes: all nodes, for what is left when some are excluded. calm_since: unix time at which the job was first seen
    PENDING without COMPLETING after this attempt; None before.
    """
    if verdict.cause is not Cause.INFRASTRUCTURE:
        return _leave(job, attempt, verdict, now)
    if job.requeue is False:
        return Step(StepKind.NOTHING, f"{verdict.text}; the job asked for --no-requeue", final=job.finished)
    if not job.batch:
        return Step(StepKind.NOTHING, f"{verdict.text}; only batch jobs can be requeued", final=job.finished)
    if job.completing:
        return Step(StepKind.WAIT, "waiting for the last attempt's nodes", again_s=_patience(attempt, now))
    if job.state == "PENDING":
        return _start(job, attempt, verdict, limits, now, nodes, calm_since)
    if job.state in ("RUNNING", "SUSPENDED"):
        return _push(verdict, limits, now, nodes)
    if job.state not in ("FAILED", "NODE_FAIL", "BOOT_FAIL"):
        return Step(StepKind.NOTHING, f"the job is {job.state}")
    if limits.restarts_done >= limits.max_restarts:
        return Step(StepKind.ANNOTATE, _limit_text(limits, verdict), final=True)
    return Step(StepKind.REQUEUE, verdict.text)


def _leave(job: Job, attempt: Attempt, verdict: Verdict, now: float) -> Step:
    """Not a fault of the machine, as far as is known now: a finding may still come for a while after a failure."""
    late = attempt.ended is not None and now > attempt.ended + LATE_EVIDENCE_S
    final = job.finished and (verdict.cause is not Cause.USER or late)
    return Step(StepKind.NOTHING, verdict.text, final=final)


def _patience(attempt: Attempt, now: float) -> float:
    """Look often at first, seldom at a job whose node does not let go."""
    waited = now - attempt.ended if attempt.ended is not None else 0.0
    return min(max(COMPLETING_LOOK_S, waited / 60), 5.0)


def _limit_text(limits: Limits, verdict: Verdict) -> str:
    return f"restart limit of {limits.max_restarts} reached; last: {verdict.text}"


def _start(
    job: Job,
    attempt: Attempt,
    verdict: Verdict,
    limits: Limits,
    now: float,
    nodes: Mapping[str, Node],
    calm_since: Optional[float],
) -> Step:
    """The job is back in the queue."""
    if job.held_by_failed_launch:
        if not any(is_our_reason(why) for why in verdict.bad.values()):
            return Step(
                StepKind.NOTHING, f"held after a failed prolog, but no drain of ours explains it: {verdict.text}"
            )
        kind = StepKind.RELEASE
    elif job.priority == 0:
        return Step(StepKind.NOTHING, f"held ({job.reason}), and not by a failed prolog: not ours to release")
    else:
        kind = StepKind.START
    if limits.restarts_done >= limits.max_restarts:
        held = kind is StepKind.RELEASE
        return Step(StepKind.ANNOTATE if held else StepKind.HOLD, _limit_text(limits, verdict))
    if calm_since is None:
        return Step(StepKind.WAIT, "waiting for the last attempt's end", again_s=COMPLETING_LOOK_S)
    if now < calm_since + limits.start_gap_s:
        left = calm_since + limits.start_gap_s - now
        return Step(StepKind.WAIT, f"starting {limits.start_gap_s:g} s after the last attempt's end", again_s=left)
    step = Step(kind, verdict.text, *excluded(job, verdict, nodes))
    if job.eligible_time is not None and job.eligible_time > (attempt.ended or now) + FOREIGN_BEGIN_S:
        return replace(step, start_now=False)
    return step


def _push(verdict: Verdict, limits: Limits, now: float, nodes: Mapping[str, Node]) -> Step:
    """The job runs where a GPU of its own has failed: it does not end by itself. The node's agent is the first to act."""
    fatal = [name for name, why in verdict.bad.items() if why.startswith("ais:gpu.")]
    if not fatal:
        return Step(StepKind.NOTHING, f"{verdict.text}; the running job is left to Slurm")
    if not all(nodes[name].responding for name in fatal if name in nodes):
        # slurmd may be dead while the job's processes live: Slurm itself decides when the node is gone
        return Step(StepKind.NOTHING, f"{verdict.text}; Slurm decides when a silent node is gone")
    if limits.restarts_done >= limits.max_restarts:
        return Step(StepKind.NOTHING, _limit_text(limits, verdict))
    since = min((nodes[name].reason_time or 0 for name in fatal if name in nodes), default=0)
    if now < since + limits.agent_grace_s:
        return Step(StepKind.WAIT, "the node's agent requeues first", again_s=since + limits.agent_grace_s - now)
    return Step(StepKind.REQUEUE, verdict.text)


def excluded(job: Job, verdict: Verdict, nodes: Mapping[str, Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The whole new exclusion list (it replaces the old one), and what was left out of it and why.

    Excluding never makes a job impossible: a drained or down node is not used anyway while it is that. Names that Slurm does
    not know are dropped, since one of them would fail the whole update.
    """
    kept = set(job.excluded_nodes) & set(nodes)
    bad = set(verdict.bad) & set(nodes)
    notes = []
    asked = bad & set(job.required_nodes)
    if asked:
        notes.append(
            f"not excluded ({', '.join(sorted(asked))}): the job asked for it by name and waits for its repair"
        )
        bad -= asked
    pool = [node for node in nodes.values() if _in_partition(job, node)]
    left = sum(node.name not in kept | bad for node in pool)
    if bad and left < max(job.node_count, 1):
        notes.append(
            f"not excluded ({', '.join(sorted(bad))}): the job needs {job.node_count} nodes and {left} would be left"
        )
        bad = set()
    return tuple(sorted(kept | bad)), tuple(notes)


def readmit(job: Job, attempt: Attempt) -> Optional[Step]:
    """Take our exclusion back where it made the job impossible; None where it did not.

    ``excluded`` counts nodes of the partition; which of them have the job's features, GRES or reservation only Slurm knows.
    It holds a job that cannot run anywhere (BadConstraints, priority 0) and never tries again.
    """
    ours = set(attempt.nodes) & set(job.excluded_nodes)
    if job.state != "PENDING" or job.priority != 0 or job.reason != "BadConstraints" or not ours:
        return None
    why = f"without {', '.join(sorted(ours))} no nodes have what the job asks for: it waits for the repair instead"
    return Step(StepKind.READMIT, why, tuple(sorted(set(job.excluded_nodes) - ours)))


def _in_partition(job: Job, node: Node) -> bool:
    return not job.partition or not node.partitions or bool(set(job.partition.split(",")) & set(node.partitions))
