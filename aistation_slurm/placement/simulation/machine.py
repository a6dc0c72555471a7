"""The nodes, and how select/cons_tres picks some of them: topology/tree's best fit, or runs of neighbours without a topology.

Follows src/plugins/select/cons_tres/job_test.c of Slurm 22.05.8: ``_eval_nodes_topo`` with ``_topo_choose_best_switch`` and
``_topo_compare_switches``, and ``_eval_nodes``; for whole nodes of one weight, without required nodes. Sets of nodes are
integers, bit ``i`` for the ``i``-th node of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from aistation_slurm.topology.model import Topology

__all__ = ["Machine", "bits", "count"]

count = getattr(int, "bit_count", None) or (lambda value: bin(value).count("1"))
"""Nodes in a set; int.bit_count came with Python 3.10."""
FAR = 1 << 30
"""Distance of switches that nothing joins."""


def bits(value: int) -> list[int]:
    """Indexes of the nodes in a set, lowest first."""
    found = []
    while value:
        low = value & -value
        found.append(low.bit_length() - 1)
        value ^= low
    return found


def lowest(value: int, number: int) -> int:
    """The first ``number`` nodes of a set."""
    taken = 0
    for _ in range(number):
        low = value & -value
        taken |= low
        value ^= low
    return taken


class Machine:
    """``nodes`` of one partition in the order of Slurm's node table, below the leaves of ``topology``."""

    def __init__(self, topology: Topology, nodes: Sequence[str] = ()) -> None:
        """Nodes that no leaf has are left out; without ``nodes``, all that the topology has."""
        leaf_of = topology.leaf_of
        self.topology = topology
        self.nodes = tuple(node for node in nodes or topology.nodes if node in leaf_of)
        self.all = (1 << len(self.nodes)) - 1
        masks: dict[str, int] = {}
        for at, node in enumerate(self.nodes):
            masks[leaf_of[node]] = masks.get(leaf_of[node], 0) | 1 << at
        order = [unit.name for unit in topology.units if unit.name in masks]
        self.leaf_names = tuple(order)
        self.leaves = tuple(masks[name] for name in order)
        self.sizes = tuple(count(mask) for mask in self.leaves)
        self._ancestors, self._above = self._spines(topology)
        self._distance = self._distances(topology)

    def _spines(self, topology: Topology) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """Of each leaf the switches above it (indexes into the second: the nodes below each switch), nearest first."""
        index: dict[str, int] = {}
        below: list[int] = []
        rows = []
        for name, mask in zip(self.leaf_names, self.leaves):
            row: list[int] = []
            above = topology.parents.get(name, ())
            while above:
                switch = above[0]
                if switch not in index:
                    index[switch] = len(below)
                    below.append(0)
                if index[switch] in row:
                    break
                below[index[switch]] |= mask
                row.append(index[switch])
                above = topology.parents.get(switch, ())
            rows.append(tuple(row))
        return tuple(rows), tuple(below)

    def _distances(self, topology: Topology) -> tuple[tuple[int, ...], ...]:
        """Hops between leaves, over their nearest common switch."""
        rows = []
        for one in self._ancestors:
            row = []
            for other in self._ancestors:
                shared = [(one.index(switch) + 1) + (other.index(switch) + 1) for switch in one if switch in other]
                row.append(min(shared) if shared else FAR)
            rows.append(row)
        for at, row in enumerate(rows):
            row[at] = 0
        return tuple(tuple(row) for row in rows)

    @cached_property
    def fewest(self) -> tuple[int, ...]:
        """``fewest[n]``: leaf switches that n nodes need at least, on an empty machine."""
        needed = [0]
        for leaf, size in enumerate(sorted(self.sizes, reverse=True), start=1):
            needed += [leaf] * size
        return tuple(needed)

    def spanned(self, nodes: int) -> int:
        """Leaf switches of a set of nodes."""
        return sum(1 for leaf in self.leaves if leaf & nodes)

    def can_hold(self, usable: int, number: int, leaves: int) -> bool:
        """Whether the fullest ``leaves`` leaves together have so many usable nodes."""
        if leaves == 1:
            return any(count(usable & leaf) >= number for leaf in self.leaves)
        return sum(sorted((count(usable & leaf) for leaf in self.leaves), reverse=True)[:leaves]) >= number

    def tree_pick(self, usable: int, number: int) -> int:
        """``number`` of the usable nodes as topology/tree gives them, or 0 where it finds too few."""
        left = [count(usable & leaf) for leaf in self.leaves]
        above = [count(usable & nodes) for nodes in self._above]
        far = [0] * len(left)
        chosen = 0
        while number > 0:
            best = -1
            for leaf, there in enumerate(left):
                if not there or far[leaf] >= FAR:
                    continue
                if best < 0:
                    best = leaf
                    continue
                better = self._compare(leaf, best, number, left, above)
                nearer = far[leaf] - far[best]
                if (nearer < 0 and better >= 0) or (nearer == 0 and better > 0):
                    best = leaf
            if best < 0:
                return 0
            here = usable & self.leaves[best]
            if left[best] > number:
                here = lowest(here, number)
            chosen |= here
            number -= left[best]
            left[best] = 0
            far = [one + other for one, other in zip(far, self._distance[best])]
        return chosen

    def _compare(self, one: int, other: int, number: int, left: Sequence[int], above: Sequence[int]) -> int:
        """1 where leaf ``one`` suits ``number`` nodes better than ``other``, -1 where worse (``_topo_compare_switches``)."""
        mine, theirs = left[one], left[other]
        ups, others = self._ancestors[one], self._ancestors[other]
        height = 0
        while True:
            if mine >= number and theirs >= number:
                if mine != theirs:
                    return 1 if mine < theirs else -1
                return 0
            if mine >= number:
                return 1
            if theirs >= number:
                return -1
            if height >= min(len(ups), len(others)) or ups[height] == others[height]:
                break
            mine, theirs = above[ups[height]], above[others[height]]
            height += 1
        return (mine > theirs) - (mine < theirs)

    def line_pick(self, usable: int, number: int) -> int:
        """``number`` of the usable nodes as Slurm gives them without a topology: the tightest run, else the longest."""
        runs: list[tuple[int, int]] = []
        rest, at = usable, 0
        while rest:
            skip = (rest & -rest).bit_length() - 1
            rest >>= skip
            at += skip
            length = (~rest & (rest + 1)).bit_length() - 1
            runs.append((length, at))
            rest >>= length
            at += length
        chosen = 0
        while number > 0 and runs:
            enough = [run for run in runs if run[0] >= number]
            best = min(enough, key=lambda run: run[0]) if enough else max(runs, key=lambda run: run[0])
            runs.remove(best)
            chosen |= ((1 << min(best[0], number)) - 1) << best[1]
            number -= best[0]
        return chosen if number <= 0 else 0
