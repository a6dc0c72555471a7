"""The epilog as Slurm starts it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Optional

import pytest

from aistation_slurm.node import jobs, state
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.lock import take_agent_lock
from tests.cluster.faults import gpu_lost
from tests.unit.node.sim import EPILOG, SimNode


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    made = SimNode(tmp_path)
    made.scontrol()
    return made


def epilog(node: SimNode, env: Optional[dict[str, str]] = None, **more: str) -> subprocess.CompletedProcess[str]:
    environment = env if env is not None else node.environment(**more)
    return subprocess.run([str(EPILOG)], env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_record_goes_and_the_state_comes(node: SimNode) -> None:
    jobs.write(str(node.run), JobRecord(42, 20001, 0, frozenset({0, 1}), "auto", 1.0))
    ran = epilog(node)
    assert ran.returncode == 0
    assert jobs.read(str(node.run), 42) is None
    assert len(state.read(str(node.run / "state")).gpus) == 4
    assert node.calls() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
@pytest.mark.parametrize("uid", [20077, 20078])
def test_a_user_without_processes_and_an_agent_make_it_quick(node: SimNode, uid: int) -> None:
    """No interpreter of the suite, no NVML; uid 20078 has a process, so there the GPUs are looked at."""
    lock = take_agent_lock(str(node.run))
    left = subprocess.Popen(["/bin/sleep", "600"], user=20078, group=20078, extra_groups=[])
    try:
        ran = epilog(node, SLURM_JOB_UID=str(uid))
    finally:
        os.close(lock)
        left.kill()
        left.wait()
    assert ran.returncode == 0
    assert ("NVML could not be asked" in ran.stderr) == (uid == 20078)
    assert (node.run / "refresh").exists()


def test_with_an_agent_the_epilog_only_asks_for_a_fresh_state(node: SimNode) -> None:
    lock = take_agent_lock(str(node.run))
    try:
        ran = epilog(node)
    finally:
        os.close(lock)
    assert ran.returncode == 0
    assert (node.run / "refresh").exists()
    assert not (node.run / "state").exists()


def test_without_nvml_nothing_is_ended_and_that_is_said(node: SimNode) -> None:
    ran = epilog(node)
    assert "NVML could not be asked, so no process is ended" in ran.stderr


def test_a_fault_is_drained_for_with_our_reason_and_exit_0(node: SimNode) -> None:
    """Any other exit code would drain the node as "Epilog error" and lose the cause."""
    node.inject(gpu_lost(3))
    node.scontrol(shown="NodeName=gpu1 State=MIXED")
    ran = epilog(node)
    assert ran.returncode == 0
    assert any("<update><NodeName=gpu1><State=DRAIN><Reason=ais:gpu.lost GPU3 " in c for c in node.calls())


def test_a_fault_is_drained_for_also_where_no_state_can_be_written(node: SimNode) -> None:
    node.inject(gpu_lost(1))
    node.run.write_text("a file where the folder should be", encoding="ascii")
    assert epilog(node).returncode == 0
    assert any("<Reason=ais:gpu.lost GPU1 " in call for call in node.calls())


def test_a_job_without_gpus_costs_nothing(node: SimNode) -> None:
    env = node.environment()
    del env["SLURM_JOB_GPUS"]
    ran = epilog(node, env)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (node.run / "state").exists()


def test_the_gates_record_stands_in_for_a_missing_gpu_list(node: SimNode) -> None:
    jobs.write(str(node.run), JobRecord(42, 20001, 0, frozenset({0, 1}), "", 1.0))
    env = node.environment()
    del env["SLURM_JOB_GPUS"]
    assert "NVML could not be asked" in epilog(node, env).stderr


@pytest.mark.parametrize(
    "name", ["SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_JOB_GPUS", "SLURMD_NODENAME", "SLURM_JOB_USER"]
)
@pytest.mark.parametrize("value", ["", "$(touch pwned)", "0", "-1", "4294967296", "1; touch pwned\n\x1b[0m"])
def test_odd_values_never_fail_and_never_reach_a_shell(node: SimNode, name: str, value: str) -> None:
    ran = epilog(node, **{name: value})
    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr
    assert "\x1b" not in ran.stderr
    assert not list(node.folder.rglob("pwned"))


def test_an_empty_environment(node: SimNode) -> None:
    assert epilog(node, env={}).returncode == 0


def test_a_broken_configuration_is_said(node: SimNode) -> None:
    node.toml.write_text("[epilog]\ngrace = 1\n")
    ran = epilog(node)
    assert ran.returncode == 0
    assert "unknown key 'grace' in [epilog]" in ran.stderr
