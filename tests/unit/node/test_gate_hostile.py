"""Hostile and broken environments: everything in a prolog's environment may have been chosen by a user."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.node.prolog_run import gate
from tests.unit.node.sim import PROLOG, SimNode


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    made = SimNode(tmp_path)
    made.scontrol()
    return made


EVIL = "42; touch pwned; $(touch pwned) `touch pwned`\n\x1b[31m"


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_ID",
        "SLURM_JOB_UID",
        "SLURM_JOB_GPUS",
        "SLURM_JOB_NUM_NODES",
        "SLURM_JOB_RESTART_COUNT",
        "SLURM_JOB_NAME",
        "SLURM_JOB_COMMENT",
        "SPANK_AISTATION_RESUME",
        "SPANK_AISTATION_HEALTH",
        "SPANK_AISTATION_CKPT_DIR",
        "SPANK_PATH",
        "SPANK_LD_PRELOAD",
        "PYTHONPATH",
    ],
)
def test_no_value_reaches_a_shell_or_forges_a_line(node: SimNode, name: str) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    ran = gate(node, **{name: EVIL})
    assert ran.returncode in (0, 1)
    assert not list(node.folder.rglob("pwned"))
    assert not Path("pwned").exists()
    assert not any(EVIL in call for call in node.calls())
    assert "\x1b" not in ran.stderr


@pytest.mark.parametrize("name", ["--help", "gpu1 State=RESUME", "gpu1,gpu2", "", "gpu[1-9]", "ALL\n"])
def test_a_node_name_that_is_none_is_not_given_to_scontrol(node: SimNode, name: str) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    assert gate(node, SLURMD_NODENAME=name).returncode == 1
    assert node.calls() == []


@pytest.mark.parametrize("gpus", ["", "x", "0-", "-1", "0-99999999999", "9" * 5000, "0,,1", "0-1023", "１", "4", "1-0"])
def test_odd_gpu_lists_neither_crash_nor_refuse(node: SimNode, gpus: str) -> None:
    node.write_state()
    ran = gate(node, SLURM_JOB_GPUS=gpus)
    assert ran.returncode == 0, ran.stderr
    assert "internal error" not in ran.stderr


def test_an_empty_environment_passes(node: SimNode) -> None:
    ran = gate(node, env={})
    assert ran.returncode == 0
    assert "SLURM_JOB_ID" in ran.stderr


def test_a_job_record_that_cannot_be_written_does_not_stop_the_job(node: SimNode) -> None:
    node.write_state()
    (node.run / "jobs").write_text("in the way")
    ran = gate(node)
    assert ran.returncode == 0
    assert "will not requeue this job" in ran.stderr


def test_a_broken_installation_drains_nothing(tmp_path: Path) -> None:
    copy = tmp_path / "prolog/aistation-prolog"
    copy.parent.mkdir()
    copy.write_bytes(PROLOG.read_bytes())
    copy.chmod(0o755)
    ran = subprocess.run([str(copy)], env={}, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0
    assert "cannot be loaded" in ran.stderr


def test_it_works_through_a_link(node: SimNode, tmp_path: Path) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    link = tmp_path / "prolog.d-50-aistation"
    link.symlink_to(PROLOG)
    ran = subprocess.run([str(link)], env=node.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
