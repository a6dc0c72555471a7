from __future__ import annotations

import time

import pytest

from aistation_slurm.node.neighbours import own_text, read_neighbours, why_not_alone
from aistation_slurm.node.state import NodeState
from tests.cluster.faults import gpu_lost, ib_down
from tests.unit.node.prolog_run import drained_with, gate
from tests.unit.node.sim import SimNode

NOW = time.time()
REPORT = "[ais-found {since} fabric.port_state@mlx5_3/1=port state 1: DOWN]"


def block(name: str, reason: str = "", comment: str = "", age_s: float = 60.0, partitions: str = "gpu") -> str:
    """As Slurm 22.05 prints it."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW - age_s))
    lines = [
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 ",
        f"   State={'IDLE+DRAIN' if reason else 'MIXED'} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"   Partitions={partitions} ",
        "   AllocTRES=",
    ]
    if reason:
        lines.append(f"   Reason={reason} [root@{at}]")
    if comment:
        lines.append(f"   Comment={comment}")
    return "\n".join(lines) + "\n\n"


def reported(name: str, age_s: float = 60.0) -> str:
    return block(name, comment=f"rack 12 {REPORT.format(since=int(NOW - age_s))}")


def state() -> NodeState:
    return NodeState("ok", NOW, "boot", "enforce")


def why(*others: str, check: str = "fabric.port_state") -> str:
    text = block("gpu1") + "".join(others)
    return why_not_alone(read_neighbours(text), "gpu1", check, state(), NOW)


WELL = [block(f"gpu{i}") for i in range(10, 40)]


def test_alone_among_well_nodes() -> None:
    assert why(*WELL) == ""


def test_one_other_is_no_common_cause_but_two_are() -> None:
    assert why(reported("gpu2"), *WELL) == ""
    assert "2 other nodes (gpu2, gpu3)" in why(reported("gpu2"), reported("gpu3"), *WELL)


def test_those_drained_for_the_like_count_as_well() -> None:
    drained = block("gpu2", "ais:fabric.rate mlx5_1/1 x [abcdef]")
    assert "2 other nodes" in why(drained, reported("gpu3"), *WELL)


def test_what_is_old_or_of_another_kind_does_not_count() -> None:
    old = [reported("gpu2", 900), reported("gpu3", 900)]
    gpus = [block(f"gpu{i}", "ais:gpu.lost GPU3 x [abcdef]") for i in (4, 5, 6)]
    assert why(*old, *gpus, *WELL) == ""


def test_a_leaf_that_is_down_for_a_week_stays_one_cause() -> None:
    text = reported("gpu1", 600_000) + reported("gpu2", 600_010) + reported("gpu3", 599_990) + "".join(WELL)
    assert "2 other nodes" in why_not_alone(read_neighbours(text), "gpu1", "fabric.port_state", state(), NOW)


def test_no_more_than_the_share_of_the_partition() -> None:
    gpus = [block(f"gpu{i}", "ais:gpu.lost GPU3 x [abcdef]") for i in (4, 5, 6, 7)]
    assert "4 nodes of gpu were drained" in why(*gpus, *WELL)
    others = [block(f"gpu{i}", "ais:gpu.lost GPU3 x [abcdef]", partitions="cpu") for i in (4, 5, 6, 7)]
    assert why(*others, *WELL) == ""


def test_other_peoples_drains_do_not_count() -> None:
    theirs = [block(f"gpu{i}", "memory test tomorrow") for i in range(4, 10)]
    assert why(*theirs, *WELL) == ""


def test_own_text_is_this_nodes_and_whole() -> None:
    text = block("gpu11") + block("gpu1", comment="mine") + block("gpu111")
    assert own_text(text, "gpu1") == block("gpu1", comment="mine")
    assert own_text(text, "gpu2") == ""
    assert own_text("NodeName=gpu1 Arch=x86_64", "gpu1") == ""


def port_down(node: SimNode, shown: str) -> None:
    node.write_state(age_s=20)
    node.inject(ib_down("mlx5_2"))
    node.scontrol(shown=shown.replace("'", ""))


def test_the_gate_refuses_for_a_port_where_this_node_is_alone_with_one_look_and_one_update(node: SimNode) -> None:
    port_down(node, block("gpu1") + reported("gpu2") + "".join(WELL))
    assert gate(node, SLURM_JOB_NUM_NODES="2").returncode == 1
    assert drained_with(node).startswith("ais:fabric.port_state mlx5_2/1 ")
    assert len(node.calls()) == 2


def test_the_gate_lets_the_job_start_where_others_have_it_too(node: SimNode) -> None:
    port_down(node, block("gpu1") + reported("gpu2") + reported("gpu3") + "".join(WELL))
    ran = gate(node, SLURM_JOB_NUM_NODES="2")
    assert (ran.returncode, node.calls()) == (0, ["<show><node>"])
    assert "2 other nodes (gpu2, gpu3) have fabric.* as well: one cause" in ran.stderr
    assert list((node.run / "refusals").iterdir()) == []


def test_but_not_on_a_gpu_that_is_gone(node: SimNode) -> None:
    port_down(node, block("gpu1") + reported("gpu2") + reported("gpu3"))
    node.inject(gpu_lost(0))
    assert gate(node, SLURM_JOB_NUM_NODES="2").returncode == 1
    assert drained_with(node).startswith("ais:gpu.lost GPU0 ")


@pytest.fixture
def node(tmp_path: object) -> SimNode:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    return SimNode(tmp_path)
