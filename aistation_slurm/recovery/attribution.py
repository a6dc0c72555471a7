"""Whose fault was it? Pure: what Slurm shows of a job, its last attempt and its nodes -> cause, bad nodes, evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from aistation_slurm.findings import is_our_reason
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.gres import gpu_indices

__all__ = ["Attempt", "Cause", "Verdict", "attribute", "bad_nodes"]

CLOCK_SLACK_S = 10
"""A drain up to this long before the attempt's start belongs to it: the gate drains while the job is being started."""


class Cause(str, Enum):
    """What ended or hinders an attempt."""

    INFRASTRUCTURE = "infrastructure"
    USER = "user"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"
    REQUEUED_BY_HAND = "requeued_by_hand"
    NONE = "none"


@dataclass(frozen=True)
class Attempt:
    """One start of a job. start_time: unix seconds, with the job id its name. ended: None while it runs."""

    job_id: int
    start_time: int
    nodes: tuple[str, ...]
    ended: float | None = None
    state: str = "running"


@dataclass(frozen=True)
class Verdict:
    """bad: node -> evidence. text: one line for people."""

    cause: Cause
    bad: Mapping[str, str]
    text: str


_OWN_CAUSES = {
    "COMPLETED": Cause.FINISHED,
    "CANCELLED": Cause.CANCELLED,
    "TIMEOUT": Cause.TIMEOUT,
    "DEADLINE": Cause.TIMEOUT,
    "PREEMPTED": Cause.PREEMPTED,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
}


def bad_nodes(job: Job, attempt: Attempt, nodes: Mapping[str, Node]) -> dict[str, str]:
    """Nodes of the attempt that a fault of this attempt's time marks, with the evidence."""
    found = {}
    for index, name in enumerate(attempt.nodes):
        node = nodes.get(name)
        if node is None:
            continue
        ours = node.drained and is_our_reason(node.reason)
        recent = node.reason_time is None or node.reason_time >= attempt.start_time - CLOCK_SLACK_S
        if ours and recent and _concerns(job, index, node.reason):
            found[name] = node.reason
        elif not node.responding and node.state == "DOWN":
            found[name] = f"node is DOWN: {node.reason or 'no reason given'}"
        elif node.boot_time is not None and node.boot_time > attempt.start_time + CLOCK_SLACK_S:
            found[name] = "node rebooted during the attempt"
    node_name, check = tags.fault_of(job.admin_comment, attempt.start_time)
    if node_name in attempt.nodes and node_name not in found:
        found[node_name] = f"{check} (told by the node's agent; its drain is someone else's)"
    return found


def _concerns(job: Job, index: int, reason: str) -> bool:
    """False where the reason names one GPU and the job is known to hold others: a shared node's neighbour is not sick."""
    match = re.match(r"ais:gpu\.\w+ GPU(\d+) ", reason)
    if match is None or len(job.gres_detail) != len(job.nodes) or index >= len(job.gres_detail):
        return True
    mine = gpu_indices(job.gres_detail[index])
    return not mine or int(match.group(1)) in mine


def attribute(job: Job, attempt: Attempt, nodes: Mapping[str, Node]) -> Verdict:
    """The cause of this attempt's end, or of its trouble while it runs."""
    if job.state in _OWN_CAUSES:
        cause = _OWN_CAUSES[job.state]
        return Verdict(cause, {}, f"job is {job.state}")
    bad = bad_nodes(job, attempt, nodes)
    if bad:
        return Verdict(Cause.INFRASTRUCTURE, bad, "; ".join(f"{n}: {why}" for n, why in bad.items()))
    if job.state == "NODE_FAIL":
        return Verdict(Cause.INFRASTRUCTURE, {}, "Slurm says NODE_FAIL")
    if job.state in ("FAILED", "BOOT_FAIL"):
        how = f"signal {job.exit_signal}" if job.exit_signal else f"exit code {job.exit_code}"
        return Verdict(Cause.USER, {}, f"job failed with {how}, and no fault was found on {_names(attempt.nodes)}")
    if job.state == "PENDING":
        return Verdict(Cause.REQUEUED_BY_HAND, {}, f"requeued, and no fault was found on {_names(attempt.nodes)}")
    return Verdict(Cause.NONE, {}, "no fault")


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:4]) + (" ..." if len(nodes) > 4 else "") if nodes else "its nodes"
