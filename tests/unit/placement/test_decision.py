"""Limits that the leaves of a partition can really give, and waits that end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from aistation_slurm.placement.decision import Row, Settings, decide
from aistation_slurm.placement.occupancy import NodeUse, Occupancy, QueuedJob, Use
from aistation_slurm.topology.model import Switch, Topology

NOW = 1_800_000_000.0
NOBODY: Mapping[str, NodeUse] = MappingProxyType({})


def tree(*sizes: int) -> Topology:
    switches = tuple(Switch(f"leaf{i}", tuple(f"n{i}-{k}" for k in range(size))) for i, size in enumerate(sizes))
    return Topology("tree", (*switches, Switch("spine", (), tuple(s.name for s in switches), 1)))


def rows_of(
    topology: Topology, uses: Mapping[str, NodeUse] = NOBODY, queue: Sequence[QueuedJob] = ()
) -> tuple[Row, ...]:
    occupancy = Occupancy.of(topology, {"gpu": topology.nodes}, uses)
    return decide(topology, occupancy, queue, Settings(), NOW)


def limits(topology: Topology, uses: Mapping[str, NodeUse] = NOBODY, queue: Sequence[QueuedJob] = ()) -> dict[int, int]:
    rows = rows_of(topology, uses, queue)
    return {nodes: row.switches(nodes) for row in rows for nodes in range(row.first, row.last + 1)}


def busy(topology: Topology, left_s: float, free: Sequence[str] = ()) -> dict[str, NodeUse]:
    return {n: NodeUse(n, Use.BUSY, NOW + left_s) for n in topology.nodes if n not in free}


def asking(*nodes: int) -> list[QueuedJob]:
    return [QueuedJob(at, "gpu", asked, at, limit_s=60.0) for at, asked in enumerate(nodes)]


def test_nobody_waits_nearly_a_leaf_may_be_two() -> None:
    assert limits(tree(4, 4)) == {2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 7: 4, 8: 4}


def test_a_queue_one_leaf_up_to_its_size() -> None:
    assert limits(tree(4, 4), queue=asking(4)) == {2: 1, 3: 1, 4: 1, 5: 3, 6: 3, 7: 3, 8: 3}


def test_a_long_queue_nearly_a_leaf_may_be_two_again() -> None:
    assert limits(tree(4, 4), queue=asking(4, 4)) == limits(tree(4, 4))


def test_a_queue_half_as_many_leaves_more_than_the_fewest() -> None:
    found = limits(tree(*[8] * 16), queue=asking(100))
    assert [found[n] for n in (8, 9, 16, 17, 24, 32, 64, 72)] == [1, 3, 3, 5, 5, 6, 12, 12]


def test_another_partition_s_queue_does_not_count() -> None:
    queue = [QueuedJob(number, "cpu", 8, number, limit_s=60.0) for number in range(9)]
    assert limits(tree(4, 4), queue=queue) == limits(tree(4, 4))


def test_unlike_leaves() -> None:
    found = limits(tree(8, 2, 2), queue=asking(4))
    assert (found[2], found[4], found[8]) == (1, 1, 1)
    assert found[9] >= 2
    assert found[12] >= 3


def test_a_leaf_that_lost_nodes_is_no_longer_a_whole_one() -> None:
    lost = {f"n{i}-0": NodeUse(f"n{i}-0", Use.UNAVAILABLE) for i in range(2)}
    found = limits(tree(4, 4), lost, asking(4))
    assert found[3] == 1
    assert found[4] >= 2
    assert max(found) == 6


def test_one_leaf_or_no_tree_no_limit() -> None:
    flat = Topology("flat")
    assert decide(flat, Occupancy.of(flat, {"gpu": ("a", "b")}, {}), (), Settings(), NOW) == ()
    assert rows_of(tree(4)) == ()


def test_the_wait_ends_when_nodes_should_be_free_and_the_queue_has_had_its_turn() -> None:
    topology = tree(4, 4)
    queue = [QueuedJob(1, "gpu", 8, 0, limit_s=600.0)]
    assert {row.wait_s for row in rows_of(topology, busy(topology, 1000.0))} == {1000}
    assert {row.wait_s for row in rows_of(topology, busy(topology, 1000.0), queue)} == {1600}
    assert {row.wait_s for row in rows_of(topology)} == {60}
    assert {row.wait_s for row in rows_of(topology, busy(topology, 1e9))} == {86400}


def test_no_leaf_soon_free_enough_no_strict_limit() -> None:
    # one node of each leaf is free and all others stay busy for much longer than the most that is waited
    topology = tree(4, 4)
    found = limits(topology, busy(topology, 1e9, free=("n0-0", "n1-0")), asking(4))
    assert (found[2], found[3], found[4]) == (2, 2, 2)


def test_one_changed_node_is_as_good_as_building_anew() -> None:
    topology = tree(4, 4)
    members = {"gpu": topology.nodes, "all": topology.nodes}
    changed = NodeUse("n1-2", Use.BUSY, NOW + 60)
    whole = Occupancy.of(topology, members, {})
    assert whole.with_nodes([changed]).partitions == Occupancy.of(topology, members, {"n1-2": changed}).partitions


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.booleans())
def test_every_size_has_a_limit_that_the_leaves_can_give(sizes: list[int], crowded: bool) -> None:
    topology = tree(*sizes)
    queue = [QueuedJob(n, "gpu", sum(sizes), n, limit_s=60.0) for n in range(9 if crowded else 0)]
    found = limits(topology, queue=queue)
    assert sorted(found) == list(range(2, sum(sizes) + 1))
    largest = sorted(sizes, reverse=True)
    assert all(sum(largest[: found[nodes]]) >= nodes for nodes in found)
