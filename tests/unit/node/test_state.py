from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from aistation_slurm.errors import StateFileError
from aistation_slurm.findings import Finding, Status
from aistation_slurm.node import state
from tests.unit.node.sim import SimNode


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    return SimNode(tmp_path)


def test_what_is_written_is_read_back(node: SimNode) -> None:
    host = Finding("host.memory", Status.WARN, "memory", "3 % available,\tlimit\n2 %")
    path = node.write_state(node.finding("gpu.xid", 2), host, node.port_finding("fabric.rate", "mlx5_1"))
    read = state.read(str(path))
    assert (read.status, read.mode, read.root) == ("fail", "enforce", str(node.hardware.root))
    assert [(g.minor, g.gres, g.status, g.check) for g in read.gpus] == [
        (0, 0, "ok", "-"),
        (1, 1, "ok", "-"),
        (2, 2, "fail", "gpu.xid"),
        (3, 3, "ok", "-"),
    ]
    assert (read.gpus[2].subject, read.gpus[2].evidence) == (f"GPU2 {node.hardware.gpu(2).pci[:-2]}", "evidence")
    assert [(p.device, p.status, p.rate_gbps) for p in read.ports][:2] == [
        ("mlx5_0/1", "ok", 400.0),
        ("mlx5_1/1", "fail", 400.0),
    ]
    assert [(n.check, n.evidence) for n in read.node_findings] == [("host.memory", "3 % available, limit 2 %")]
    assert read.why_not(time.time(), state.boot_id()) == ""


def test_a_device_with_two_findings_has_two_lines(node: SimNode) -> None:
    read = state.read(str(node.write_state(node.finding("gpu.xid", 1), node.finding("gpu.lost", 1))))
    assert [g.check for g in read.gpus if g.minor == 1] == ["gpu.xid", "gpu.lost"]


def test_gres_indices_follow_gres_conf_and_not_the_minors(node: SimNode) -> None:
    (node.folder / "gres.conf").write_text("Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]\n")
    read = state.read(str(node.write_state()))
    assert {g.minor: g.gres for g in read.gpus} == {2: 0, 3: 1, 0: 2, 1: 3}


def test_the_files_are_readable_by_all_and_writable_by_their_owner_only(node: SimNode) -> None:
    old = os.umask(0o077)
    try:
        path = node.write_state()
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in node.run.iterdir()) == ["report.json", "state"]


@pytest.mark.parametrize("keep", [0, 1, 20, 100, 250, -1, -4, -5])
def test_a_file_cut_anywhere_is_not_used(node: SimNode, keep: int) -> None:
    path = node.write_state(node.finding("gpu.xid", 2))
    text = path.read_text()
    path.write_text(text[:keep])
    with pytest.raises(StateFileError, match=str(path)):
        state.read(str(path))


def test_every_cut_of_the_text_is_noticed(node: SimNode) -> None:
    text = node.write_state(node.finding("gpu.xid", 2)).read_text()
    for end in range(len(text)):
        with pytest.raises(StateFileError):
            state.parse(text[:end], "x")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a node state file"),
        ("hello\nend\n", "not a node state file"),
        ("aistation-state 2 ok 1 b enforce 0\nend\n", "format version 2"),
        ("aistation-state 1 ok now b enforce 0\nend\n", "damaged"),
        ("aistation-state 1 ok 1 b enforce -1\nend\n", "cut short"),
        ("aistation-state 1 ok 1 b enforce 1\ngpu 0 x\nend\n", "damaged"),
        ("aistation-state 1 ok 1 b enforce 1\ngpu a b ok - 0 0\t\t\nend\n", "damaged"),
        ("aistation-state 1 ok 1 b enforce 0\nend\nmore\n", "cut short"),
    ],
)
def test_damage_is_said(text: str, what: str) -> None:
    with pytest.raises(StateFileError, match=what):
        state.parse(text, "/run/aistation/state")


def test_a_newer_writer_may_add_lines() -> None:
    read = state.parse("aistation-state 1 ok 1 b enforce 1\nswitch leaf1 ok\nend\n", "x")
    assert read.gpus == []


@pytest.mark.parametrize(
    ("age_s", "boot", "why"),
    [(0, "this", ""), (100, "this", ""), (151, "this", "old"), (-60, "this", "future"), (0, "other", "earlier boot")],
)
def test_only_a_fresh_state_of_this_boot_is_used(age_s: float, boot: str, why: str) -> None:
    read = state.NodeState("ok", 1000.0 - age_s, boot, "enforce")
    said = read.why_not(1000.0, "this")
    assert (why in said) if why else said == ""


def test_a_file_that_others_may_write_is_not_used(node: SimNode) -> None:
    path = node.write_state()
    path.chmod(0o666)
    with pytest.raises(StateFileError, match="writable by others"):
        state.read(str(path))


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "missing"])
def test_something_else_in_its_place_is_refused_at_once(node: SimNode, kind: str) -> None:
    path = node.write_state()
    target = path.with_name("elsewhere")
    path.rename(target)
    if kind == "link":
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path, 0o644)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(StateFileError):
        state.read(str(path))


def test_hostile_text_cannot_forge_lines(node: SimNode) -> None:
    evil = Finding("gpu.xid", Status.FAIL, "a\ngpu 0 x fail", "b\tc\r\nend\n", device="0000:99:00.0 fail gpu.lost\n")
    read = state.read(str(node.write_state(evil)))
    assert [g.status for g in read.gpus].count("fail") == 1
    assert not any(g.check == "gpu.lost" for g in read.gpus)


def test_a_write_that_fails_leaves_the_old_file(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node.write_state()
    before = path.read_text()

    def full(_fd: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StateFileError, match="No space left"):
        node.write_state(node.finding("gpu.xid", 1))
    monkeypatch.undo()
    assert path.read_text() == before
    assert sorted(p.name for p in node.run.iterdir()) == ["report.json", "state"]
