"""What the gate lets start, and what that costs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aistation_slurm.findings import Finding, Status
from aistation_slurm.node import jobs
from tests.cluster.faults import gpu_lost, ib_down
from tests.unit.node.prolog_run import gate
from tests.unit.node.sim import PROLOG, SimNode


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    made = SimNode(tmp_path)
    made.scontrol()
    return made


def test_a_healthy_node_passes_without_a_word_or_a_request(node: SimNode) -> None:
    node.write_state()
    ran = gate(node)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert node.calls() == []


def test_the_passing_path_imports_the_standard_librarys_cheapest_parts_only(node: SimNode) -> None:
    node.write_state()
    ran = subprocess.run(
        ["/usr/bin/python3", "-ISE", "-X", "importtime", str(PROLOG)],
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "aistation_slurm.node.gate" in loaded
    dear = {"json", "subprocess", "dataclasses", "enum", "typing", "re", "argparse", "logging", "threading", "socket"}
    assert not loaded & dear
    third_party = {"msgspec", "click", "rich", "psutil", "pynvml", "ClusterShell"}
    assert not {name.partition(".")[0] for name in loaded} & third_party


def test_the_gate_notes_the_job_for_agent_and_epilog(node: SimNode) -> None:
    node.write_state()
    gate(node, SPANK_AISTATION_RESUME="megatron", SLURM_JOB_RESTART_COUNT="2")
    record = jobs.read(str(node.run), 42)
    assert record is not None
    assert (record.uid, record.restart_count, record.gpus, record.resume) == (20001, 2, {0, 1}, "megatron")
    assert (node.run / "jobs").stat().st_mode & 0o777 == 0o700
    assert (node.run / "jobs/42").stat().st_mode & 0o777 == 0o600


def test_the_largest_uid_is_a_uid(node: SimNode) -> None:
    node.write_state()
    gate(node, SLURM_JOB_UID="4294967294")
    record = jobs.read(str(node.run), 42)
    assert record is not None
    assert record.uid == 4294967294


@pytest.mark.parametrize("resume", ["", "none", "$(id)", "auto\nresume=hf", "AUTO"])
def test_no_other_word_opts_a_job_in(node: SimNode, resume: str) -> None:
    node.write_state()
    gate(node, SPANK_AISTATION_RESUME=resume)
    record = jobs.read(str(node.run), 42)
    assert record is not None
    assert not record.opted_in


def test_a_fault_of_another_jobs_gpu_does_not_concern_this_one(node: SimNode) -> None:
    node.write_state(node.finding("gpu.lost", 3))
    node.inject(gpu_lost(3))
    assert gate(node, SLURM_JOB_GPUS="0-2").returncode == 0
    assert node.calls() == []


def test_a_job_without_gpus_passes_gpu_faults(node: SimNode) -> None:
    hang = Finding("gpu.driver_hang", Status.FAIL, "NVIDIA driver", "blocked for 40 s")
    node.write_state(node.finding("gpu.lost", 3), hang)
    env = node.environment()
    del env["SLURM_JOB_GPUS"]
    assert gate(node, env).returncode == 0


def test_warnings_and_unknowns_never_refuse(node: SimNode) -> None:
    node.write_state(node.finding("gpu.xid", 0, Status.WARN), node.finding("gpu.lost", 1, Status.UNKNOWN))
    assert gate(node).returncode == 0


def test_a_check_outside_of_gate_refuse_does_not_refuse(node: SimNode) -> None:
    node.write_state(Finding("host.disk", Status.FAIL, "/tmp", "1 % free"))
    assert gate(node).returncode == 0


def test_a_bad_port_is_no_matter_of_a_job_inside_one_node_with_some_gpus(node: SimNode) -> None:
    node.write_state(node.port_finding("fabric.port_state", "mlx5_2"))
    node.inject(ib_down("mlx5_2"))
    assert gate(node).returncode == 0
