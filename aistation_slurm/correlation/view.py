"""From Slurm's nodes to what :mod:`aistation_slurm.correlation.decide` takes; Slurm's topology, asked for seldom."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Optional

from aistation_slurm.config import Breaker, Config
from aistation_slurm.correlation.decide import Found, NodeView, Settle
from aistation_slurm.correlation.published import shown
from aistation_slurm.errors import AistationError
from aistation_slurm.findings import is_our_reason
from aistation_slurm.slurm.client import Node
from aistation_slurm.slurm.command import run
from aistation_slurm.topology import sources

__all__ = ["Leaves", "Token", "settle_of", "tokens", "views"]

log = logging.getLogger(__name__)

ASK_AGAIN_S = 300.0


class Token(NamedTuple):
    """One occurrence of one finding. since: as the node published it."""

    node: str
    check: str
    subject: str
    since: int


def settle_of(config: Config) -> Settle:
    """By then every agent has looked, however long it took, and had its moment to publish."""
    given = config.breaker.settle_s
    if given is not None:
        return Settle(given, given)
    extra = config.breaker.spread_s + config.probe.nvml_deadline_s
    return Settle(config.node.poll_s + extra, max(config.node.poll_s, config.check.slow_every_s) + extra)


def tokens(node: Node) -> list[Token]:
    return [Token(node.name, p.check, p.subject, p.since) for p in shown(node.comment)]


def views(
    nodes: Sequence[Node],
    leaf_of: Mapping[str, str],
    settings: Breaker,
    now: float,
    seen: Optional[Mapping[Token, float]] = None,
    dealt: AbstractSet[Token] = frozenset(),
    held: AbstractSet[Token] = frozenset(),
) -> list[NodeView]:
    """seen: when each was first seen here, for those whose node's own clock is not to be relied on. What a node reported before
    it booted is not believed.
    """
    made = []
    for node in nodes:
        found = []
        for published, token in zip(shown(node.comment), tokens(node)):
            if not _watched(published.check, settings) or published.since < (node.boot_time or 0):
                continue
            since = (seen or {}).get(token, min(float(published.since), now))
            told = (published.check, published.subject, published.evidence)
            found.append(Found(*told, since, token in dealt, token in held))
        ours = node.drained and is_our_reason(node.reason)
        drained_at = float(now if node.reason_time is None else node.reason_time) if ours else None
        if drained_at is not None:
            # by its gate, perhaps before its agent looked: it counts among the others as well
            check, _, rest = node.reason.partition(":")[2].partition(" ")
            if _watched(check, settings) and check not in {f.check for f in found}:
                found.append(Found(check, rest.partition(" ")[0], "", drained_at))
        leaf = leaf_of.get(node.name, "")
        made.append(NodeView(node.name, node.partitions, leaf, tuple(found), node.drained, drained_at, node.responding))
    return made


def _watched(check: str, settings: Breaker) -> bool:
    return any(fnmatchcase(check, pattern) for pattern in settings.checks)


class Leaves:
    """Node -> leaf switch by the running slurmctld; empty where its topology is flat or cannot be had."""

    def __init__(self, config: Config) -> None:
        self._slurm = config.slurm
        self._asked = float("-inf")
        self._nodes = 0
        self._leaf_of: Mapping[str, str] = {}

    def of(self, nodes: int, monotonic: float) -> Mapping[str, str]:
        """nodes: how many Slurm has now; another number has it asked again, as five minutes do. Never raises."""
        if nodes == self._nodes and monotonic - self._asked < ASK_AGAIN_S:
            return self._leaf_of
        self._nodes, self._asked = nodes, monotonic
        argv = [str(Path(self._slurm.bin_dir) / "scontrol"), "show", "topology"]
        try:
            text = run(argv, timeout_s=self._slurm.timeout_s, conf=self._slurm.conf)
            self._leaf_of = sources.parse(text, "scontrol show topology", "scontrol").topology.leaf_of
        except AistationError as exc:
            log.info("no leaf switches to correlate by: %s", exc)
        return self._leaf_of
