"""Which nodes a job could take, as far as Slurm tells the suite. Pure.

A node of the same kind (GRES and features) as those that the job ran on, in a partition of the job's, that is neither drained
nor excluded. What else a job asked for only Slurm knows: this is for counting and keeping nodes, never for placing jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from aistation_slurm.slurm.client import Job, Node

__all__ = ["fitting", "of_one_kind", "share_partition"]

RESERVED = frozenset({"RESERVED", "MAINT", "MAINTENANCE"})


def fitting(job: Job, ran_on: Iterable[str], nodes: Mapping[str, Node], without: Collection[str] = ()) -> list[Node]:
    """Nodes for ``job`` by name, reserved ones too; none where the nodes that it ran on are not known any more."""
    kinds = {(nodes[name].gres, frozenset(nodes[name].features)) for name in ran_on if name in nodes}
    avoided = set(without) | set(job.excluded_nodes)
    return [
        node
        for name, node in sorted(nodes.items())
        if node.schedulable
        and name not in avoided
        and share_partition(job.partition, node.partitions)
        and of_one_kind(node, kinds)
    ]


def of_one_kind(node: Node, kinds: Collection[tuple[str, frozenset[str]]]) -> bool:
    """True where the node has the GRES and the features of one of ``kinds``."""
    return (node.gres, frozenset(node.features)) in kinds


def share_partition(partition: str, others: Collection[str]) -> bool:
    """``"a,b"`` of a job and a node's list; what is not told is taken to fit."""
    return not partition or not others or bool(set(partition.split(",")) & set(others))
