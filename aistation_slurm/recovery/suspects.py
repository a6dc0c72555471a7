"""Drains or reports the nodes that :mod:`aistation_slurm.recovery.black_hole` finds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Optional

from aistation_slurm.config import Watchdog
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.findings import Action, Finding, Status, drain_reason
from aistation_slurm.node.drain import drain_node
from aistation_slurm.recovery.black_hole import Deaths, Suspect
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.slurm.client import Job, Node, SlurmClient

__all__ = ["CHECK", "BlackHoles"]

log = logging.getLogger(__name__)

CHECK = "node.black_hole"
AGAIN_S = 3600.0
"""A node that somebody gave back is not argued with: said and drained at most once in this time."""
MOST = 1
"""Drains per look. More than one black hole at once is more likely something that they share."""


class BlackHoles:
    """``look()`` at each of the watchdog's looks at everything."""

    def __init__(self, client: SlurmClient, journal: Journal, settings: Watchdog, state_dir: str, *, act: bool) -> None:
        self._client, self._journal, self._settings = client, journal, settings.black_hole
        self._state_dir = state_dir
        self._drains = act and settings.black_hole.action == "drain"
        self._deaths = Deaths(settings.black_hole)
        self._said: dict[str, float] = {}

    def look(self, jobs: Iterable[Job], nodes: Mapping[str, Node], now: float) -> None:
        """Raises SlurmUnavailable; a drain that is refused is only journaled."""
        if self._settings.action == "off":
            return
        self._deaths.see(jobs, now)
        found = [s for s in self._deaths.suspects() if now - self._said.get(s.node, 0.0) >= AGAIN_S]
        for suspect in found[:MOST]:
            node = nodes.get(suspect.node)
            if node is not None and node.drained:
                continue
            text = self._drain(suspect, node) if self._drains else f"looks like a black hole: {suspect.evidence}"
            self._said[suspect.node] = now
            log.warning("%s: %s", suspect.node, text)
            self._journal.note(now, "black_hole", text, node=suspect.node)

    def _drain(self, suspect: Suspect, node: Optional[Node]) -> str:
        finding = Finding(CHECK, Status.FAIL, "", suspect.evidence, Action.INSPECT)
        boot = str(node.boot_time) if node is not None else ""
        reason = drain_reason(finding, node=suspect.node, boot_id=boot)
        try:
            result = drain_node(self._client, suspect.node, reason, self._state_dir)
        except (SlurmRefused, OSError) as exc:
            return f"is not drained ({exc}): {suspect.evidence}"
        return f"drained ({result.outcome.value}): {result.reason}"
