"""Writing: by rename, the old file kept, nothing written that Slurm would refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aistation_slurm.errors import TopologyError
from aistation_slurm.topology import write
from tests.unit.cases_health.commands import aistation

TABLE = "node,leaf,spine\nn[1-4],leaf1,spine\nn[5-8],leaf2,spine\n".replace("n[1-4]", '"n[1-4]"').replace(
    "n[5-8]", '"n[5-8]"'
)


def test_the_old_file_is_kept_with_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "topology.conf"
    target.write_text("SwitchName=old Nodes=n1\n", encoding="utf-8")
    target.chmod(0o640)
    answer = aistation("topology", "import", "--from", "table", "-", "--output", target, input=TABLE)
    assert answer.exit_code == 0
    assert target.read_text(encoding="utf-8").splitlines()[1:] == [
        "SwitchName=leaf1 Nodes=n[1-4]",
        "SwitchName=leaf2 Nodes=n[5-8]",
        "SwitchName=spine Switches=leaf[1-2]",
    ]
    assert target.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "topology.conf.old").read_text(encoding="utf-8") == "SwitchName=old Nodes=n1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["topology.conf", "topology.conf.old"]


def test_a_file_that_is_no_topology_can_be_replaced(tmp_path: Path) -> None:
    target = tmp_path / "topology.conf"
    target.write_text("{broken", encoding="utf-8")
    answer = aistation("topology", "import", "--from", "table", "-", "--output", target, input=TABLE)
    assert answer.exit_code == 0
    assert "leaf1" in target.read_text(encoding="utf-8")


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "site" / "topology.conf"
    real.parent.mkdir()
    real.write_text("SwitchName=old Nodes=n1\n", encoding="utf-8")
    link = tmp_path / "topology.conf"
    link.symlink_to(real)
    assert aistation("topology", "import", "--from", "table", "-", "--output", link, input=TABLE).exit_code == 0
    assert link.is_symlink()
    assert "leaf1" in real.read_text(encoding="utf-8")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    answer = aistation("topology", "import", "--from", "table", "-", "--output", tmp_path / "no/x.conf", input=TABLE)
    assert answer.exit_code == 3
    assert "cannot be written" in answer.error


def test_a_rename_that_fails_leaves_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "topology.conf"
    target.write_text("old\n", encoding="utf-8")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(TopologyError, match="No space left"):
        write.replace_file(target, "new\n")
    monkeypatch.undo()
    assert target.read_text(encoding="utf-8") == "old\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_slurm_would_refuse_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "topology.conf"
    target.write_text("old\n", encoding="utf-8")
    bad = '{"switches": [{"name": "a", "children": ["a"]}]}'
    answer = aistation("topology", "import", "--from", "table", "-", "--output", target, input=bad)
    assert answer.exit_code == 1
    assert target.read_text(encoding="utf-8") == "old\n"
    assert answer.output == ""


def test_a_picture(tmp_path: Path) -> None:
    target = tmp_path / "tree.svg"
    text = "SwitchName=a&b Nodes=n[1-2]\nSwitchName=top Switches=a&b\n"
    assert aistation("topology", "show", "-", "--svg", target, input=text).exit_code == 0
    svg = target.read_text(encoding="utf-8")
    assert svg.count("<rect") == 3
    assert "a&amp;b" in svg
    assert "a&b" not in svg


def test_the_tree_in_the_terminal() -> None:
    text = "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n3\nSwitchName=top Switches=leaf[1-2]\n"
    lines = aistation("topology", "show", "-", input=text).output.splitlines()
    assert [line.rstrip() for line in lines] == [
        "stdin: tree, 3 switches (2 leaves), 3 nodes",
        "└── top  level 1, 2 below",
        "    ├── leaf1  n[1-2] (2 nodes)",
        "    └── leaf2  n3 (1 node)",
    ]
