"""Limits that the leaves of a partition can really give."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from aistation_slurm.placement.decision import Settings, decide
from aistation_slurm.placement.occupancy import NodeUse, Occupancy, Use
from aistation_slurm.topology.model import Switch, Topology

NOW = 1_800_000_000.0


def tree(*sizes: int) -> Topology:
    switches = tuple(Switch(f"leaf{i}", tuple(f"n{i}-{k}" for k in range(size))) for i, size in enumerate(sizes))
    return Topology("tree", (*switches, Switch("spine", (), tuple(s.name for s in switches), 1)))


def limits(topology: Topology, uses: Mapping[str, NodeUse] = MappingProxyType({})) -> dict[int, int]:
    occupancy = Occupancy.of(topology, {"gpu": topology.nodes}, uses)
    rows = decide(topology, occupancy, (), Settings(), NOW)
    return {nodes: row.switches(nodes) for row in rows for nodes in range(row.first, row.last + 1)}


def test_few_as_the_leaves_can_give() -> None:
    assert limits(tree(4, 4)) == {2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 2, 8: 2}


def test_unlike_leaves() -> None:
    assert limits(tree(8, 2, 2)) == {**dict.fromkeys(range(2, 9), 1), 9: 2, 10: 2, 11: 3, 12: 3}


def test_a_leaf_that_lost_nodes_is_no_longer_a_whole_one() -> None:
    lost = {f"n{i}-0": NodeUse(f"n{i}-0", Use.UNAVAILABLE) for i in range(2)}
    assert limits(tree(4, 4), lost) == {2: 1, 3: 1, 4: 2, 5: 2, 6: 2}


def test_no_tree_no_limit() -> None:
    flat = Topology("flat")
    assert decide(flat, Occupancy.of(flat, {"gpu": ("a", "b")}, {}), (), Settings(), NOW) == ()


def test_one_changed_node_is_as_good_as_building_anew() -> None:
    topology = tree(4, 4)
    whole = Occupancy.of(topology, {"gpu": topology.nodes, "all": topology.nodes}, {})
    busy = NodeUse("n1-2", Use.BUSY, NOW + 60)
    assert (
        whole.with_nodes([busy]).partitions
        == Occupancy.of(topology, {"gpu": topology.nodes, "all": topology.nodes}, {"n1-2": busy}).partitions
    )
