"""Which nodes a sweep may drain, and which of our drains it may take back. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase

from aistation_slurm.config import Sweep
from aistation_slurm.detectors.xid_table import load_table
from aistation_slurm.findings import Finding, Status, is_our_reason
from aistation_slurm.healing.occupants import in_slurm
from aistation_slurm.healing.reason import asks_to_inspect, check_of, ident_of
from aistation_slurm.node.drain import fatal
from aistation_slurm.slurm.client import Node
from aistation_slurm.sweep.answers import NodeAnswer

__all__ = ["DrainPlan", "limit_of", "not_passed", "not_returnable", "plan_drains"]

NOWHERE = ("no partition",)
_XID = re.compile(r"\bXid (\d{1,4})\b")


@dataclass(frozen=True)
class DrainPlan:
    """drains: node -> its most telling finding. held: nodes that have to be drained and are not, by why."""

    drains: Mapping[str, Finding]
    held: Mapping[str, str]


def limit_of(nodes: int, settings: Sweep) -> int:
    """Nodes of a partition of that size that AIStation may have drained."""
    return max(settings.least, int(nodes * settings.share_percent / 100.0))


def plan_drains(
    answers: Sequence[NodeAnswer], nodes: Sequence[Node], opened: AbstractSet[str], settings: Sweep
) -> DrainPlan:
    """opened: partitions whose mass-drain breaker is open.

    Where more nodes of a partition would go than its limit, one cause is likelier than so many broken nodes, and none goes.
    """
    known = {node.name: node for node in nodes}
    drains: dict[str, Finding] = {}
    held: dict[str, str] = {}
    for answer in answers:
        node = known.get(answer.name)
        if not answer.drains or node is None or node.drained:
            continue
        if "MAINTENANCE" in node.flags:
            held[answer.name] = "in a maintenance reservation"
        elif opened & set(node.partitions):
            held[answer.name] = f"the mass-drain breaker is open for {', '.join(sorted(opened & set(node.partitions)))}"
        else:
            drains[answer.name] = fatal(answer.findings)[0]
    for partition in sorted({p for node in nodes for p in node.partitions or NOWHERE}):
        members = [node for node in nodes if partition in (node.partitions or NOWHERE)]
        ours = sum(node.drained and is_our_reason(node.reason) for node in members)
        going = [node.name for node in members if node.name in drains or node.name in held]
        limit = limit_of(len(members), settings)
        if going and ours + len(going) > limit:
            for name in going:
                drains.pop(name, None)
                held[name] = (
                    f"{ours} nodes of {partition} are drained by AIStation and {len(going)} would follow, more than the "
                    f"{limit} allowed: look for a common cause"
                )
    return DrainPlan(drains, held)


def not_returnable(node: Node, settings: Sweep) -> str:
    """Why a drained node is not given back whatever its checks say; "" where they decide.

    Slurm's own times are compared: BootTime and the reason's are both of the controller's clock.
    """
    if ident_of(node.reason) is None:
        whose = "was changed since" if is_our_reason(node.reason) else "is not ours"
        return f"left alone: the reason {whose}: {node.reason or 'none'}"
    if asks_to_inspect(node.reason):
        return f"healing asks a person to inspect it; who has done so resumes it: {node.reason}"
    # DOWN is what a reboot that Slurm did not order leaves: a card was replaced, say. The checks and the resume tell the rest.
    if "NOT_RESPONDING" in node.flags:
        return f"Slurm shows it {'+'.join([node.state, *sorted(node.flags)])}"
    occupied = in_slurm(node)
    if occupied:
        return f"not empty: {occupied}"
    if _wants_boot(node.reason, settings):
        if node.boot_time is None or node.reason_time is None:
            return "waits for a reboot: Slurm does not tell when it booted"
        if node.boot_time <= node.reason_time:
            return "waits for a reboot: it has not booted since it was drained"
    return ""


def not_passed(answer: NodeAnswer, reason: str) -> str:
    """Why this look is no pass, "" where it is one. Nothing may fail, and GPUs and the drain's own check must be known."""
    check = check_of(reason)
    for finding in sorted(answer.findings, key=lambda f: -f.status.rank):
        text = " ".join(part for part in (finding.check, finding.subject, finding.evidence) if part)
        if finding.status is Status.FAIL:
            return f"fails: {text}"
        if finding.status is Status.WARN and finding.check == check:
            return f"still a warning: {text}"
        if finding.status is Status.UNKNOWN and (
            finding.check == check or finding.check.startswith(("gpu.", "sweep."))
        ):
            return f"not known: {text}"
    if not any(f.status is Status.OK for f in answer.findings):
        return "not known: nothing was found to be in order"
    return ""


def _wants_boot(reason: str, settings: Sweep) -> bool:
    check = check_of(reason)
    if any(fnmatchcase(check, pattern) for pattern in settings.reboot_for):
        return True
    rows = [load_table().get(int(code)) for code in _XID.findall(reason)] if check == "gpu.xid" else []
    return any(row is not None and row.action == "reboot" for row in rows)
