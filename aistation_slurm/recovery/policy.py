"""What to do about it. Pure: the job now, its last attempt, the verdict and the limits -> one step.

How often and how soon is data: one :class:`~aistation_slurm.config.Restart` per cause, and what the job asked for.

The steps of a recovery are taken one at a time, and each is decided anew from what Slurm shows: so a step that was taken
just before a crash is seen as taken, and is not taken again.

    RUNNING on a bad node --REQUEUE--> COMPLETING --WAIT--> PENDING --WAIT (start gap)--> START or RELEASE --> runs elsewhere
    FAILED with a fault   --REQUEUE--> PENDING ...            at a limit --> HOLD (or ANNOTATE where it is held or over)
    COMPLETING for long on a node of ours that lets nothing else run --DOWN--> PENDING ...
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Optional

from aistation_slurm.config import Restart, Restarts
from aistation_slurm.detectors.pushing import reason_pushes
from aistation_slurm.findings import is_our_reason
from aistation_slurm.recovery.attribution import GATE_REFUSED, LATE_EVIDENCE_S, Attempt, Cause, Verdict
from aistation_slurm.recovery.past import Past, Progress
from aistation_slurm.slurm.client import Job, Node

__all__ = ["Limits", "Step", "StepKind", "decide", "excluded", "readmit"]

COMPLETING_LOOK_S = 0.3
EVIDENCE_LOOK_S = 0.5
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
    DOWN = "down"


@dataclass(frozen=True)
class Step:
    """One step, with its reason in words.

    exclude: the whole new exclusion list (START and RELEASE); notes: what was left out of it and why. start_now: also set
    StartTime, ``delay_s`` ahead. targets: nodes (DOWN). again_s: look again after this long, None: at the slow poll. final:
    nothing will ever be done for this attempt.
    """

    kind: StepKind
    why: str
    exclude: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    start_now: bool = True
    delay_s: float = 0.0
    targets: tuple[str, ...] = ()
    again_s: Optional[float] = None
    final: bool = False


@dataclass(frozen=True)
class Limits:
    """What bounds the restarts of one job.

    max_own: restarts that the job itself allows for other causes than the machine's faults; 0: none for any cause.
    no_progress: restarts in a row without a newer checkpoint, 0: any number. agent_grace_s: the node's own agent requeues
    first; the watchdog is its second. completing_s: seconds by a clock that is never set for which this process has seen the
    job COMPLETING. expired: nodes whose exclusion by us is over. See ``config.Watchdog`` for the rest.
    """

    max_own: int
    rules: Restarts = field(default_factory=Restarts)
    past: Past = field(default_factory=Past)
    progress: Progress = field(default_factory=Progress)
    no_progress: int = 0
    start_gap_s: float = 1.0
    late_s: float = 3600.0
    unkillable_s: float = 90.0
    agent_grace_s: float = 5.0
    completing_s: float = 0.0
    expired: frozenset[str] = frozenset()

    def rule(self, cause: Cause) -> Restart:
        """The row of the policy table; a cause without one is never restarted."""
        rules = {
            Cause.INFRASTRUCTURE: self.rules.infrastructure,
            Cause.HANG: self.rules.hang,
            Cause.RESUME_FAILED: self.rules.resume_failed,
            Cause.BUSY: self.rules.busy,
            Cause.TRANSIENT: self.rules.transient,
        }
        return rules.get(cause, Restart())

    def reached(self, cause: Cause) -> str:
        """Which limit forbids one more restart, in words; "" where none does."""
        most = self.rule(cause).limit
        if self.max_own == 0:
            return "the job asked for no restart (--ais-max-restarts=0)"
        if self.past.by_cause.get(cause.value, 0) >= most:
            return f"limit of {most} restarts for this cause ({cause.value}) reached"
        if cause is not Cause.INFRASTRUCTURE and self.past.own >= self.max_own:
            return f"restart limit of {self.max_own} reached"
        if self.no_progress and self.progress.idle >= self.no_progress:
            at = (
                "any checkpoint" if self.progress.step is None else f"a newer checkpoint than step {self.progress.step}"
            )
            return f"{self.progress.idle} restarts in a row without {at}"
        return ""

    def delay_s(self, cause: Cause) -> float:
        """Back-off: none for the first quick failure unless the rule says so, then doubling."""
        rule = self.rule(cause)
        doublings = min(self.past.quick - (1 if rule.wait_first else 2), 20)
        return 0.0 if doublings < 0 else min(rule.backoff_s * 2.0**doublings, rule.backoff_max_s)


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
    if not limits.rule(verdict.cause).limit:
        return _leave(job, attempt, verdict, now)
    if job.requeue is False:
        return Step(StepKind.NOTHING, f"{verdict.text}; the job asked for --no-requeue", final=job.finished)
    if not job.batch:
        return Step(StepKind.NOTHING, f"{verdict.text}; only batch jobs can be requeued", final=job.finished)
    if job.completing:
        return _completing(job, attempt, limits, now, nodes)
    if job.state == "PENDING":
        return _start(job, attempt, verdict, limits, now, nodes, calm_since)
    if job.state in ("RUNNING", "SUSPENDED"):
        return _push(verdict, limits, now, nodes)
    if job.state not in ("FAILED", "NODE_FAIL", "BOOT_FAIL"):
        return Step(StepKind.NOTHING, f"the job is {job.state}")
    if attempt.ended is not None and now > attempt.ended + limits.late_s:
        return Step(StepKind.NOTHING, f"{verdict.text}; that is too long ago to act on", final=True)
    reached = limits.reached(verdict.cause)
    if reached:
        return Step(StepKind.ANNOTATE, f"{reached}; last: {verdict.text}", final=True)
    return Step(StepKind.REQUEUE, verdict.text)


def _completing(job: Job, attempt: Attempt, limits: Limits, now: float, nodes: Mapping[str, Node]) -> Step:
    """Wait for the last attempt's nodes; one that bears our drain and cannot end its processes is given up after a while.

    Whether anything else runs there is looked up right before the act, since DOWN ends every job of the node.
    """
    waited = now - attempt.ended if attempt.ended is not None else 0.0
    stuck = [name for name in attempt.nodes if name in nodes and _lets_not_go(nodes[name])]
    if min(waited, limits.completing_s) > limits.unkillable_s and stuck:
        why = f"processes of the last attempt cannot be ended for {limits.completing_s:.0f} s on {', '.join(stuck)}"
        return Step(StepKind.DOWN, why, targets=tuple(stuck))
    return Step(StepKind.WAIT, "waiting for the last attempt's nodes", again_s=_patience(attempt, now))


def _lets_not_go(node: Node) -> bool:
    return node.drained and is_our_reason(node.reason) and "COMPLETING" in node.flags and node.state != "DOWN"


def _leave(job: Job, attempt: Attempt, verdict: Verdict, now: float) -> Step:
    """Not a fault of the machine, as far as is known now: a finding may still come for a while after a failure."""
    late = attempt.ended is not None and now > attempt.ended + LATE_EVIDENCE_S
    final = job.finished and (verdict.cause is not Cause.USER or late)
    if final or job.state != "FAILED" or attempt.ended is None:
        return Step(StepKind.NOTHING, verdict.text, final=final)
    # a rank often dies before its node's agent has judged: soon at first, not at the slow poll
    again_s = max(EVIDENCE_LOOK_S, (now - attempt.ended) / 2)
    return Step(StepKind.NOTHING, verdict.text, again_s=again_s)


def _patience(attempt: Attempt, now: float) -> float:
    """Look often at first, seldom at a job whose node does not let go."""
    waited = now - attempt.ended if attempt.ended is not None else 0.0
    return min(max(COMPLETING_LOOK_S, waited / 60), 5.0)


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
        if not any(is_our_reason(why) or why.startswith(GATE_REFUSED) for why in verdict.bad.values()):
            return Step(
                StepKind.NOTHING, f"held after a failed prolog, but no drain of ours explains it: {verdict.text}"
            )
        kind = StepKind.RELEASE
    elif job.priority == 0:
        return Step(StepKind.NOTHING, f"held ({job.reason}), and not by a failed prolog: not ours to release")
    else:
        kind = StepKind.START
    reached = limits.reached(verdict.cause)
    if reached:
        held = kind is StepKind.RELEASE
        return Step(StepKind.ANNOTATE if held else StepKind.HOLD, f"{reached}; last: {verdict.text}")
    if calm_since is None:
        return Step(StepKind.WAIT, "waiting for the last attempt's end", again_s=COMPLETING_LOOK_S)
    if now < calm_since + limits.start_gap_s:
        left = calm_since + limits.start_gap_s - now
        return Step(StepKind.WAIT, f"starting {limits.start_gap_s:g} s after the last attempt's end", again_s=left)
    names, notes = excluded(job, verdict, nodes, limits.expired)
    step = Step(kind, verdict.text, names, notes, delay_s=limits.delay_s(verdict.cause))
    if job.eligible_time is not None and job.eligible_time > (attempt.ended or now) + FOREIGN_BEGIN_S:
        return replace(step, start_now=False)
    return step


def _push(verdict: Verdict, limits: Limits, now: float, nodes: Mapping[str, Node]) -> Step:
    """The job runs where a GPU of its own has failed: it does not end by itself. The node's agent is the first to act.

    Only for the faults of detectors/pushing.toml: with any other drain the job may well finish.
    """
    if verdict.cause is Cause.HANG:
        return Step(StepKind.NOTHING, f"{verdict.text}; that agent requeues it")
    fatal = [name for name, why in verdict.bad.items() if reason_pushes(why)]
    if not fatal:
        return Step(StepKind.NOTHING, f"{verdict.text}; the running job is left to Slurm")
    if not all(nodes[name].responding for name in fatal if name in nodes):
        # slurmd may be dead while the job's processes live: Slurm itself decides when the node is gone
        return Step(StepKind.NOTHING, f"{verdict.text}; Slurm decides when a silent node is gone")
    reached = limits.reached(verdict.cause)
    if reached:
        return Step(StepKind.NOTHING, f"{reached}; last: {verdict.text}")
    since = min((nodes[name].reason_time or 0 for name in fatal if name in nodes), default=0)
    if now < since + limits.agent_grace_s:
        return Step(StepKind.WAIT, "the node's agent requeues first", again_s=since + limits.agent_grace_s - now)
    return Step(StepKind.REQUEUE, verdict.text)


def excluded(
    job: Job, verdict: Verdict, nodes: Mapping[str, Node], expired: Set[str] = frozenset()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The whole new exclusion list (it replaces the old one), and what was left out of it and why.

    Excluding never makes a job impossible: a drained or down node is not used anyway while it is that. Names that Slurm does
    not know are dropped, since one of them would fail the whole update.
    """
    kept = (set(job.excluded_nodes) - expired) & set(nodes)
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
