"""Public bug reports about counters: ``check --root`` on the same tree, again and again, while its counters move."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hardware import Hardware
from tests.unit.cases_health.cases import build_tree, case, put
from tests.unit.cases_health.commands import aistation
from tests.unit.cases_health.test_cases import assert_has

SEQUENCES = [
    pytest.param({"ports": known.get("ports", {}), **sequence}, id=f"{known['id']} {sequence['name']}")
    for known in (case("039"), case("040"))
    for sequence in known["sequences"]
]


def show(root: Path, look: dict[str, Any]) -> None:
    """What this look sees in the tree."""
    for hca, counters in look["counters"].items():
        for name, value in counters.items():
            put(root, f"sys/class/infiniband/{hca}/ports/1/counters/{name}", f"{value}\n")
    if "boot" in look:
        put(root, "proc/sys/kernel/random/boot_id", look["boot"] + "\n")
        put(root, "proc/uptime", f"{look['uptime']}.00 1.00\n")


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_counters_over_looks(sequence: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "capture"
    build_tree(root, {"ports": {name: dict(port) for name, port in sequence["ports"].items()}})
    toml = tmp_path / "aistation.toml"
    toml.write_text(f"[node]\nstate_dir = {json.dumps(str(tmp_path / 'run'))}\n")
    for number, look in enumerate(sequence["looks"]):
        show(root, look)
        answer = aistation("check", "--root", root, "--json", "--config", toml)
        expected, found = look["expected"], answer.json["findings"]
        assert (answer.json["status"], answer.exit_code) == (expected["status"], expected["exit"]), (number, found)
        for wanted in expected.get("findings", []):
            assert_has(found, wanted)
        assert not {f"{f['check']} {f['subject']}" for f in found} & set(expected.get("absent", []))


def test_the_same_boot_of_the_same_node_in_another_folder_is_the_same(tmp_path: Path) -> None:
    toml = tmp_path / "aistation.toml"
    toml.write_text(f"[node]\nstate_dir = {json.dumps(str(tmp_path / 'run'))}\n")
    statuses = []
    for number, downs in enumerate((5, 9, 9)):
        root = tmp_path / f"capture-{number}"
        build_tree(root, {"ports": {"mlx5_0": {"lid": "0x10"}}, "files": {"etc/hostname": f"gpu{number // 2}\n"}})
        show(root, {"boot": "b1", "uptime": 1000 + number, "counters": {"mlx5_0": {"link_downed": downs}}})
        statuses.append(aistation("check", "--root", root, "--json", "--config", toml).json["status"])
    assert statuses == ["ok", "warn", "ok"], "the third one is another node"


def test_without_a_place_to_remember_every_look_is_a_first_one(tmp_path: Path) -> None:
    root = tmp_path / "capture"
    build_tree(root, {"ports": {"mlx5_0": {"lid": "0x10"}}})
    (tmp_path / "file").write_text("")
    toml = tmp_path / "aistation.toml"
    toml.write_text(f"[node]\nstate_dir = {json.dumps(str(tmp_path / 'file/run'))}\n")
    for downs in (0, 100, 200):
        show(root, {"counters": {"mlx5_0": {"link_downed": downs}}})
        assert aistation("check", "--root", root, "--json", "--config", toml).json["status"] == "ok"


@pytest.mark.parametrize(
    "text", ["", "{", '{"version": 2, "trees": {}}', '{"version": 1, "trees": {"x": 3}}', "\x00" * 50]
)
def test_a_damaged_memory_is_a_first_look(tmp_path: Path, text: str) -> None:
    root = tmp_path / "capture"
    build_tree(root, {"ports": {"mlx5_0": {"lid": "0x10"}}})
    put(tmp_path, "run/fabric-captures.json", text)
    toml = tmp_path / "aistation.toml"
    toml.write_text(f"[node]\nstate_dir = {json.dumps(str(tmp_path / 'run'))}\n")
    statuses = []
    for downs in (3, 3, 8):
        show(root, {"counters": {"mlx5_0": {"link_downed": downs}}})
        statuses.append(aistation("check", "--root", root, "--json", "--config", toml).json["status"])
    assert statuses == ["ok", "ok", "warn"]


def test_a_tree_that_was_made_anew_in_the_same_folder_is_another_one(tmp_path: Path) -> None:
    toml = tmp_path / "aistation.toml"
    toml.write_text(f"[node]\nstate_dir = {json.dumps(str(tmp_path / 'run'))}\n")
    root, statuses = tmp_path / "capture", []
    for downs in (0, 11, 200):
        shutil.rmtree(root, ignore_errors=True)
        build_tree(root, {"ports": {"mlx5_0": {"lid": "0x10"}, f"mlx5_1{downs}": {"lid": "0x11"}}})
        show(root, {"counters": {"mlx5_0": {"link_downed": downs}}})
        statuses.append(aistation("check", "--root", root, "--json", "--config", toml).json["status"])
    assert statuses == ["ok"] * 3


def test_a_pause_storm_in_two_captures_of_one_boot(tmp_path: Path) -> None:
    """``ethtool -S`` as a sosreport holds it beside sys/ and proc/."""
    toml = tmp_path / "aistation.toml"
    toml.write_text(f"[node]\nstate_dir = {json.dumps(str(tmp_path / 'run'))}\n")
    hardware = Hardware(tmp_path / "aisim", "gpu1", gpus=0, hcas=2, boot_id="b1")
    hardware.folder.mkdir()
    hardware.roce = True
    hardware.make_healthy()
    bad = []
    for uptime, paused, received in (
        (5000, 10**12, 0),
        (5300, 10**12 + 10**6, 3 * 10**8),
        (5600, 10**12 + 10**8, 6 * 10**8),
    ):
        for hca, tx in (("mlx5_0", paused), ("mlx5_1", 10**12)):
            text = f"NIC statistics:\n     rx_prio3_pause_duration: {received}\n     tx_prio3_pause_duration: {tx}\n"
            put(hardware.root, f"sos_commands/networking/ethtool_-S_{hardware.hca(hca).netdev}", text)
        show(hardware.root, {"boot": "b1", "uptime": uptime, "counters": {}})
        found = aistation("check", "--root", hardware.root, "--json", "--config", toml).json["findings"]
        bad.append([(f["check"], f["subject"], f["evidence"]) for f in found if f["status"] != "ok"])
    assert bad[:2] == [[], []], "pause that is received is no fault of this node"
    assert [(check, subject) for check, subject, _ in bad[2]] == [("fabric.pfc", "mlx5_0/1")]
    assert "sends pause 17 % of the time" in bad[2][0][2]
