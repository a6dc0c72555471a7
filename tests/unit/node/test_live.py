from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from aistation_slurm.node import live
from tests.cluster.faults import gpu_lost, gpu_missing, ib_down, ib_rate
from tests.unit.node.sim import SimNode


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    return SimNode(tmp_path)


def look(node: SimNode, deadline_s: float = 30.0) -> dict[str, live.Fact]:
    gpus = [g.pci for g in node.hardware.gpus]
    ports = [f"{h.name}/1" for h in node.hardware.hcas]
    return {f.device: f for f in live.read_facts(str(node.hardware.root), gpus, ports, deadline_s)}


def test_a_healthy_node(node: SimNode) -> None:
    facts = look(node)
    assert {f.state for f in facts.values() if f.kind == "gpu"} == {live.PRESENT}
    assert {(f.state, f.rate_gbps) for f in facts.values() if f.kind == "port"} == {("4: ACTIVE", 400.0)}
    assert len(facts) == 8
    assert not any(f.error for f in facts.values())


def test_faults_are_seen_on_the_right_device(node: SimNode) -> None:
    for fault in (gpu_lost(1), gpu_missing(2), ib_down("mlx5_0"), ib_rate("mlx5_3", 100)):
        node.inject(fault)
    facts = look(node)
    by_gpu = [facts[g.pci].state for g in node.hardware.gpus]
    assert by_gpu == [live.PRESENT, live.ALL_ONES, live.GONE, live.PRESENT]
    assert facts["mlx5_0/1"].state == "1: DOWN"
    assert facts["mlx5_3/1"].rate_gbps == 100.0
    assert facts["mlx5_2/1"].rate_gbps == 400.0


def test_a_tree_that_is_not_there_says_nothing_about_the_devices(tmp_path: Path) -> None:
    facts = live.read_facts(str(tmp_path / "none"), ["0000:18:00.0"], ["mlx5_0/1"], 30.0)
    assert [(f.state, bool(f.error)) for f in facts] == [("", True), ("", True)]


def test_a_port_that_disappeared(node: SimNode) -> None:
    (node.hardware.root / "sys/class/infiniband/mlx5_1").unlink()
    assert look(node)["mlx5_1/1"].state == live.GONE


def test_a_file_that_blocks_costs_the_deadline_and_only_its_own_answer(node: SimNode) -> None:
    path = node.hardware.root / node.hardware.pci_path(node.hardware.gpu(2).pci) / "config"
    path.unlink()
    os.mkfifo(path)
    begin = time.monotonic()
    facts = look(node, deadline_s=1.0)
    assert time.monotonic() - begin < 20
    answered = [facts[g.pci].state for g in node.hardware.gpus]
    assert answered == [live.PRESENT, live.PRESENT, "", ""]
    assert "did not answer within 1 s" in facts[node.hardware.gpu(2).pci].error
    assert facts[node.hardware.gpu(3).pci].error == "not reached"


@pytest.mark.parametrize("content", [b"", b"\xde"])
def test_a_configuration_that_is_too_short_is_not_judged(node: SimNode, content: bytes) -> None:
    path = node.hardware.root / node.hardware.pci_path(node.hardware.gpu(0).pci) / "config"
    path.write_bytes(content)
    assert look(node)[node.hardware.gpu(0).pci].error


def test_a_rate_that_is_not_understood_is_not_judged(node: SimNode) -> None:
    node.hardware.set_port("mlx5_0", rate="fast")
    assert "not understood" in look(node)["mlx5_0/1"].error


def test_nothing_wanted_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked for nothing"))
    assert live.read_facts("/", [], [], 1.0) == []
