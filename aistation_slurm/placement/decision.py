"""The placement decision: for each partition and size of job, how few leaf switches, how long to wait for them, which nodes not.

Pure: topology, occupancy, queue, settings and the time in, rows out. The watchdog publishes the rows for job_submit.lua, and
the simulator calls the same function: docs/decisions/0014-placement-policy.md has what was tried, and the figures.

The rule, for a usual leaf of ``per`` nodes:

================== =========================================================================================================
nodes of the job   leaf switches
================== =========================================================================================================
up to half of per  one
up to a leaf       one; two while the queue asks for ``busy_at`` times the nodes of the partition or more
more               as many as its nodes need on leaves that are half full (twice the optimum)
================== =========================================================================================================

A job that waits for few switches waits no longer than the queue and the running jobs let expect: then it starts as Slurm would have
started it. Large jobs get a loose limit since a strict one costs them, and all that queue behind them, more than it wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, inf
from typing import NamedTuple

from aistation_slurm.placement.occupancy import Occupancy, PartitionUse, QueuedJob
from aistation_slurm.topology.model import Topology

__all__ = ["Row", "Settings", "decide", "pressure"]

UNLIMITED_PER = 999_999
"""``per`` of a row whose limit does not grow with the job: ``1 + plus`` leaf switches."""


@dataclass(frozen=True)
class Settings:
    """The site's choice. Times in seconds.

    busy_at: nodes that the queue asks for, in sizes of the partition, from which jobs of nearly a leaf may take two;
    wait_min_s, wait_max_s: bounds of the wait for few switches (slurmctld cuts every wait at
    SchedulerParameters=max_switch_wait, 300 s by default); unknown_s: what a running job without an end is taken to last.
    """

    busy_at: float = 1.0
    wait_min_s: float = 60.0
    wait_max_s: float = 86400.0
    unknown_s: float = 3600.0


class Row(NamedTuple):
    """Jobs of first..last nodes may span ``ceil(nodes / per) + plus`` leaf switches and wait ``wait_s`` for so few.

    excluded: nodes that they keep off for now; preferred: nodes that suit them best, for information.
    """

    partition: str
    first: int
    last: int
    per: int
    plus: int
    wait_s: int
    excluded: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()

    def switches(self, nodes: int) -> int:
        return -(-nodes // self.per) + self.plus


def decide(
    model: Topology, occupancy: Occupancy, queue: Sequence[QueuedJob], settings: Settings, now: float
) -> tuple[Row, ...]:
    """Rows of every partition in ``occupancy``, sizes rising without overlap; a size without a row is left to Slurm.

    Jobs of one node have no limit (one leaf is all they can use), and neither has a topology that is no tree.
    """
    if model.kind != "tree":
        return ()
    rows: list[Row] = []
    for partition in occupancy.partitions:
        waiting = [job for job in queue if job.partition == partition.name]
        rows += _rows(partition, waiting, settings, now)
    return tuple(rows)


def pressure(partition: PartitionUse, waiting: Sequence[QueuedJob]) -> float:
    """Nodes that the queue asks for, in sizes of the partition."""
    return sum(job.nodes for job in waiting) / partition.size if partition.size else 0.0


def _rows(partition: PartitionUse, waiting: Sequence[QueuedJob], settings: Settings, now: float) -> Iterator[Row]:
    sizes = sorted((leaf.size for leaf in partition.leaves if leaf.size), reverse=True)
    if len(sizes) < 2:
        return
    nodes_by_size = Counter(sizes)
    per = max(nodes_by_size, key=lambda size: (size * nodes_by_size[size], size))
    wait_s, soon = _wait(partition, waiting, settings, now)
    relaxed = 2 if pressure(partition, waiting) >= settings.busy_at else 1

    def of_one_leaf(nodes: int) -> int:
        return max(relaxed if nodes > per / 2 else 1, 1 if soon[nodes] <= wait_s else 2)

    for switches, group in groupby(range(2, len(soon)), of_one_leaf):
        found = list(group)
        yield Row(partition.name, found[0], found[-1], UNLIMITED_PER, switches - 1, wait_s)
    yield from _of_many_leaves(partition.name, sizes, max(1, per // 2), len(soon), wait_s)


def _of_many_leaves(name: str, sizes: Sequence[int], half: int, first: int, wait_s: int) -> list[Row]:
    """Rows of jobs that no leaf can hold. sizes: of the leaves, largest first: no limit is below what these can give."""
    rows: list[Row] = []
    reached = plus = 0
    for leaves, size in enumerate(sizes, start=1):
        least = max(reached + 1, first)  # the smallest job that needs so many leaves
        reached += size
        if reached < least:
            continue
        plus = max(plus, leaves - ceil(least / half))
        if rows and rows[-1].plus == plus:
            rows[-1] = rows[-1]._replace(last=reached)
        else:
            rows.append(Row(name, least, reached, half, plus, wait_s))
    return rows


def _wait(
    partition: PartitionUse, waiting: Sequence[QueuedJob], settings: Settings, now: float
) -> tuple[int, list[float]]:
    """The wait for few switches, and for each number of nodes of one leaf, in how long some leaf should have so many free.

    The wait: until half of the nodes that are busy now should be free, and until the queue should have had its turn. slurmctld
    counts from the first test of a job, which is long before its turn when the queue is long.
    """
    widest = max((leaf.size for leaf in partition.leaves), default=0)
    soon = [inf] * (widest + 1)
    ends: list[float] = []
    for leaf in partition.leaves:
        for nodes in range(1, min(leaf.free, leaf.size) + 1):
            soon[nodes] = 0.0
        at = leaf.free
        for end in leaf.ends:
            at += 1
            left = max(0.0, end - now)
            ends.append(left)
            if at <= widest and left < soon[at]:
                soon[at] = left
        unknown = leaf.size - at
        ends += [settings.unknown_s] * unknown
        for nodes in range(at + 1, leaf.size + 1):
            soon[nodes] = min(soon[nodes], settings.unknown_s)
    ends.sort()
    turn = sum(job.nodes * (job.limit_s or settings.unknown_s) for job in waiting) / max(1, partition.size)
    expected = (ends[len(ends) // 2] if ends else 0.0) + turn
    return round(min(settings.wait_max_s, max(settings.wait_min_s, expected))), soon
