"""Whose fault was it? Pure: what Slurm shows of a job, its last attempt and its nodes -> cause, bad nodes, evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from aistation_slurm.findings import is_our_reason
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.gres import gpu_indices

__all__ = ["GATE_REFUSED", "HANG_CHECK", "LATE_EVIDENCE_S", "Attempt", "Cause", "Verdict", "attribute", "bad_nodes"]

EARLY_S = 10
"""A drain up to this long before the attempt's start belongs to it: the gate drains while the job is being started."""
UNSEEN_EARLY_S = 60
"""The same for an attempt that was never seen running: its start is not known, only its end."""
LATE_EVIDENCE_S = 60
"""A fault that a node reports up to this long after the attempt's end explains it: agents also look by poll."""

GATE_REFUSED = "gate.refused"
"""Begin of the evidence where a node's gate says that it refused the job, and the node does not bear our drain now."""
START_REFUSED = 75
"""Exit code of a batch script that start-up did not let run (checkpoints/startup.py)."""
HANG_CHECK = "job.hang"
"""The check that a node's agent notes before it requeues a job without progress (node/hang.py)."""


class Cause(str, Enum):
    """What ended or hinders an attempt."""

    INFRASTRUCTURE = "infrastructure"
    HANG = "hang"
    """No progress, and no node is known to be at fault."""
    RESUME_FAILED = "resume_failed"
    """Failed by itself soon after a restart of ours: the checkpoint may be bad, and start-up goes back one further."""
    BUSY = "busy"
    """Start-up refused the restart: an earlier attempt's processes still write to the checkpoint directory."""
    TRANSIENT = "transient"
    """Its output tells of communication or a device, and no probe knows of a fault."""
    USER = "user"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"
    REQUEUED = "requeued"
    """Back in the queue without a fault: a person, preemption, RequeueExit. Not ours to hurry."""
    LAUNCH_FAILED = "launch_failed"
    """Held by Slurm after a failed prolog, and none of the attempt's nodes bears a drain of ours."""
    UNKNOWN = "unknown"
    NONE = "none"
    """Nothing is wrong."""


@dataclass(frozen=True)
class Attempt:
    """One start of a job. start_time: unix seconds; with the job id it is the attempt's name. ended: None while it runs.

    gres: Slurm's ``gres_detail``, one text per node, empty where not known. seen: False for an attempt known only by its
    end; start_time is then the time of that end. settled: when its job was first seen without COMPLETING after it; a node
    that died keeps it COMPLETING until Slurm knows, long after the job itself has failed.
    """

    job_id: int
    start_time: int
    nodes: tuple[str, ...]
    ended: Optional[float] = None
    gres: tuple[str, ...] = ()
    seen: bool = True
    settled: Optional[float] = None

    def covers(self, time: float) -> bool:
        """True where something that happened at ``time`` can have hit this attempt."""
        first = self.start_time - (EARLY_S if self.seen else UNSEEN_EARLY_S)
        return time >= first and (self.ended is None or time <= self.ended + LATE_EVIDENCE_S)

    def held_up_by(self, time: float) -> bool:
        """True where a node that Slurm has lost since ``time`` can have been one of this attempt's: until it is settled."""
        return self.covers(time) or (time >= self.start_time and (self.settled is None or time <= self.settled))


@dataclass(frozen=True)
class Verdict:
    """bad: node -> evidence. text: one line for people. said: the kind of failure that the job's own output tells, or ""."""

    cause: Cause
    bad: Mapping[str, str]
    text: str
    said: str = ""


_OWN_CAUSES = {
    "COMPLETED": Cause.FINISHED,
    "CANCELLED": Cause.CANCELLED,
    "TIMEOUT": Cause.TIMEOUT,
    "DEADLINE": Cause.TIMEOUT,
    "PREEMPTED": Cause.PREEMPTED,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
}


def bad_nodes(attempt: Attempt, nodes: Mapping[str, Node], *, runs: bool) -> dict[str, str]:
    """Nodes of the attempt that a fault of its time marks, with the evidence: our drain, DOWN, or a reboot.

    runs: the job still runs. Then a drain for a GPU that it is known not to hold is a neighbour's. Once it has ended that
    proves nothing: a node has one reason, which names the first of its faults.
    """
    found = {}
    for index, name in enumerate(attempt.nodes):
        node = nodes.get(name)
        if node is None:
            continue
        if node.drained and is_our_reason(node.reason):
            # a reason without a time is of a version that does not print it; the drain is ours all the same
            recent = node.reason_time is None or attempt.covers(node.reason_time)
            if recent and (not runs or _concerns(attempt, index, node.reason)):
                found[name] = node.reason
                continue
        if node.state == "DOWN" and (
            attempt.ended is None if node.reason_time is None else attempt.held_up_by(node.reason_time)
        ):
            found[name] = f"node is DOWN: {node.reason or 'no reason given'}"
        elif _rebooted(attempt, node):
            found[name] = "node rebooted during the attempt"
        elif not runs and any(
            job_id == attempt.job_id and attempt.covers(time) for job_id, time in tags.refusals_of(node.comment)
        ):
            found[name] = f"{GATE_REFUSED} (its gate refused this job)"
    return found


def _rebooted(attempt: Attempt, node: Node) -> bool:
    """Only until the attempt is settled: a reboot after that is somebody's repair."""
    if node.boot_time is None or not attempt.seen or node.boot_time <= attempt.start_time + EARLY_S:
        return False
    return attempt.ended is None or attempt.settled is None or node.boot_time <= max(attempt.ended, attempt.settled)


def _concerns(attempt: Attempt, index: int, reason: str) -> bool:
    """False where the reason names one GPU and the job is known to hold others."""
    match = re.match(r"ais:gpu\.\w+ GPU(\d+)\b", reason)
    if match is None or len(attempt.gres) != len(attempt.nodes):
        return True
    mine = gpu_indices(attempt.gres[index])
    return not mine or int(match.group(1)) in mine


def attribute(
    job: Job,
    attempt: Attempt,
    nodes: Mapping[str, Node],
    *,
    restarts: int = 0,
    quick_s: float = 0.0,
    requeued_for: Optional[Cause] = None,
) -> Verdict:
    """The cause of this attempt's end, or of its trouble while it runs.

    restarts: of this job, by us, so far; quick_s: an attempt that failed sooner after such a restart may have failed in
    loading its checkpoint. requeued_for: the cause for which the watchdog itself put this attempt's job back in the queue, or
    was about to.
    """
    if job.state in _OWN_CAUSES:
        return Verdict(_OWN_CAUSES[job.state], {}, f"the job is {job.state}")
    if job.state == "UNKNOWN" and not job.completing:
        return Verdict(Cause.UNKNOWN, {}, "Slurm's output about this job cannot be read without doubt")
    bad = bad_nodes(attempt, nodes, runs=job.state in ("RUNNING", "SUSPENDED") and not job.completing)
    told_node, check, told_start = tags.fault_of(job.admin_comment)
    # of an attempt that was never seen running only its end is known, and that stands for its start
    same = told_start == attempt.start_time or (not attempt.seen and told_start <= attempt.start_time)
    if same and check == HANG_CHECK and not bad:
        return Verdict(Cause.HANG, {}, f"no progress, says the agent of {told_node}")
    if same and check and check != HANG_CHECK and told_node in attempt.nodes and told_node not in bad:
        bad[told_node] = f"{check} (told by the node's agent; its drain is someone else's)"
    if bad:
        return Verdict(Cause.INFRASTRUCTURE, bad, "; ".join(f"{node}: {why}" for node, why in bad.items()))
    where = _names(attempt.nodes)
    if job.state == "NODE_FAIL":
        return Verdict(Cause.INFRASTRUCTURE, {}, f"Slurm says NODE_FAIL on {where}")
    if job.state == "FAILED" and requeued_for is not None:
        return Verdict(
            requeued_for, {}, f"{requeued_for.value.replace('_', ' ')} on {where}; its requeue was not finished"
        )
    if job.state in ("FAILED", "BOOT_FAIL"):
        how = f"signal {job.exit_signal}" if job.exit_signal else f"exit code {job.exit_code}"
        run = tags.read_run(job.comment)
        own_run = run is not None and run.attempt == job.restart_cnt
        if own_run and run is not None and run.verdict == "busy" and job.restart_cnt and job.exit_code == START_REFUSED:
            return Verdict(Cause.BUSY, {}, "not let start: an earlier attempt still writes to its checkpoint directory")
        first = nodes.get(attempt.nodes[0]) if attempt.nodes else None
        kind, rank = tags.said_of(first.comment if first else "", job.job_id, job.restart_cnt)
        if kind in ("communication", "device"):
            who = "" if rank is None else f", rank {rank} first"
            return Verdict(
                Cause.TRANSIENT, {}, f"failed with {how}; its output tells of {kind}{who}; no fault on {where}"
            )
        if restarts and _failed_to_resume(job, attempt, quick_s):
            return Verdict(
                Cause.RESUME_FAILED, {}, f"failed with {how} soon after restart {restarts}; no fault on {where}"
            )
        told = f"; its output tells of {kind}" if kind else ""
        return Verdict(Cause.USER, {}, f"the job failed with {how}, and no fault was found on {where}{told}", kind)
    if job.state == "PENDING":
        if job.held_by_failed_launch:
            return Verdict(Cause.LAUNCH_FAILED, {}, f"a prolog failed, and AIStation drained none of {where}")
        if requeued_for is not None:
            return Verdict(requeued_for, {}, f"requeued for {requeued_for.value.replace('_', ' ')} on {where}")
        return Verdict(Cause.REQUEUED, {}, f"requeued, and no fault was found on {where}")
    return Verdict(Cause.NONE, {}, "no fault")


def _failed_to_resume(job: Job, attempt: Attempt, quick_s: float) -> bool:
    """What start-up told of this attempt can only say no: it had nothing to resume from, or must not start."""
    run = tags.read_run(job.comment)
    if run is None or run.attempt != job.restart_cnt or run.step is None:
        return False
    return attempt.seen and attempt.ended is not None and attempt.ended - attempt.start_time < quick_s


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:4]) + (" ..." if len(nodes) > 4 else "") if nodes else "its nodes"
