"""Drains or reports the nodes that :mod:`aistation_slurm.recovery.black_hole` finds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

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
MOST = 2
"""Drains of this kind that stand at once, in the whole cluster: more of them are rather something that the nodes share."""


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
        suspects = self._deaths.suspects()
        if not any(now - self._said.get(s.node, 0.0) >= AGAIN_S for s in suspects):
            return
        known = nodes or {node.name: node for node in self._client.nodes()}
        in_service = [s for s in suspects if s.node in known and not known[s.node].drained]
        stand = [node.name for node in known.values() if node.drained and node.reason.startswith(f"ais:{CHECK} ")]
        for suspect in in_service:
            if now - self._said.get(suspect.node, 0.0) < AGAIN_S:
                continue
            self._said[suspect.node] = now
            text = f"looks like a black hole: {suspect.evidence}"
            if self._drains and len(in_service) > 1:
                text += f"; not drained, since {len(in_service)} nodes do: something that they share is likelier"
            elif self._drains and len(stand) >= MOST:
                text += (
                    f"; not drained, since {', '.join(sorted(stand))} are for this already: look for what they share"
                )
            elif self._drains:
                text = self._drain(suspect, known[suspect.node])
            log.warning("%s: %s", suspect.node, text)
            self._journal.note(now, "black_hole", text, node=suspect.node)

    def _drain(self, suspect: Suspect, node: Node) -> str:
        finding = Finding(CHECK, Status.FAIL, "", suspect.evidence, Action.INSPECT)
        reason = drain_reason(finding, node=suspect.node, boot_id=str(node.boot_time))
        try:
            result = drain_node(self._client, suspect.node, reason, self._state_dir)
        except (SlurmRefused, OSError) as exc:
            return f"is not drained ({exc}): {suspect.evidence}"
        return f"drained ({result.outcome.value}): {result.reason}"
