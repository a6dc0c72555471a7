"""What becomes of our drains, as the controller sees it: lines for ``aistation incidents``. Pure.

Nodes cannot write the watchdog's journal; but each step of healing that matters shows in the node's own record at Slurm. What
changes twice between two looks is told once; the node's hooks.log and the case's history have all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aistation_slurm.findings import is_our_reason
from aistation_slurm.healing import reason
from aistation_slurm.slurm.client import Node

__all__ = ["DrainStory", "Line"]


class Line(NamedTuple):
    """kind: ``drain``, ``heal`` or ``return``."""

    node: str
    kind: str
    text: str


class DrainStory:
    """Keeps the last look. What stood at the first one is no news."""

    def __init__(self, evidence_dir: str) -> None:
        self._evidence_dir = evidence_dir
        self._seen: dict[str, str] = {}
        self._first = True

    def look(self, nodes: Mapping[str, Node]) -> list[Line]:
        """nodes: every node of the cluster. What is new since the last look."""
        now = {name: node.reason for name, node in nodes.items() if _ours(node)}
        before, first = self._seen, self._first
        self._seen, self._first = now, False
        return [] if first else list(self._changes(before, now, nodes))

    def _changes(self, before: Mapping[str, str], now: Mapping[str, str], nodes: Mapping[str, Node]) -> Iterable[Line]:
        for name, text in now.items():
            old = before.get(name, "")
            if text == old:
                continue
            base, same = reason.without_reboot(text), reason.ident_of(reason.without_reboot(old))
            if not old or reason.ident_of(base) != same:
                yield Line(name, "drain", f"drained: {base}")
            if reason.asks_to_inspect(base) and not reason.asks_to_inspect(reason.without_reboot(old)):
                where = reason.evidence_path(self._evidence_dir, name, reason.ident_of(base) or "")
                yield Line(name, "heal", f"healing has given up: {base}; evidence in {name}:{where}")
            elif text != base:
                yield Line(name, "heal", f"reboot, the drain stays: {text}")
            elif old and reason.ident_of(base) == same:
                yield Line(name, "heal", f"the drain stands as before the reboot: {text}")
        for name, old in before.items():
            if name in now or name not in nodes:
                continue
            node = nodes[name]
            if node.drained or node.state == "DOWN":
                yield Line(name, "drain", f"somebody took our drain over: {node.reason or 'no reason'} (was: {old})")
            else:
                yield Line(name, "return", f"back in service (was: {old})")


def _ours(node: Node) -> bool:
    return is_our_reason(node.reason) and (node.drained or node.state == "DOWN")
