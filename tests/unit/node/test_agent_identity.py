"""Which node the agent acts on, which jobs a lost GPU concerns, and what it makes of refusals by its gate."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from aistation_slurm.findings import Finding, Status, drain_reason
from aistation_slurm.node import jobs, refusals
from aistation_slurm.node.agent import Agent
from aistation_slurm.node.health import GpuRow
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.publish import gres_indices
from aistation_slurm.node.refusals import Refusal
from aistation_slurm.node.state import boot_id
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import Node
from tests.cluster.faults import gpu_lost
from tests.unit.node.fake_slurm import FakeSlurm, job
from tests.unit.node.sim import SimNode

HOST = socket.gethostname()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimNode:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu1")
    return SimNode(tmp_path)


def named(slurm: FakeSlurm, **hosts: str) -> FakeSlurm:
    slurm.by_name = {name: Node(name=name, state="MIXED", hostname=host) for name, host in hosts.items()}
    return slurm


# ---- the node's name


def test_without_slurmds_word_the_node_of_this_host_is_drained(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME")
    node.inject(gpu_lost(3))
    slurm = named(FakeSlurm(job(nodes=("n5",))), **{HOST: "another-host", "n5": HOST})
    agent = Agent(node.config, slurm)
    agent.once()
    assert slurm.made("drain") == ["drain n5"]
    assert slurm.made("requeue") == ["requeue 7"]
    agent.once()
    assert agent.report is not None
    assert agent.report.node == "n5"


def test_a_node_that_is_only_called_like_this_host_is_never_drained(
    node: SimNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME")
    node.inject(gpu_lost(3))
    slurm = named(FakeSlurm(job(nodes=(HOST,))), **{HOST: "another-host"})
    Agent(node.config, slurm).once()
    assert slurm.made("drain") + slurm.made("requeue") == []
    assert "set SLURMD_NODENAME" in caplog.text


def test_the_first_look_waits_for_no_controller(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME")
    slurm = named(FakeSlurm(), n5=HOST)
    Agent(node.config, slurm).once()
    assert slurm.calls == []
    assert (node.run / "state").exists()


# ---- refusals


def test_the_agent_adopts_slurms_drain_for_a_job_that_the_gate_refused(node: SimNode) -> None:
    node.inject(gpu_lost(3))
    agent = Agent(node.config, FakeSlurm(job()))
    finding = next(f for f in agent.check(node.config).findings if f.check == "gpu.lost")
    reason = drain_reason(finding, node="gpu1", boot_id=boot_id())
    refusals.keep(str(node.run), Refusal(42, 1000, boot_id(), finding.check, finding.subject, reason))
    slurm = FakeSlurm(job())
    slurm.set_node("gpu1", "Prolog error")
    Agent(node.config, slurm).once()
    assert slurm.by_name["gpu1"].reason == reason
    assert tags.refusals_of(slurm.by_name["gpu1"].comment) == ((42, 1000),)
    assert slurm.made("drain") == []
    assert slurm.made("requeue") == ["requeue 7"]
    assert [call for call in slurm.made("update") if "fault=" in call and "update 7 " in call], (
        "each job carries its fault"
    )


def test_a_silent_controller_delays_the_adoption_and_nothing_else(
    node: SimNode, caplog: pytest.LogCaptureFixture
) -> None:
    refusals.keep(
        str(node.run), Refusal(42, 1000, boot_id(), "fabric.rate", "mlx5_1/1", "ais:fabric.rate mlx5_1/1 [1]")
    )
    slurm = FakeSlurm()
    slurm.down = True
    agent = Agent(node.config, slurm)
    for _ in range(3):
        assert agent.once() is not Status.FAIL
    assert len([r for r in caplog.records if "refused jobs are not yet made known" in r.message]) == 1
    slurm.down = False
    slurm.set_node("gpu1", "Prolog error")
    agent.once()
    assert slurm.by_name["gpu1"].reason == "ais:fabric.rate mlx5_1/1 [1]"


# ---- numbers of GPUs


def test_gpu_numbers_of_slurm_and_of_the_driver_are_not_compared(node: SimNode) -> None:
    """gres.conf begins with GPU 2: Slurm's index 0 is /dev/nvidia2."""
    (node.folder / "gres.conf").write_text("Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]\n")
    node.inject(gpu_lost(3))
    slurm = FakeSlurm(job(7), job(8), job(9, gres_detail=("gpu:1(IDX:3)",)))
    jobs.write(str(node.run), JobRecord(7, 20001, 0, frozenset({3}), "auto", 1.0))
    jobs.write(str(node.run), JobRecord(8, 20001, 0, frozenset({1}), "auto", 1.0))
    Agent(node.config, slurm).once()
    assert slurm.made("requeue") == ["requeue 8"]


def test_a_gpu_that_is_gone_from_the_bus_is_still_known_by_its_index(node: SimNode) -> None:
    lost = node.finding("gpu.lost", 2)
    whole = node.report()
    without = dataclasses.replace(node.report(lost), gpus=tuple(g for g in whole.gpus if g.pci != lost.device))
    looks = iter([whole, without])
    slurm = FakeSlurm(job(7), job(8))
    jobs.write(str(node.run), JobRecord(7, 20001, 0, frozenset({2}), "auto", 1.0))
    jobs.write(str(node.run), JobRecord(8, 20001, 0, frozenset({3}), "auto", 1.0))
    agent = Agent(node.config, slurm, lambda _: next(looks))
    agent.once()
    agent.once()
    assert slurm.made("requeue") == ["requeue 7"]


@pytest.mark.parametrize(
    ("minors", "expected", "indices"),
    [
        ((0, 1, 2, 3), None, {0: 0, 1: 1, 2: 2, 3: 3}),
        ((0, 1, 3), None, {0: 0, 1: 1}),
        ((0, 1, 3), 3, {0: 0, 1: 1, 3: 2}),
        ((0, 1, 3), 4, {0: 0, 1: 1}),
        ((-1, 0), None, {0: 0}),
    ],
)
def test_with_autodetect_only_certain_indices_are_used(
    tmp_path: Path, minors: tuple[int, ...], expected: object, indices: dict[int, int]
) -> None:
    node = SimNode(tmp_path, expect={} if expected is None else {"gpus": expected})
    (node.folder / "gres.conf").write_text("AutoDetect=nvml\n")
    rows = tuple(GpuRow(-1, minor, f"0000:0{i}:00.0", "") for i, minor in enumerate(minors))
    report = dataclasses.replace(node.report(Finding("gpu.count", Status.OK)), gpus=rows)
    assert gres_indices(report, node.config) == indices
