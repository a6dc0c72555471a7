"""Which nodes are drained for what they report, which share a cause, and where the breaker is open. Pure.

A finding that others of the same leaf switch (or with the same rail, mount or service) report at about the same time has one
cause, which draining all of them would only hide. A finding that stays alone is the node's own, and its node is drained, few
at a time. Whatever the order in which things become known: no partition has more nodes drained by AIStation in the window than
its limit by what this decides, and where more would have to go, none goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

from aistation_slurm.config import Breaker

__all__ = ["Cause", "Decision", "Drain", "Found", "NodeView", "OpenPartition", "Settle", "decide", "limit_of"]


class Found(NamedTuple):
    """One reported finding. since: unix seconds at which it became known.

    dealt: its node was drained with it reported and given back by somebody, who is not argued with. held: it was not alone a
    while ago, and its node may be the last to notice that all is well again.
    """

    check: str
    subject: str
    evidence: str
    since: float
    dealt: bool = False
    held: bool = False


class NodeView(NamedTuple):
    """One node. leaf: "" where not known. drained: by anyone; drained_at: unix seconds of a drain of ours, else None.

    candidate: may be drained for what it reports, since it answers.
    """

    name: str
    partitions: tuple[str, ...] = ()
    leaf: str = ""
    found: tuple[Found, ...] = ()
    drained: bool = False
    drained_at: Optional[float] = None
    candidate: bool = True


class Settle(NamedTuple):
    """Seconds that a finding waits for others: the fabric's, and the host's, which agents look at less often."""

    fabric_s: float
    host_s: float

    def of(self, check: str) -> float:
        return self.fabric_s if check.startswith("fabric.") else self.host_s


class Drain(NamedTuple):
    node: str
    found: Found


class Cause(NamedTuple):
    """Several nodes, one cause. where: ``leaf switch leaf3``, ``rail mlx5_3/1``, ``host.mounts /home``."""

    where: str
    nodes: tuple[str, ...]
    checks: tuple[str, ...]


class OpenPartition(NamedTuple):
    """A partition whose breaker is open: the watchdog drains nobody there.

    drained: by us in the window; would: those and the nodes that report something; limit: what is allowed. everything: nodes
    do not drain themselves either, not even for their own hardware. It is False where only nodes with one cause for them all
    make the excess: a leaf switch that boots must not keep a lost GPU in service.
    """

    partition: str
    drained: int
    would: int
    limit: int
    everything: bool


class Decision(NamedTuple):
    """waiting: nodes that are drained later or not, by why."""

    drains: tuple[Drain, ...] = ()
    causes: tuple[Cause, ...] = ()
    open: tuple[OpenPartition, ...] = ()
    waiting: Mapping[str, str] = {}


def limit_of(nodes: int, settings: Breaker) -> int:
    """Drains of ours in the window that a partition of so many nodes may have."""
    return max(settings.least, int(nodes * settings.share_percent / 100.0))


def decide(
    nodes: Sequence[NodeView], settings: Breaker, settle: Settle, now: float, drained_last_min: int = 0
) -> Decision:
    """drained_last_min: drains by the watchdog in the last minute, which count against ``drains_per_min``."""
    causes = _causes(nodes, settings)
    shared = {name: cause for cause in causes for name in cause.nodes}
    first = now - settings.window_s
    spent: dict[str, int] = {}
    sizes: dict[str, int] = {}
    would: dict[str, int] = {}
    alone: dict[str, int] = {}
    for node in nodes:
        went = node.drained_at is not None and node.drained_at > first
        going = went or (not node.drained and any(_would_go(f, node, shared, first, settle, now) for f in node.found))
        for partition in node.partitions:
            sizes[partition] = sizes.get(partition, 0) + 1
            spent[partition] = spent.get(partition, 0) + went
            would[partition] = would.get(partition, 0) + going
            alone[partition] = alone.get(partition, 0) + (went or (going and node.name not in shared))
    limits = {partition: limit_of(size, settings) for partition, size in sizes.items()}
    opened = tuple(
        OpenPartition(p, spent[p], would[p], limits[p], alone[p] > limits[p])
        for p in sorted(sizes)
        if would[p] > limits[p]
    )
    is_open = {entry.partition for entry in opened}
    left = settings.drains_per_min - drained_last_min
    drains: list[Drain] = []
    waiting: dict[str, str] = {}
    for node in sorted(nodes, key=_age):
        new = [found for found in node.found if not found.dealt and not found.held]
        if not new or node.drained or not node.candidate:
            continue
        ripe = [found for found in new if now - found.since >= settle.of(found.check)]
        shut = sorted(is_open.intersection(node.partitions))
        full = [p for p in node.partitions if spent[p] >= limits[p]]
        if node.name in shared:
            waiting[node.name] = f"not alone: {shared[node.name].where}"
        elif shut:
            waiting[node.name] = f"the breaker is open for {', '.join(shut)}"
        elif not ripe:
            waiting[node.name] = "others may have it too: waits for them to tell"
        elif full:
            waiting[node.name] = f"{', '.join(full)}: as many nodes as allowed were drained in {settings.window_s:g} s"
        elif left <= 0:
            waiting[node.name] = f"{settings.drains_per_min} nodes were drained in this minute"
        else:
            left -= 1
            for partition in node.partitions:
                spent[partition] += 1
            drains.append(Drain(node.name, min(ripe, key=lambda f: (f.since, f.check, f.subject))))
    return Decision(tuple(drains), causes, opened, waiting)


def _would_go(
    found: Found, node: NodeView, shared: Mapping[str, Cause], first: float, settle: Settle, now: float
) -> bool:
    ripe = node.name in shared or now - found.since >= settle.of(found.check)
    return ripe and found.since > first and not found.dealt and not found.held


def _age(node: NodeView) -> tuple[float, str]:
    return min((found.since for found in node.found), default=0.0), node.name


def _causes(nodes: Iterable[NodeView], settings: Breaker) -> tuple[Cause, ...]:
    """Groups large enough to have one cause, the largest first; a node counts in the first one that has it."""
    sizes: dict[str, int] = {}
    groups: dict[str, dict[str, Found]] = {}
    for node in nodes:
        sizes[node.leaf] = sizes.get(node.leaf, 0) + 1
        for found in node.found:
            for key in _places(node, found):
                before = groups.setdefault(key, {}).get(node.name)
                if before is None or found.since > before.since:
                    groups[key][node.name] = found
    made: list[Cause] = []
    for key, members in groups.items():
        least = settings.together
        if key.startswith(LEAF):
            least = min(least, max(2, sizes[key[len(LEAF) :]]))
        for names in _together(members, settings.together_s, least):
            made.append(Cause(_named(key, members, names), names, tuple(sorted({members[n].check for n in names}))))
    taken: set[str] = set()
    kept: list[Cause] = []
    for cause in sorted(made, key=lambda c: (-len(c.nodes), not c.where.startswith(LEAF), c.where)):
        if not taken.issuperset(cause.nodes):
            kept.append(cause)
            taken.update(cause.nodes)
    return tuple(kept)


LEAF = "leaf switch "


def _places(node: NodeView, found: Found) -> list[str]:
    """What the finding's cause may be common to."""
    if not found.check.startswith("fabric."):
        return [found.check]
    own = [f"{LEAF}{node.leaf}"] if node.leaf else ["the fabric"]
    return [*own, f"rail {found.subject}"] if found.subject else own


def _named(key: str, members: Mapping[str, Found], names: Sequence[str]) -> str:
    if key.startswith((LEAF, "rail ", "the fabric")):
        return key
    subjects = sorted({members[name].subject for name in names})
    return f"{key} {subjects[0]}" if len(subjects) == 1 else f"{key} of {len(subjects)} kinds"


def _together(members: Mapping[str, Found], span_s: float, least: int) -> list[tuple[str, ...]]:
    """Runs of members whose neighbours in time are at most the span apart, where long enough."""
    order = sorted(members, key=lambda name: (members[name].since, name))
    runs: list[list[str]] = []
    for name in order:
        if runs and members[name].since - members[runs[-1][-1]].since <= span_s:
            runs[-1].append(name)
        else:
            runs.append([name])
    return [tuple(sorted(run)) for run in runs if len(run) >= least]
