"""The placement decision: for each partition and size of job, how few leaf switches, how long to wait for them, which nodes not.

Pure: topology, occupancy, queue, settings and the time in, rows out. The watchdog publishes the rows for job_submit.lua, and
the simulator calls the same function: docs/decisions/0014-placement-policy.md has what was tried, and the figures.

The rule, for a usual leaf of ``per`` nodes; a queue *counts* while it asks for ``quiet_below`` to ``busy_at`` times the nodes
of the partition:

================== ================================== ===================================================================
nodes of the job   leaf switches while a queue counts  otherwise
================== ================================== ===================================================================
up to half of per  one                                one
up to a leaf       one                                two
more               half as many more as its optimum   on leaves that are half full: twice the optimum
================== ================================== ===================================================================

With nobody in the queue, nodes that a job leaves idle help nobody; with a long one they are worth more than short ways. In between
the next in the queue take them, so that waiting costs little. A job waits no longer than the queue and the running jobs let
expect: then it starts as Slurm would have started it. Large jobs get a loose limit, since a strict one costs them, and all that
queue behind them, more than it wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import NamedTuple

from aistation_slurm.placement.occupancy import Occupancy, PartitionUse, QueuedJob
from aistation_slurm.topology.model import Topology

__all__ = ["Row", "Settings", "decide", "pressure"]

UNLIMITED_PER = 999_999
"""``per`` of a row whose limit does not grow with the job: ``1 + plus`` leaf switches."""
EXACT = 8
"""Up to so many leaves each number has its own row."""


@dataclass(frozen=True)
class Settings:
    """The site's choice. Times in seconds.

    quiet_below, busy_at: nodes that the queue asks for, in sizes of the partition: between these the limits are strict;
    wait_min_s, wait_max_s: bounds of the wait for few switches (slurmctld cuts every wait at
    SchedulerParameters=max_switch_wait, 300 s by default); unknown_s: what a running job without an end is taken to last.
    """

    quiet_below: float = 0.15
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
    waiting: dict[str, list[QueuedJob]] = {}
    for job in queue:
        waiting.setdefault(job.partition, []).append(job)
    found = (_rows(partition, waiting.get(partition.name, ()), settings, now) for partition in occupancy.partitions)
    return tuple(row for rows in found for row in rows)


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
    strict = settings.quiet_below <= pressure(partition, waiting) < settings.busy_at

    def of_one_leaf(nodes: int) -> int:
        return 1 if (strict or nodes <= per / 2) and soon[nodes] <= wait_s else 2

    for switches, group in groupby(range(2, len(soon)), of_one_leaf):
        found = list(group)
        yield Row(partition.name, found[0], found[-1], UNLIMITED_PER, switches - 1, wait_s)
    exact, filled = (EXACT, per * 3 // 4) if strict else (0, per // 2)
    yield from _of_many_leaves(partition.name, sizes, exact, max(1, filled), len(soon), wait_s)


def _of_many_leaves(name: str, sizes: Sequence[int], exact: int, filled: int, first: int, wait_s: int) -> list[Row]:
    """Rows of jobs that no leaf can hold. sizes: of the leaves, largest first; no limit is below what these can give.

    Jobs of up to ``exact`` leaves get half as many more, larger ones what ``filled`` nodes on each leaf take: one row for all.
    """
    rows: list[Row] = []
    reached = plus = last = 0
    for leaves, size in enumerate(sizes, start=1):
        least = max(reached + 1, first)  # the smallest job that needs so many leaves
        reached += size
        if reached < least:
            continue
        if leaves <= exact:
            rows.append(Row(name, least, reached, UNLIMITED_PER, leaves + (leaves + 1) // 2 - 1, wait_s))
            continue
        needed = leaves + (-least // filled)  # beyond the leaves that it takes with so many nodes on each
        if not last or needed > plus:
            if last:
                rows.append(Row(name, first, last, filled, plus, wait_s))
            first, plus = least, max(plus, needed)
        last = reached
    if last:
        rows.append(Row(name, first, last, filled, plus, wait_s))
    return rows


def _wait(
    partition: PartitionUse, waiting: Sequence[QueuedJob], settings: Settings, now: float
) -> tuple[int, list[float]]:
    """The wait for few switches, and for each number of nodes of one leaf, in how long some leaf should have so many free.

    The wait: until the usual leaf should have half of its busy nodes free, and until the queue should have had its turn.
    slurmctld counts from the first test of a job, which is long before its turn when the queue is long.
    """
    widest = max((leaf.size for leaf in partition.leaves), default=0)
    ready = [leaf.ready + (inf,) * (widest - leaf.size) for leaf in partition.leaves]

    def left(time: float) -> float:
        return settings.unknown_s if time == inf else max(0.0, time - now)

    soon = [0.0, *(left(time) for time in map(min, *ready))] if len(ready) > 1 else [0.0] * (widest + 1)
    halves = sorted(leaf.half_ready for leaf in partition.leaves if leaf.half_ready)
    turn = sum(job.nodes * (job.limit_s or settings.unknown_s) for job in waiting) / max(1, partition.size)
    expected = (left(halves[len(halves) // 2]) if halves else 0.0) + turn
    return round(min(settings.wait_max_s, max(settings.wait_min_s, expected))), soon
