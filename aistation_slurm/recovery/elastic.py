"""Size of a restarted job that asked for a range of nodes (``--nodes=2-4``). Pure, but for ``apply_size``.

Measured on 22.05.8: Slurm keeps the range over a requeue. A job that leaves its tasks to Slurm shrinks and grows by itself at
each start: left alone here. One that fixes its tasks a node (``--ntasks-per-node``) is tied to one size by their number: it
waits for as many nodes as before. It starts smaller after NumNodes, NumTasks *and* NumCPUs are set (the old minimum of CPUs
stays otherwise); and it grows the same way. The environment that sbatch saved keeps its SLURM_NTASKS, by which a plain
``srun`` then asks for too many tasks and fails: so only where the site says that its scripts do not (``elastic.resize``).

The range is in AdminComment (``nodes=2-4``, by job_submit.lua: neither scontrol nor JSON of a restarted job tell it), and so
is the size before it was made smaller (``size=4``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.config import Elastic
from aistation_slurm.recovery.fitting import RESERVED, fitting
from aistation_slurm.recovery.front import reservation_name
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import Job, Node, SlurmClient

__all__ = ["Size", "apply_size", "asked_range", "plan_growth", "plan_shrink"]


@dataclass(frozen=True)
class Size:
    """nodes: the new number; before: what the tag is to keep, None once it has its old size again."""

    job_id: int
    nodes: int
    tasks: int
    cpus: int
    before: Optional[int]


def asked_range(job: Job) -> Optional[tuple[int, int]]:
    """Fewest and most nodes asked at submission; None where it asked for one number, or the tag does not tell."""
    match = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", tags.read_tag(job.admin_comment).get("nodes", ""))
    if match is None or not 0 < int(match[1]) < int(match[2]):
        return None
    return int(match[1]), int(match[2])


def plan_shrink(
    job: Job,
    ran_on: Sequence[str],
    bad: Sequence[str],
    nodes: Mapping[str, Node],
    config: Elastic,
    now: float,
    waits_since: float,
) -> Optional[Size]:
    """Fewer nodes for a restarted job that has waited long: what is idle for it now; None where that is too few, or enough.

    waits_since: unix time since which it may start.
    """
    limits = _limits(job, config)
    if limits is None or now < waits_since + config.after_s:
        return None
    own = job.reservation == reservation_name(job.job_id)
    idle = [
        node
        for node in fitting(job, ran_on, nodes, bad)
        if node.state == "IDLE" and (not node.flags & RESERVED or (own and node.name in ran_on))
    ]
    present = _present(job)
    if not limits[0] <= len(idle) < present:
        return None
    return _size(job, len(idle), _before(job) or present)


def plan_growth(
    job: Job, ran_on: Sequence[str], bad: Sequence[str], nodes: Mapping[str, Node], config: Elastic
) -> Optional[Size]:
    """The old size again, at the next restart, as far as there are nodes in service; None where there is nothing to grow.

    Busy nodes count: it is in front of the queue, and ``plan_shrink`` comes again where they do not get free.
    """
    limits, before = _limits(job, config), _before(job)
    if limits is None or before is None:
        return None
    there = [n for n in fitting(job, ran_on, nodes, bad) if not n.flags & RESERVED or n.name in ran_on]
    size = min(before, limits[1], len(there))
    if size <= _present(job):
        return None
    return _size(job, size, None if size == before else before)


def _limits(job: Job, config: Elastic) -> Optional[tuple[int, int]]:
    """The range, for a waiting restarted job whose tasks tie it to one size."""
    if not config.resize or job.state != "PENDING" or job.completing or job.priority == 0:
        return None
    if job.restart_cnt == 0 or job.het_job_id is not None or job.tasks_per_node == 0:
        return None
    return asked_range(job)


def _present(job: Job) -> int:
    """Nodes that its tasks need; ``node_count`` keeps the last allocation's number after a change."""
    return math.ceil(job.tasks / job.tasks_per_node) or job.node_count


def _before(job: Job) -> Optional[int]:
    text = tags.read_tag(job.admin_comment).get("size", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _size(job: Job, nodes: int, before: Optional[int]) -> Size:
    tasks = nodes * job.tasks_per_node
    return Size(job.job_id, nodes, tasks, tasks * job.cpus_per_task, before)


def apply_size(client: SlurmClient, plan: Size) -> str:
    """After a fresh look, all in one request; two RPCs. Raises SlurmUnavailable, SlurmRefused."""
    fresh = client.job(plan.job_id)
    if fresh is None or fresh.state != "PENDING" or fresh.completing:
        return "late: the job has moved on"
    tag = tags.tag_without(fresh.admin_comment, "size")
    if plan.before is not None:
        tag = tags.tag_with(tag, {"size": str(plan.before)})
    client.update_job(
        fresh, NumNodes=str(plan.nodes), NumTasks=str(plan.tasks), NumCPUs=str(plan.cpus), AdminComment=tag
    )
    return f"starts with {plan.nodes} nodes and {plan.tasks} tasks"
