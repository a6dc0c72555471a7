"""Rank order: leaves side by side, and never worse than Slurm's own order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from aistation_slurm.cli.placement import command
from aistation_slurm.placement.rank_order import inter_leaf_edges, switch_order
from aistation_slurm.topology.model import Switch, Topology, resolve_levels

TREE = Topology(
    "tree",
    resolve_levels(
        [
            Switch("leaf1", ("n1", "n3", "n5", "n10")),
            Switch("leaf2", ("n2", "n4")),
            Switch("leaf3", ("n6", "n8")),
            Switch("leaf10", ("n7", "n9")),
            Switch("spine2", (), ("leaf1", "leaf10")),
            Switch("spine1", (), ("leaf2", "leaf3")),
            Switch("core", (), ("spine1", "spine2")),
        ]
    ),
)
CONF = """SwitchName=leaf1 Nodes=n[1,3,5,7]
SwitchName=leaf2 Nodes=n[2,4,6,8]
SwitchName=spine Switches=leaf[1-2]
"""


def test_nodes_are_ordered_by_core_spine_leaf_and_number() -> None:
    nodes = [f"n{i}" for i in range(1, 11)] + ["login1"]
    assert switch_order(nodes, TREE) == ["n2", "n4", "n6", "n8", "n1", "n3", "n5", "n10", "n7", "n9", "login1"]


@given(st.permutations([f"n{i}" for i in range(1, 11)]), st.integers(0, 10))
def test_no_order_crosses_leaves_less(nodes: list[str], count: int) -> None:
    chosen = nodes[:count]
    ordered = switch_order(chosen, TREE)
    leaves = len({TREE.leaf_of[node] for node in chosen})
    assert sorted(ordered) == sorted(chosen)
    assert inter_leaf_edges(ordered, TREE) == (0 if leaves < 2 else 1 if len(chosen) == 2 else leaves)
    assert inter_leaf_edges(ordered, TREE) <= inter_leaf_edges(chosen, TREE)


def test_without_a_topology_slurms_order_stays() -> None:
    assert switch_order(["n10", "n2", "n1"], Topology("flat")) == ["n10", "n2", "n1"]


@pytest.fixture
def conf(tmp_path: Path) -> str:
    path = tmp_path / "topology.conf"
    path.write_text(CONF, encoding="utf-8")
    return str(path)


def run(*args: str, **env: str) -> tuple[int, str, str]:
    clean = dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"))
    result = CliRunner().invoke(command, ["hostfile", *args], env={**clean, **env})
    return result.exit_code, result.stdout, result.stderr


def test_in_a_job_each_node_stands_once_for_each_of_its_tasks(conf: str) -> None:
    env = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_TASKS_PER_NODE": "2(x3),1"}
    code, out, _ = run("--topology", conf, **env)
    assert code == 0
    assert out.split() == ["n1", "n1", "n3", "n3", "n2", "n2", "n4"]


def test_the_edges_between_leaves_are_counted(conf: str) -> None:
    code, out, _ = run("--nodes", "n[1-8]", "--topology", conf, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["ring_edges_between_leaves"] == {"slurm": 8, "ordered": 2}
    assert found["leaves"] == {"leaf1": ["n1", "n3", "n5", "n7"], "leaf2": ["n2", "n4", "n6", "n8"]}
    _, _, said = run("--nodes", "n[1-8]", "--topology", conf, "--explain")
    assert "8 nodes below 2 leaf switches (leaf1: n[1,3,5,7], leaf2: n[2,4,6,8])" in said


@pytest.mark.parametrize(
    ("args", "env", "said"),
    [
        ((), {}, "no nodes"),
        (("--nodes", "n[1"), {}, "bracket"),
        (("--nodes", "n[1-4]", "--tasks-per-node", "2(x3)"), {}, "is for 3 nodes, there are 4"),
        (("--nodes", "n1", "--tasks-per-node", "0"), {}, "expected 8 or 8(x3),4"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], env: dict[str, str], said: str) -> None:
    code, _, err = run(*args, **env)
    assert code == 2
    assert said in err
