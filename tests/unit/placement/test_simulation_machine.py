"""Nodes are picked as Slurm 22.05 picks them: cases worked out by hand from job_test.c."""

from __future__ import annotations

import pytest

from aistation_slurm.placement.simulation.machine import Machine, bits
from aistation_slurm.topology.model import Switch, Topology


def machine(*spines: tuple[int, ...]) -> Machine:
    """One spine for each tuple of leaf sizes; nodes are numbered from left to right."""
    leaves, above, at = [], [], 0
    for sizes in spines:
        names = []
        for size in sizes:
            names.append(f"leaf{len(leaves)}")
            leaves.append(Switch(names[-1], tuple(f"n{at + k}" for k in range(size))))
            at += size
        above.append(Switch(f"spine{len(above)}", (), tuple(names), 1))
    core = Switch("core", (), tuple(s.name for s in above), 2)
    return Machine(Topology("tree", (*leaves, *above, core)))


def nodes(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


CASES = {
    "the tightest leaf that fits": ((4, 4), nodes(0, 1, 2, 4, 5), 2, [4, 5]),
    "the first of two alike": ((4, 4), nodes(0, 1, 2, 4, 5, 6), 2, [0, 1]),
    "a part of a leaf, lowest first": ((4, 4), nodes(1, 2, 3), 2, [1, 2]),
    "no leaf fits: the fullest first, then the tightest for the rest": (
        (4, 4, 4),
        nodes(0, 1, 4, 5, 6, 7, 8),
        5,
        [4, 5, 6, 7, 8],
    ),
    "all there is": ((4, 4), nodes(0, 4), 2, [0, 4]),
    "too few": ((4, 4), nodes(0), 2, []),
}


@pytest.mark.parametrize("name", CASES)
def test_one_spine(name: str) -> None:
    sizes, usable, number, expected = CASES[name]
    assert bits(machine(sizes).tree_pick(usable, number)) == expected


def test_no_leaf_fits_but_a_spine_does() -> None:
    # spine0 has 5 usable nodes, spine1 6: both fit 5, spine0 more tightly, though leaf 2 is the fullest leaf
    two = machine((4, 4), (4, 4))
    usable = nodes(0, 1, 2, 4, 5, 8, 9, 10, 11, 12, 13)
    assert bits(two.tree_pick(usable, 5)) == [0, 1, 2, 4, 5]


def test_a_nearer_leaf_is_taken_before_a_tighter_one_far_away() -> None:
    # after leaf 0, leaf 1 (same spine, 2 usable) and leaf 2 (other spine, 2 usable) fit the rest of 2 alike
    two = machine((4, 4), (4, 4))
    assert bits(two.tree_pick(nodes(0, 1, 2, 3, 8, 9, 4, 5), 6)) == [0, 1, 2, 3, 4, 5]


def test_leaves_that_nothing_joins_are_never_combined() -> None:
    apart = Machine(Topology("tree", (Switch("a", ("n0", "n1")), Switch("b", ("n2", "n3")))))
    assert apart.tree_pick(apart.all, 3) == 0
    assert bits(apart.tree_pick(apart.all, 2)) == [0, 1]


LINE = {
    "the shortest run that fits": (nodes(0, 1, 2, 5, 6), 2, [5, 6]),
    "no run fits: the longest, then the shortest that fits the rest": (
        nodes(0, 2, 3, 4, 6, 7),
        4,
        [0, 2, 3, 4],
    ),
    "too few": (nodes(0, 2), 3, []),
}


@pytest.mark.parametrize("name", LINE)
def test_without_a_topology(name: str) -> None:
    usable, number, expected = LINE[name]
    assert bits(machine((8,)).line_pick(usable, number)) == expected


def test_fewest_leaves() -> None:
    assert machine((2, 4), (2,)).fewest == (0, 1, 1, 1, 1, 2, 2, 3, 3)
