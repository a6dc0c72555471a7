"""Which nodes of which leaf are free, and until when the others are busy: what a decision is made from. Immutable.

Made from Slurm's nodes and jobs by the watchdog, and by the simulator from its own clock; neither is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import inf
from typing import NamedTuple, Optional

from aistation_slurm.topology.model import Topology

__all__ = ["Leaf", "NodeUse", "Occupancy", "PartitionUse", "QueuedJob", "Use"]


class Use(Enum):
    """busy: free at a later time; degraded: only jobs of one node go there; unavailable: down, drained, reserved."""

    FREE = "free"
    BUSY = "busy"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"


class NodeUse(NamedTuple):
    """One node. free_at: unix seconds at which its job is expected to end; None where it is free, or where nobody knows."""

    name: str
    use: Use = Use.FREE
    free_at: Optional[float] = None


class QueuedJob(NamedTuple):
    """A pending job that may start. order: place in the queue, 0 is next; limit_s: its time limit, 0 where it has none."""

    job_id: int
    partition: str
    nodes: int
    order: int
    waited_s: float = 0.0
    limit_s: float = 0.0


@dataclass(frozen=True)
class Leaf:
    """The nodes of one partition below one leaf switch, in the order of Slurm's node table."""

    name: str
    nodes: tuple[NodeUse, ...]

    @cached_property
    def size(self) -> int:
        """Nodes that a job of several nodes can have, sooner or later."""
        return sum(1 for node in self.nodes if node.use in (Use.FREE, Use.BUSY))

    @cached_property
    def free(self) -> int:
        return sum(1 for node in self.nodes if node.use is Use.FREE)

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """When its busy nodes become free, soonest first; those of unknown end are left out."""
        return tuple(sorted(n.free_at for n in self.nodes if n.use is Use.BUSY and n.free_at is not None))

    @cached_property
    def ready(self) -> tuple[float, ...]:
        """Times at which one node more is free: 0 for each that is free now, inf for each of unknown end; ``size`` of them."""
        known = (0.0,) * self.free + self.ends
        return known + (inf,) * (self.size - len(known))

    @cached_property
    def half_ready(self) -> float:
        """Time at which half of the nodes that are busy now are free; 0 where none is busy."""
        busy = self.ready[self.free :]
        return busy[len(busy) // 2] if busy else 0.0


@dataclass(frozen=True)
class PartitionUse:
    """One partition. leaves: those that Slurm may combine in one job (one connected fabric)."""

    name: str
    leaves: tuple[Leaf, ...]

    @cached_property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    @cached_property
    def free(self) -> int:
        return sum(leaf.free for leaf in self.leaves)

    @cached_property
    def degraded(self) -> tuple[str, ...]:
        return tuple(node.name for leaf in self.leaves for node in leaf.nodes if node.use is Use.DEGRADED)


@dataclass(frozen=True)
class Occupancy:
    """All partitions. places: node -> (index of the partition, of the leaf, of the node), one for each partition it is in."""

    partitions: tuple[PartitionUse, ...]
    places: Mapping[str, tuple[tuple[int, int, int], ...]]

    def with_nodes(self, changed: Iterable[NodeUse]) -> Occupancy:
        """The same with these nodes changed; all else is shared. A node that no partition has is passed over."""
        leaves: dict[tuple[int, int], list[NodeUse]] = {}
        for node in changed:
            for part, leaf, at in self.places.get(node.name, ()):
                nodes = leaves.setdefault((part, leaf), list(self.partitions[part].leaves[leaf].nodes))
                nodes[at] = node
        partitions = list(self.partitions)
        for part in {part for part, _ in leaves}:
            row = list(partitions[part].leaves)
            for (of, leaf), nodes in leaves.items():
                if of == part:
                    row[leaf] = replace(row[leaf], nodes=tuple(nodes))
            partitions[part] = replace(partitions[part], leaves=tuple(row))
        return Occupancy(tuple(partitions), self.places)

    @classmethod
    def of(cls, topology: Topology, partitions: Mapping[str, Sequence[str]], uses: Mapping[str, NodeUse]) -> Occupancy:
        """partitions: name -> its nodes, in the order of Slurm's node table; uses: a node that is not in it counts as free.

        Nodes that no leaf switch has are left out: Slurm cannot give them to a job that asks for switches.
        """
        made: list[PartitionUse] = []
        places: dict[str, list[tuple[int, int, int]]] = {}
        for part, (name, nodes) in enumerate(partitions.items()):
            below: dict[str, list[NodeUse]] = {}
            leaf_of = topology.leaf_of
            for node in nodes:
                leaf = leaf_of.get(node)
                if leaf is not None:
                    below.setdefault(leaf, []).append(uses.get(node) or NodeUse(node))
            for index, there in enumerate(below.values()):
                for at, use in enumerate(there):
                    places.setdefault(use.name, []).append((part, index, at))
            made.append(PartitionUse(name, tuple(Leaf(leaf, tuple(there)) for leaf, there in below.items())))
        return cls(tuple(made), {node: tuple(found) for node, found in places.items()})
