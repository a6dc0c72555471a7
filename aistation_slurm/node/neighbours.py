"""What the gate asks before it refuses for something that other nodes may have too: do they?

One look at all nodes, which holds this node as well, instead of the look at this node alone. Standard library only.
"""

from __future__ import annotations

import re
import time

from aistation_slurm.correlation.published import shown
from aistation_slurm.slurm.node_comment import shown_comment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from aistation_slurm.node.state import NodeState

__all__ = ["Neighbour", "own_text", "read_neighbours", "why_not_alone"]

_STATE = re.compile(r"\sState=(\S+)")
_PARTITIONS = re.compile(r"^   Partitions=(\S+)", re.MULTILINE)
_REASON = re.compile(r"^   Reason=(.*?) \[[^\]\s]*@(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\]$", re.MULTILINE)


class Neighbour:
    """reason: "" where the node is not drained; since: unix seconds of the drain. comment: as it is."""

    __slots__ = ("comment", "name", "partitions", "reason", "since")

    def __init__(self, name: str, partitions: frozenset[str], reason: str, since: float, comment: str) -> None:
        self.name = name
        self.partitions = partitions
        self.reason = reason
        self.since = since
        self.comment = comment


def own_text(text: str, name: str) -> str:
    """This node's part of ``scontrol show node``; "" where it is not there or was cut off."""
    for part in _parts(text):
        if part.split(None, 1)[:1] == [f"NodeName={name}"] and "State=" in part:
            return part
    return ""


def _parts(text: str) -> list[str]:
    """The text of each node; first, what stands before them."""
    return re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE)


def read_neighbours(text: str) -> list[Neighbour]:
    """Every node of ``scontrol show node`` in the form of several lines (22.05 to 26.05)."""
    found = []
    for part in _parts(text):
        state = _STATE.search(part)
        if not part.startswith("NodeName=") or state is None:
            continue
        partitions = _PARTITIONS.search(part)
        reason, since = "", 0.0
        told = _REASON.search(part)
        if told is not None and "DRAIN" in state.group(1):
            reason = told.group(1)
            year, month, day, hour, minute, second = (int(n) for n in told.groups()[1:])
            try:
                since = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
            except (ValueError, OverflowError):
                since = 0.0
        names = frozenset(partitions.group(1).split(",")) if partitions is not None else frozenset()
        found.append(Neighbour(part.split(None, 1)[0][9:], names, reason, since, shown_comment(part.rstrip() + "\n")))
    return found


def why_not_alone(nodes: Iterable[Neighbour], own: str, check: str, state: NodeState, now: float) -> str:
    """Why this node is not drained for ``check``: others have the like, or too many were drained already; "" where it is.

    The like: of the same family (``fabric``, ``host``), reported or drained for within ``breaker.window_s`` of the time since
    which this node reports it; a leaf that is down for a week stays one cause.
    """
    nodes = list(nodes)
    family = check.partition(".")[0] + "."
    first = now - state.window_s
    mine = next((node.partitions for node in nodes if node.name == own), frozenset())
    reports = [p.since for node in nodes if node.name == own for p in shown(node.comment) if p.check.startswith(family)]
    began = float(min(reports, default=now))
    others = [node for node in nodes if node.name != own]
    like = [node for node in others if _has_like(node, family, began, state.window_s)]
    if len(like) + 1 >= state.together:
        names = ", ".join(sorted(node.name for node in like)[:4])
        return f"{len(like)} other nodes ({names}{', ...' if len(like) > 4 else ''}) have {family}* as well: one cause"
    for partition in sorted(mine):
        members = [node for node in nodes if partition in node.partitions]
        limit = max(state.least, int(len(members) * state.share_percent / 100.0))
        drained = sum(1 for node in members if (node.reason.startswith("ais:") and node.since > first))
        if drained >= limit:
            return f"{drained} nodes of {partition} were drained in {state.window_s:g} s and {limit} may be"
    return ""


def _has_like(node: Neighbour, family: str, began: float, span_s: float) -> bool:
    if node.reason.startswith(f"ais:{family}") and abs(node.since - began) <= span_s:
        return True
    return any(p.check.startswith(family) and abs(p.since - began) <= span_s for p in shown(node.comment))
