"""Which nodes are kept for a job in front, and for which jobs none are (recovery/front.py). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Optional

from aistation_slurm.recovery.fitting import RESERVED, fitting, share_partition
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.gres import gpu_count

__all__ = ["choose_nodes", "has_neighbours", "shares_nodes"]


def shares_nodes(ran_on: Sequence[str], gres: Sequence[str], nodes: Mapping[str, Node], bad: Sequence[str]) -> bool:
    """True where a node's GPUs were not all the job's. gres: Slurm's ``gres_detail`` of ``ran_on``, empty where not known."""
    if len(gres) != len(ran_on):
        return False
    held = {name: gpu_count(detail) for name, detail in zip(ran_on, gres) if name in nodes and name not in bad}
    return any(count < gpu_count(nodes[name].gres) for name, count in held.items())


def has_neighbours(job: Job, names: Sequence[str], jobs: Sequence[Job], ended: Optional[float]) -> bool:
    """True where another job runs on one of these nodes. ended: one that started there later is no neighbour."""
    return any(
        other.job_id != job.job_id
        and (other.completing or other.state in ("RUNNING", "SUSPENDED"))
        and not set(names).isdisjoint(other.nodes)
        and (ended is None or (other.start_time or 0) < ended - 1)
        for other in jobs
    )


def choose_nodes(
    job: Job,
    ran_on: Sequence[str],
    bad: Sequence[str],
    nodes: Mapping[str, Node],
    others: Sequence[Job],
    spares: int,
    share: float,
    *,
    crowd: bool,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The reservation's nodes, and those of them that the job held: as few as start it at once, else a share of those
    that can serve, the soonest free first.

    share: of the partition's nodes in service. crowd: others are in front already.
    """
    fit = {node.name: node for node in fitting(job, ran_on, nodes, bad)}
    kept = [name for name in fit if name in ran_on]
    # a reserved node is somebody's, unless the job itself held it: then it is kept for it already
    free = {name: node for name, node in fit.items() if name in kept or not node.flags & RESERVED}
    # of a job that is COMPLETING Slurm counts only the nodes that it still waits for
    need = max(job.node_count, len(ran_on) if job.completing else 1, 1)
    idle = [name for name, node in free.items() if name not in kept and node.state == "IDLE"]
    if len(kept) + len(idle) >= need:
        return tuple(kept + idle[: max(need - len(kept), 0)]), tuple(kept)
    fewest = job.min_nodes or need
    if len(free) + spares < fewest:
        return (), ()  # it could not start whatever is kept: no node idles for that
    pool = [node for node in nodes.values() if node.schedulable and share_partition(job.partition, node.partitions)]
    room = int(len(pool) * share) - sum(bool(node.flags & RESERVED) and node.name not in kept for node in pool)
    if need > room and crowd:
        return (), ()  # what others in front keep and this together would be too much
    busy = sorted((name for name in free if name not in kept), key=lambda name: _free_at(name, others))
    chosen = kept + busy[: max(need, room) - len(kept)]
    return tuple(sorted(chosen)), tuple(kept)


def _free_at(name: str, jobs: Sequence[Job]) -> float:
    """Unix time at which the time limits of the jobs on this node are over; 0 for an idle one."""
    ends = [job.end_time for job in jobs if job.state in ("RUNNING", "SUSPENDED") and name in job.nodes]
    return max((math.inf if end is None else float(end) for end in ends), default=0.0)
