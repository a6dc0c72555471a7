from __future__ import annotations

import os
from pathlib import Path

import pytest

from aistation_slurm.healing.cards import Cards, identities
from aistation_slurm.probes.nvml import GpuSnapshot, NvmlSnapshot

PCI = "0000:3a:00.0"
WELL = NvmlSnapshot((GpuSnapshot(2, PCI, "GPU-1", "165", vbios="96.00"),), "550.90")
LOST = NvmlSnapshot((GpuSnapshot(2, PCI, lost=True), GpuSnapshot(3)), "550.90")


def test_a_card_that_falls_silent_keeps_what_it_said(tmp_path: Path) -> None:
    cards = Cards(str(tmp_path / "kept"), "gpu1")
    assert cards.known() == {}
    cards.learn(identities(WELL))
    cards.learn(identities(LOST))
    assert cards.known()[PCI]["serial"] == "165"
    cards.learn({PCI: {"serial": "166"}})
    assert cards.known()[PCI] == {"serial": "166"}


def test_what_is_known_is_not_written_again_for_a_day(tmp_path: Path) -> None:
    cards = Cards(str(tmp_path), "gpu1")
    cards.learn(identities(WELL))
    before = os.stat(cards.path).st_ino
    cards.learn(identities(WELL))
    assert os.stat(cards.path).st_ino == before
    os.utime(cards.path, (0, 0))
    assert cards.stale()
    cards.learn(identities(WELL))
    assert not cards.stale()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}'])
def test_a_damaged_file_is_as_none(tmp_path: Path, text: str) -> None:
    cards = Cards(str(tmp_path), "gpu1")
    Path(cards.path).write_text(text, encoding="ascii")
    assert cards.known() == {}


def test_no_place_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    Cards(str(tmp_path / "file"), "gpu1").learn(identities(WELL))
