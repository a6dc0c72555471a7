"""The placement decision: for each partition and size of job, how few leaf switches, how long to wait for them, which nodes not.

Pure: topology, occupancy, queue, settings and the time in, rows out. The watchdog publishes the rows for job_submit.lua, and
the simulator calls the same function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aistation_slurm.placement.occupancy import Occupancy, PartitionUse, QueuedJob
from aistation_slurm.topology.model import Topology

__all__ = ["Row", "Settings", "decide"]


@dataclass(frozen=True)
class Settings:
    """The site's choice. Times in seconds.

    wait_max_s: never wait longer for few switches (slurmctld itself caps it at SchedulerParameters=max_switch_wait, 300 s by
    default); wait_s: what is waited where the ends of running jobs are not known.
    """

    wait_max_s: float = 300.0
    wait_s: float = 60.0


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
    return tuple(row for partition in occupancy.partitions for row in _rows(partition, settings, now))


def _rows(partition: PartitionUse, settings: Settings, now: float) -> Iterator[Row]:
    sizes = sorted((leaf.size for leaf in partition.leaves if leaf.size), reverse=True)
    if not sizes:
        return
    per = max(Counter(sizes).items(), key=lambda item: (item[1], item[0]))[0]
    wait = _wait(partition, settings, now)
    reached = 0
    first = 2
    for switches, size in enumerate(sizes, start=1):
        # what the largest leaves hold: a job of up to so many nodes can have them on so few switches
        reached += size
        if reached < first:
            continue
        last = reached
        usual = -(-first // per) if -(-first // per) == -(-last // per) else 0
        if usual and switches >= usual:
            yield Row(partition.name, first, last, per, switches - usual, wait)
        else:
            yield Row(partition.name, first, last, 999999, switches - 1, wait)
        first = last + 1


def _wait(partition: PartitionUse, settings: Settings, now: float) -> int:
    """Until half of the nodes that are busy now are free again."""
    ends = sorted(end for leaf in partition.leaves for end in leaf.ends)
    expected = max(0.0, ends[len(ends) // 2] - now) if ends else settings.wait_s
    return round(min(settings.wait_max_s, expected))
