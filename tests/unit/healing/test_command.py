"""``aistation heal`` as a person meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aistation_slurm.config import parse
from aistation_slurm.errors import ConfigError
from aistation_slurm.healing.reason import evidence_path
from tests.unit.healing.test_healer import OURS
from tests.unit.node.sim import SimNode


def heal(node: SimNode, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "AISTATION_CONFIG": str(node.toml), "SLURMD_NODENAME": "gpu1"}
    argv = [sys.executable, "-m", "aistation_slurm", "heal", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    made = SimNode(tmp_path, healing={"enabled": True, "dir": str(tmp_path / "kept")})
    made.scontrol(shown="NodeName=gpu1 State=IDLE+DRAIN Reason=memory test [root@1733000000]")
    return made


def test_it_is_off_by_default_and_says_how_to_look(tmp_path: Path) -> None:
    done = heal(SimNode(tmp_path))
    assert done.returncode == 3
    assert "[healing]" in done.stderr
    assert "--dry-run" in done.stderr


def test_another_nodes_name_is_wrong_usage(node: SimNode) -> None:
    done = heal(node, "gpu2")
    assert (done.returncode, "this node is gpu1" in done.stderr) == (2, True)


def test_somebody_elses_drain_is_nothing_to_do(node: SimNode) -> None:
    done = heal(node, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "result": "none",
        "text": "gpu1 is not drained by AIStation: memory test",
        "open": False,
    }
    assert not any("update" in call for call in node.calls())


def test_a_node_that_waits_for_a_person_is_a_problem(node: SimNode) -> None:
    text = OURS.replace("GPU2", "inspect: 2 x reboot did not help; GPU2")
    node.scontrol(shown=f"NodeName=gpu1 State=IDLE+DRAIN Reason={text} [root@1733000000]")
    done = heal(node, "gpu1")
    assert (done.returncode, "waits for a person" in done.stdout) == (1, True), done.stderr


def test_a_silent_controller_is_exit_code_3(node: SimNode) -> None:
    (node.bin / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    done = heal(node)
    assert (done.returncode, "Unable to contact" in done.stderr) == (3, True)


def test_the_evidence_is_found_by_node_and_id_alone() -> None:
    assert evidence_path("/d", "gpu1", "a1b2c3") == "/d/gpu1-a1b2c3.tar.gz"
    assert "/" not in evidence_path("", "../x", "a1b2c3")[1:]


@pytest.mark.parametrize(
    "text",
    [
        'reset = ["nvidia-smi", "{pci}"]',
        'reset = ["/bin/x"]',
        'reset = ["/bin/{pci}"]',
        "reset = []",
        'reset = "/bin/x {pci}"',
        "attempts = 0",
        "attempts = 1000",
        "deadline_s = inf",
        "deadline_s = nan",
        "deadline_s = -1",
        "passes = 0",
        'actions = ["rm"]',
        'dir = "relative"',
        'mode = "on"',
        'commands = {"gpu.*" = ["relative"]}',
        'commands = {"gpu.*" = []}',
        'commands = {"gpu.*" = ["/bin/x", "a\\u0000b"]}',
        "enable = true",
    ],
)
def test_hostile_settings_are_refused_with_their_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f:[123]: "):
        parse(f"[healing]\n{text}\n", "f")
