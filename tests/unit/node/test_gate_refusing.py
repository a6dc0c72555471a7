"""What the gate refuses, and in which mode."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aistation_slurm.findings import Finding, Status
from aistation_slurm.node import jobs
from tests.cluster.faults import gpu_lost, ib_down, ib_rate
from tests.unit.node.prolog_run import drained_with, gate
from tests.unit.node.sim import PROLOG, SimNode


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    made = SimNode(tmp_path)
    made.scontrol()
    return made


def test_a_finding_about_the_jobs_own_gpu_refuses_and_drains(node: SimNode) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    ran = gate(node)
    assert ran.returncode == 1
    pci = node.hardware.gpu(1).pci[:-2]
    assert drained_with(node).startswith(f"ais:gpu.xid GPU1 {pci} evidence [")
    assert len(node.calls()) == 2, "one look, one update"
    assert "refused: gpu.xid GPU1" in ran.stderr
    assert "refused: gpu.xid GPU1" in (node.run / "hooks.log").read_text()
    assert jobs.read(str(node.run), 42) is None, "a job that never started here must not be requeued from here"


def test_gres_indices_are_mapped_through_gres_conf(node: SimNode) -> None:
    (node.folder / "gres.conf").write_text("Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]\n")
    node.write_state(node.finding("gpu.xid", 3))
    assert gate(node, SLURM_JOB_GPUS="2,3").returncode == 0
    assert gate(node, SLURM_JOB_GPUS="1").returncode == 1


def test_a_gpu_lost_since_the_state_was_written_is_seen(node: SimNode) -> None:
    node.write_state(age_s=20)
    node.inject(gpu_lost(0))
    assert gate(node).returncode == 1
    assert drained_with(node).startswith(f"ais:gpu.lost GPU0 {node.hardware.gpu(0).pci[:-2]} ")


@pytest.mark.parametrize(
    ("fault", "check"), [(ib_down("mlx5_2"), "fabric.port_state"), (ib_rate("mlx5_2", 100), "fabric.rate")]
)
@pytest.mark.parametrize("whole", [{"SLURM_JOB_NUM_NODES": "2"}, {"SLURM_JOB_GPUS": "0-3"}])
def test_a_port_that_got_worse_refuses_jobs_that_use_the_fabric(
    node: SimNode, fault: object, check: str, whole: dict[str, str]
) -> None:
    node.write_state(age_s=20)
    node.inject(fault)  # type: ignore[arg-type]
    assert gate(node, **whole).returncode == 1
    assert drained_with(node).startswith(f"ais:{check} mlx5_2/1 ")


def test_a_port_that_only_flickers_does_not_refuse(node: SimNode) -> None:
    """The second look finds it well: what is not so any more drains nobody."""
    node.write_state(age_s=20)
    state_file = node.hardware.root / "sys/class/infiniband/mlx5_2/ports/1/state"
    state_file.unlink()
    os.mkfifo(state_file)
    process = subprocess.Popen([str(PROLOG)], env=node.environment(SLURM_JOB_NUM_NODES="2"), stderr=subprocess.PIPE)
    try:
        with state_file.open("w") as pipe:  # opens when the gate reads
            state_file.unlink()
            state_file.write_text("4: ACTIVE\n")
            pipe.write("2: INIT\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
    assert node.calls() == []


def test_a_hung_driver_refuses_jobs_with_gpus(node: SimNode) -> None:
    node.write_state(Finding("gpu.driver_hang", Status.FAIL, "NVIDIA driver", "blocked for 40 s"))
    assert gate(node).returncode == 1
    assert drained_with(node).startswith("ais:gpu.driver_hang NVIDIA driver blocked for 40 s [")


def test_a_missing_gpu_only_concerns_the_job_that_was_given_it(node: SimNode) -> None:
    """gres.conf says four; GPU 3 is not on the bus at all."""
    report = node.report(Finding("gpu.count", Status.FAIL, "GPUs", "3 found, expected 4"))
    node.hardware.gpus = node.hardware.gpus[:3]
    node.write_state(*report.findings)
    assert gate(node, SLURM_JOB_GPUS="0,1").returncode == 0
    assert gate(node, SLURM_JOB_GPUS="3").returncode == 1
    assert drained_with(node).startswith("ais:gpu.count ")


def test_an_older_finding_is_looked_at_again_before_it_refuses(node: SimNode) -> None:
    """The state is 60 s old and tells of a port that is up again: a new look, no drain."""
    node.write_state(node.port_finding("fabric.port_state", "mlx5_2"), age_s=60)
    ran = gate(node, SLURM_JOB_NUM_NODES="2")
    assert (ran.returncode, node.calls()) == (0, [])
    assert "aistation-state 1 " in (node.run / "state").read_text()
    assert "port mlx5_2/1 ok" in (node.run / "state").read_text()


def test_a_port_with_a_warning_about_its_counters_is_looked_at_as_any_other(node: SimNode) -> None:
    """A link that flaps is the one most likely to be down when a job comes."""
    warned = replace(node.port_finding("fabric.flap", "mlx5_2"), status=Status.WARN)
    node.write_state(warned)
    assert gate(node, SLURM_JOB_NUM_NODES="2").returncode == 0
    node.inject(ib_down("mlx5_2"))
    assert gate(node, SLURM_JOB_NUM_NODES="2").returncode == 1
    assert drained_with(node).startswith("ais:fabric.port_state mlx5_2/1")


def test_observe_mode_says_and_passes(node: SimNode, tmp_path: Path) -> None:
    node.toml.write_text('mode = "observe"\n' + node.toml.read_text())
    node.write_state(node.finding("gpu.xid", 1))
    ran = gate(node)
    assert (ran.returncode, node.calls()) == (0, [])
    assert "would refuse the job and drain the node: gpu.xid GPU1" in ran.stderr


def test_health_off_passes_all_but_a_lost_gpu_of_its_own(node: SimNode) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    off = {"SPANK_AISTATION_HEALTH": "off"}
    assert gate(node, **off).returncode == 0
    node.inject(gpu_lost(1))
    assert gate(node, **off).returncode == 1


@pytest.mark.parametrize(("until", "code"), [(60.0, 0), (-60.0, 1)])
def test_an_open_breaker_passes_all_but_an_unusable_gpu(node: SimNode, until: float, code: int) -> None:
    node.write_state(node.port_finding("fabric.port_state", "mlx5_2"))
    node.inject(ib_down("mlx5_2"))
    (node.run / "breaker").write_text(f"open {time.time() + until:.0f} 40 of 64 nodes of gpu\n")
    ran = gate(node, SLURM_JOB_NUM_NODES="2")
    assert ran.returncode == code
    assert ("breaker is open" in ran.stderr) == (code == 0)
    node.write_state(node.finding("gpu.lost", 0))
    assert gate(node).returncode == 1


@pytest.mark.parametrize("text", ["", "open", "open soon x", "closed 99999999999 x", "\0\0"])
def test_a_damaged_breaker_file_is_a_closed_breaker(node: SimNode, text: str) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    (node.run / "breaker").write_text(text)
    assert gate(node).returncode == 1
