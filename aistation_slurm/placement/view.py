"""Slurm's nodes and jobs as the occupancy that a decision is made from, kept up to date cheaply from look to look.

A record that is as in the look before is the same object again (slurm/decode.py), so a look in which one node changed costs a
walk over two lists and one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Optional

from aistation_slurm.placement import decision, table
from aistation_slurm.placement.grade import degraded
from aistation_slurm.placement.occupancy import NodeUse, Occupancy, QueuedJob, Use
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.gres import gpu_count
from aistation_slurm.topology.model import Topology, natural

__all__ = ["View", "partition_rows", "queue", "same_records", "use_of"]

BUSY_STATES = frozenset({"ALLOCATED", "MIXED"})


def same_records(one: Sequence[Job], other: Sequence[Job]) -> bool:
    """Whether two looks brought the same jobs; records that say the same are the same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


def use_of(node: Node, free_at: Optional[float]) -> NodeUse:
    """What jobs of several whole nodes can have of it. free_at: expected end of the last job there, None where not known."""
    if not node.schedulable or "RESERVED" in node.flags:
        return NodeUse(node.name, Use.UNAVAILABLE)
    if degraded(node.comment) is not None:
        return NodeUse(node.name, Use.DEGRADED)
    if node.state in BUSY_STATES or "COMPLETING" in node.flags:
        return NodeUse(node.name, Use.BUSY, free_at)
    return NodeUse(node.name)


def queue(jobs: Iterable[Job]) -> tuple[QueuedJob, ...]:
    """Pending jobs that may start when there is room, next first. Held ones, and those that wait for another job or a time, not."""
    there = [job for job in jobs if job.state == "PENDING" and not job.completing and job.priority != 0]
    waiting = [job for job in there if job.reason.lower() not in ("dependency", "begintime")]
    waiting.sort(key=lambda job: (-job.priority, job.job_id))
    return tuple(
        QueuedJob(
            job.job_id,
            job.partition.partition(",")[0],
            job.min_nodes or job.node_count,
            order,
            0.0,
            job.time_limit_s or 0,
        )
        for order, job in enumerate(waiting)
    )


@dataclass(frozen=True)
class _Partition:
    """What does not change with occupancy. kinds: nodes that are alike in their GPUs."""

    nodes: tuple[str, ...]
    kinds: tuple[frozenset[str], ...]
    gpus: int


class View:
    """The last look. ``update`` takes the next one; ``occupancy``, ``degraded_nodes`` and ``partitions`` are then true to it."""

    def __init__(self) -> None:
        self.occupancy = Occupancy((), {})
        self.partitions: dict[str, _Partition] = {}
        self.degraded_nodes: frozenset[str] = frozenset()
        self._topology: Optional[Topology] = None
        self._nodes: dict[str, Node] = {}
        self._jobs: list[Job] = []
        self._ends: dict[str, Optional[float]] = {}
        self._shape: dict[str, tuple[tuple[str, ...], str]] = {}

    def update(self, topology: Topology, nodes: Sequence[Node], jobs: Sequence[Job]) -> bool:
        """Take a look in; False where nothing that matters changed."""
        ends = self._ends
        if not same_records(jobs, self._jobs):
            self._jobs = list(jobs)
            ends = _ends(jobs)
        old, old_ends = self._nodes, self._ends
        if ends is old_ends:
            changed = [node for node in nodes if old.get(node.name) is not node]
        else:
            changed = [n for n in nodes if old.get(n.name) is not n or ends.get(n.name) != old_ends.get(n.name)]
        same_shape = topology is self._topology and len(nodes) == len(old)
        self._ends = ends
        if same_shape and not changed:
            return False
        same_shape = same_shape and all(self._shape.get(node.name) == (node.partitions, node.gres) for node in changed)
        if same_shape:
            for node in changed:
                old[node.name] = node
            self.occupancy = self.occupancy.with_nodes(use_of(node, ends.get(node.name)) for node in changed)
        else:
            self._rebuild(topology, nodes)
        well = {node.name for node in changed if degraded(node.comment) is None}
        bad = {node.name for node in changed} - well
        self.degraded_nodes = frozenset((self.degraded_nodes - well) | bad) & self._nodes.keys()
        return True

    def _rebuild(self, topology: Topology, nodes: Sequence[Node]) -> None:
        self._topology = topology
        self._nodes = {node.name: node for node in nodes}
        self._shape = {node.name: (node.partitions, node.gres) for node in nodes}
        members: dict[str, list[Node]] = {}
        for node in sorted(nodes, key=lambda n: natural(n.name)):
            for name in node.partitions:
                members.setdefault(name, []).append(node)
        self.partitions = {name: _partition(found) for name, found in sorted(members.items())}
        uses = {node.name: use_of(node, self._ends.get(node.name)) for node in nodes}
        names = {name: partition.nodes for name, partition in self.partitions.items()}
        self.occupancy = Occupancy.of(topology, names, uses)


def _ends(jobs: Iterable[Job]) -> dict[str, Optional[float]]:
    """Node -> expected end of the last job on it; None where one of them has no limit."""
    found: dict[str, Optional[float]] = {}
    for job in jobs:
        if job.state in ("RUNNING", "SUSPENDED") or job.completing:
            end = float(job.end_time) if job.end_time and job.time_limit_s is not None else None
            for node in job.nodes:
                before = found.get(node, end)
                found[node] = None if end is None or before is None else max(before, end)
    return found


def _partition(nodes: Sequence[Node]) -> _Partition:
    kinds: dict[str, set[str]] = {}
    for node in nodes:
        kinds.setdefault(node.gres, set()).add(node.name)
    counts = {gpu_count(gres) for gres in kinds}
    gpus = counts.pop() if len(counts) == 1 else 0
    return _Partition(tuple(node.name for node in nodes), tuple(frozenset(kind) for kind in kinds.values()), gpus)


def partition_rows(
    view: View, rows: Iterable[decision.Row], avoid_percent: float
) -> tuple[list[table.PartitionRow], list[str]]:
    """The table's content, and what is to be said about it.

    An exclusion is only made where every kind of node has enough others left: a job that could not start without the excluded
    nodes would be refused by slurmctld.
    """
    by_partition: dict[str, list[decision.Row]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    found, said = [], []
    for name, partition in view.partitions.items():
        size = len(partition.nodes)
        avoid = view.degraded_nodes.intersection(partition.nodes) if view.degraded_nodes else frozenset()
        if 100.0 * len(avoid) > avoid_percent * size:
            said.append(
                f"partition {name}: {len(avoid)} of {size} nodes are degraded, which is the fabric's fault: none is avoided"
            )
            avoid = frozenset()
        limits: list[table.Row] = []
        for row in by_partition.get(name, ()):
            excluded = row.excluded if row.excluded and row.last <= _clean(partition, avoid.union(row.excluded)) else ()
            before = limits[-1] if limits else None
            same = (row.first - 1, row.per, row.plus, row.wait_s, excluded)
            if before is not None and (before.last, *before[2:]) == same:
                limits[-1] = before._replace(last=row.last)
            else:
                limits.append(table.Row(row.first, row.last, row.per, row.plus, row.wait_s, excluded))
        ordered = tuple(sorted(avoid, key=natural))
        found.append(table.PartitionRow(name, size, _clean(partition, avoid), partition.gpus, ordered, tuple(limits)))
    return found, said


def _clean(partition: _Partition, excluded: frozenset[str]) -> int:
    """The most nodes that a job can ask for and surely start without these, whatever kind of node it needs."""
    if not excluded:
        return len(partition.nodes)
    left = [len(kind - excluded) for kind in partition.kinds if kind & excluded]
    return min(left, default=len(partition.nodes))
