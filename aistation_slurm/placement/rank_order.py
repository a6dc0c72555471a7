"""The nodes of a job in the order of the network, and what that is worth to a ring of ranks.

A ring all-reduce (NCCL's, by default over ranks in order) sends from each node to the next: an edge between two leaf switches
costs uplink bandwidth. Nodes of one leaf side by side make the fewest such edges: the number of leaves, or none on one leaf.
Slurm itself orders nodes by name (or by switch with TopologyParam=SwitchAsNodeRank, since 23.02).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from aistation_slurm.topology.model import Topology, natural

__all__ = ["host_lines", "inter_leaf_edges", "leaves_of", "switch_order"]

Place = tuple[tuple[str, ...], tuple[tuple[int, object, int], ...]]


def switch_order(nodes: Sequence[str], topology: Topology) -> list[str]:
    """``nodes`` by core, spine, leaf, and within a leaf by their number; those that no switch has come last, by name.

    The number decides within a leaf since rails are cabled alike on every node: rank ``i`` of each node is on the same rail
    however nodes are ordered, so that only leaves matter here. Without any switch the order given stays.
    """
    if not topology.leaf_of:
        return list(dict.fromkeys(nodes))

    def key(node: str) -> tuple[bool, list[object], object]:
        path = _path(topology, topology.leaf_of.get(node))
        return not path, [natural(name) for name in path], natural(node)

    return sorted(dict.fromkeys(nodes), key=key)


def _path(topology: Topology, leaf: Optional[str]) -> list[str]:
    """Switch names from the top down to ``leaf``; where a switch has several parents, the first by name."""
    path: list[str] = []
    while leaf is not None and leaf not in path:
        path.append(leaf)
        leaf = min(topology.parents.get(leaf, ()), key=natural, default=None)
    return path[::-1]


def inter_leaf_edges(nodes: Sequence[str], topology: Topology) -> int:
    """Edges of the ring node 0, 1, ... n-1, 0 whose ends hang on different leaves; a node that no switch has is one of its own."""
    if len(nodes) < 2:
        return 0
    leaves = [topology.leaf_of.get(node, f"?{node}") for node in nodes]
    edges = zip(leaves, [*leaves[1:], leaves[0]]) if len(nodes) > 2 else zip(leaves, leaves[1:])
    return sum(1 for one, other in edges if one != other)


def leaves_of(nodes: Sequence[str], topology: Topology) -> dict[str, list[str]]:
    """Leaf -> its nodes of ``nodes``, in their order; "" for nodes that no switch has."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(topology.leaf_of.get(node, ""), []).append(node)
    return found


def host_lines(nodes: Sequence[str], tasks: Sequence[int]) -> list[str]:
    """Lines of SLURM_HOSTFILE: each node once per task, as ``--distribution=arbitrary`` takes it."""
    return [node for node, count in zip(nodes, tasks) for _ in range(count)]
