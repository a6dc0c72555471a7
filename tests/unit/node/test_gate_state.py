"""Node states that the gate cannot use: it looks again in place, and in doubt lets the job start."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.cluster.faults import gpu_lost
from tests.unit.node.prolog_run import drained_with, gate
from tests.unit.node.sim import SimNode


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    made = SimNode(tmp_path)
    made.scontrol()
    return made


def started_with(node: SimNode) -> list[str]:
    """Command lines of the processes that have this test's aistation.toml in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.fsencode(node.toml) in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return found


@pytest.mark.parametrize("damage", ["missing", "cut", "other boot", "old", "future", "writable by others"])
def test_a_state_that_cannot_be_used_is_read_anew_in_place(node: SimNode, damage: str) -> None:
    path = node.write_state(
        age_s={"old": 4000.0, "future": -4000.0}.get(damage, 0.0), boot="other" if damage == "other boot" else ""
    )
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_text(path.read_text()[:200])
    elif damage == "writable by others":
        path.chmod(0o666)
    node.inject(gpu_lost(0))
    ran = gate(node)
    assert ran.returncode == 1, ran.stderr
    assert drained_with(node).startswith("ais:gpu.lost GPU0 ")


def test_a_node_that_cannot_be_checked_passes_with_a_warning(node: SimNode) -> None:
    """A broken aistation.toml is no sick node."""
    node.toml.write_text("[gate]\nbudgets = 3\n")
    ran = gate(node)
    assert (ran.returncode, node.calls()) == (0, [])
    assert "unknown key 'budgets'" in ran.stderr
    assert "starts unchecked" in ran.stderr


def test_checks_that_hang_cost_the_budget_and_pass(node: SimNode) -> None:
    """sysfs of a sick device blocks the full interpreter's check: killed in time, the job passes, nothing is drained."""
    node.toml.write_text(node.toml.read_text() + "[gate]\nbudget_s = 6.0\n")
    node.write_state(age_s=4000)
    path = node.hardware.root / node.hardware.pci_path(node.hardware.gpu(3).pci) / "config"
    path.unlink()
    os.mkfifo(path)
    begin = time.monotonic()
    ran = gate(node)
    assert (ran.returncode, node.calls()) == (0, [])
    assert time.monotonic() - begin < 40
    assert "did not end in time" in ran.stderr
    deadline = time.monotonic() + 20
    while (left := started_with(node)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []  # neither the check nor the child that it had asking the device


def test_an_old_state_still_tells_where_the_gpus_are(node: SimNode) -> None:
    """The check in place fails, but the job's own GPU is off the bus for everyone to see."""
    node.write_state(age_s=4000)
    node.toml.write_text("broken")
    node.inject(gpu_lost(0))
    assert gate(node).returncode == 1


def test_old_faults_alone_do_not_refuse(node: SimNode) -> None:
    node.write_state(node.finding("gpu.xid", 0), age_s=4000)
    node.toml.write_text("broken")
    assert gate(node).returncode == 0


def test_health_full_checks_in_place_even_with_a_fresh_state(node: SimNode) -> None:
    before = node.write_state().stat().st_ino
    assert gate(node, SPANK_AISTATION_HEALTH="full").returncode == 0
    assert (node.run / "state").stat().st_ino != before
