from __future__ import annotations

from pathlib import Path

import pytest

from aistation_slurm.node import refusals
from aistation_slurm.node.refusals import Refusal, comment_field, keep, read_all


def refusal(job_id: int = 42, time: int = 1000, boot: str = "boot", progress: str = refusals.OPEN) -> Refusal:
    return Refusal(
        job_id, time, boot, "gpu.xid", "GPU1 0000:0f:00", "ais:gpu.xid GPU1 0000:0f:00 64 [abcdef]", progress
    )


def test_a_record_is_read_back(tmp_path: Path) -> None:
    keep(str(tmp_path / "run"), refusal(progress=refusals.TOLD))
    (found,) = read_all(str(tmp_path / "run"), "boot")
    wanted = refusal(progress=refusals.TOLD)
    assert {n: getattr(found, n) for n in Refusal.__slots__} == {n: getattr(wanted, n) for n in Refusal.__slots__}


def test_records_of_another_boot_do_not_count(tmp_path: Path) -> None:
    keep(str(tmp_path), refusal(boot="before"))
    assert read_all(str(tmp_path), "boot") == []


def test_a_job_has_one_record_the_last(tmp_path: Path) -> None:
    for time in (1000, 2000):
        keep(str(tmp_path), refusal(time=time))
    assert [r.time for r in read_all(str(tmp_path), "boot")] == [2000]


def test_the_newest_records_are_kept(tmp_path: Path) -> None:
    for number in range(1, 50):
        keep(str(tmp_path), refusal(job_id=number, time=1000 + number))
    found = read_all(str(tmp_path), "boot")
    assert [r.job_id for r in found] == list(range(18, 50))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42 1000 boot open 0\tgpu.xid\tGPU1\tais:gpu.xid",
        "42 1000 boot open 0\tgpu.xid\tGPU1\n",
        "42 1000 boot perhaps 0\tgpu.xid\tGPU1\tais:gpu.xid\n",
        "42 soon boot open 0\tgpu.xid\tGPU1\tais:gpu.xid\n",
        "\0\0\0",
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    keep(str(tmp_path), refusal(job_id=41))
    (tmp_path / "refusals/42").write_text(text)
    assert [r.job_id for r in read_all(str(tmp_path), "boot")] == [41]


@pytest.mark.parametrize(
    ("comment", "refused", "fresh"),
    [
        ("", [(42, 1000)], "[ais refused=42@1000]"),
        ("rack 12", [(42, 1000), (43, 1001)], "rack 12 [ais refused=42@1000,43@1001]"),
        ("[ais refused=42@1000] x", [(42, 1000)], None),
        ("[ais refused=42@1000] x", [(42, 2000)], "[ais refused=42@2000] x"),
        ("", [], None),
        ("", [(0, 1000)], None),
        ("bad \ufffd byte", [(42, 1000)], None),
        ("x" * 16384, [(42, 1000)], None),
    ],
)
def test_the_nodes_comment_is_only_added_to(comment: str, refused: list[tuple[int, int]], fresh: object) -> None:
    assert comment_field(comment, refused) == fresh
