"""The public bug reports of areas xid, gpu, ib and roce, through ``klog scan`` and ``check --root``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aistation_slurm.detectors import gpu
from aistation_slurm.findings import Status
from aistation_slurm.probes.nvml import GpuSnapshot, NvmlSnapshot
from tests.unit.cases_health.cases import Run, build_tree, case, runs
from tests.unit.cases_health.commands import aistation


def assert_has(found: Sequence[dict[str, Any]], wanted: dict[str, Any]) -> None:
    """Some row has every wanted field; ``evidence`` only needs to hold the text."""

    def fits(row: dict[str, Any]) -> bool:
        return all(v in row[k] if k == "evidence" else k in row and row[k] == v for k, v in wanted.items())

    assert any(fits(row) for row in found), f"{wanted} is not among {found}"


@pytest.mark.parametrize("run", list(runs("klog")), ids=lambda run: run.id)
def test_kernel_log(run: Run) -> None:
    answer = aistation("klog", "scan", "-", "--json", input=run.given["klog"])
    expected = run.expected
    events = answer.json["events"]
    assert len(events) == expected["count"]
    for event, wanted in zip(events, expected["events"]):
        assert {key: event.get(key) for key in wanted} == wanted
    for wanted in expected.get("distinct", []):
        assert_has(answer.json["distinct"], wanted)
    verdict = answer.json["verdict"]
    assert {key: verdict[key] for key in expected.get("verdict", {})} == expected.get("verdict", {})
    assert answer.exit_code == expected["exit"]


@pytest.mark.parametrize("run", list(runs("tree")), ids=lambda run: run.id)
def test_captured_tree(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "capture"
    build_tree(root, run.given)
    settings = f"{run.given.get('config', '')}\n[node]\nstate_dir = {json.dumps(str(tmp_path / 'run'))}\n"
    (tmp_path / "aistation.toml").write_text(settings, encoding="utf-8")
    answer = aistation("check", "--root", root, "--json", env={"AISTATION_CONFIG": str(tmp_path / "aistation.toml")})
    expected, found = run.expected, answer.json["findings"]
    failed = [f"{f['check']} {f.get('device', f['subject'])}" for f in found if f["status"] == "fail"]
    assert sorted(failed) == sorted(expected.get("failed", []))
    for wanted in expected.get("findings", []):
        assert_has(found, wanted)
    there = {f"{f['check']} {f['subject']}" for f in found}
    assert not there & set(expected.get("absent", []))
    kinds = {port["name"]: port["kind"] for port in answer.json["ports"]}
    assert kinds == {**kinds, **expected.get("kinds", {})}
    assert answer.json["status"] == expected.get("status", "fail")
    assert answer.exit_code == expected["exit"]


def test_020_failed_questions_are_not_unsupported_ones() -> None:
    known = case("020")
    gpus = {name: f"0000:{0xC0 + i:02x}:00.0" for i, name in enumerate(known["nvml"])}
    snapshots = tuple(
        GpuSnapshot(
            i,
            pci=gpus[name],
            minor=int(name[3:]),
            errors=facts.get("errors", {}),
            recovery_action=facts.get("recovery_action", 0),
        )
        for i, (name, facts) in enumerate(known["nvml"].items())
    )
    found = gpu.findings(gpu.GpuFacts(NvmlSnapshot(gpus=snapshots), pci=()))
    bad = [f for f in found if f.status is not Status.OK]
    assert {f.device for f in bad}.isdisjoint(gpus[name] for name in known["expected"]["healthy"])
    for name, checks in known["expected"]["failed"].items():
        mine = [f for f in bad if f.device == gpus[name]]
        assert sorted(f.check for f in mine if f.status is Status.FAIL) == checks
        assert any(known["expected"]["evidence"][name] in f.evidence for f in mine)


CAPTURE = Path(__file__).resolve().parents[4] / "shared/captures/sysfs/class-infiniband-8x-ndr-one-bond"


@pytest.mark.skipif(not CAPTURE.is_dir(), reason="the captures are not beside this checkout")
def test_a_real_node_with_eight_ndr_ports_and_a_bond(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(CAPTURE)
    answer = aistation("check", "--root", tmp_path, "--json")
    states = [f["subject"] for f in answer.json["findings"] if f["check"] == "fabric.port_state"]
    rates = [f["subject"] for f in answer.json["findings"] if f["check"] == "fabric.rate"]
    assert (answer.exit_code, answer.json["status"]) == (0, "ok")
    assert len(states) == 9
    assert sorted(set(states) - set(rates)) == ["mlx5_bond_0/1"]
