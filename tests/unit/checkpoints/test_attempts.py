"""Which checkpoints a job's own attempts show to be bad, and that no content of the attempts file breaks anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Optional

import pytest

from aistation_slurm.checkpoints.attempts import (
    ATTEMPTS,
    Given,
    ended,
    failed_twice,
    given_to,
    read,
    record,
    stamp,
)


def made(root: Path, *steps: int) -> None:
    for step in steps:
        folder = root / f"step-{step}"
        folder.mkdir()
        (folder / "weights").write_text(str(step), encoding="utf-8")
        os.utime(folder / "weights", (step, step))
        os.utime(folder, (step, step))


def attempts(root: Path, *given: tuple[Optional[int], str]) -> list[Given]:
    """(step that it was given, how it ended), oldest first; the stamp is the one that the checkpoint has now."""
    return [
        Given(n, "", None, 0, 1e6, how)
        if step is None
        else Given(n, f"{root}/step-{step}", step, stamp(f"{root}/step-{step}"), 1e6, how)
        for n, (step, how) in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "failed"),
    [
        ([], []),
        ([(200, "")], []),
        ([(200, ""), (200, "")], [200]),
        ([(200, "user"), (200, "hang")], [200]),
        ([(200, "unknown"), (200, "")], [200]),
        ([(200, "infra"), (200, "")], []),
        ([(200, "infra"), (200, "infra"), (200, "infra")], []),
        ([(200, "preempted"), (200, "requeued"), (200, "")], []),
        ([(200, ""), (200, "infra"), (200, "user")], [200]),
        # something newer was saved in between: 200 had been loaded
        ([(200, ""), (300, ""), (300, "infra")], []),
        ([(200, ""), (200, ""), (300, "")], []),
        # rolled back: 200 stays failed, whatever became of 100
        ([(200, ""), (200, ""), (100, "")], [200]),
        ([(200, ""), (200, ""), (100, "infra")], [200]),
        ([(200, ""), (200, ""), (100, ""), (100, "")], [100, 200]),
        # from 100 on it went on past 200
        ([(200, ""), (200, ""), (100, ""), (300, "")], []),
        # attempts that were given nothing
        ([(None, ""), (None, ""), (200, "")], []),
    ],
    ids=str,
)
def test_a_checkpoint_given_twice_without_progress_has_failed(
    tmp_path: Path, given: list[tuple[Optional[int], str]], failed: list[int]
) -> None:
    made(tmp_path, 100, 200, 300)
    found = failed_twice(attempts(tmp_path, *given))
    assert sorted(found) == [f"{tmp_path}/step-{step}" for step in failed]


def test_a_checkpoint_saved_again_under_its_name_is_another_one(tmp_path: Path) -> None:
    made(tmp_path, 100, 200)
    given = attempts(tmp_path, (200, ""), (200, ""))
    assert failed_twice(given)
    # in place, as torch.save does: the folder's own time stays
    before = (tmp_path / "step-200").stat().st_mtime_ns
    (tmp_path / "step-200/weights").write_text("better", encoding="utf-8")
    assert (tmp_path / "step-200").stat().st_mtime_ns == before
    assert failed_twice(given) == {}


def test_a_record_without_a_stamp_is_judged_by_its_time(tmp_path: Path) -> None:
    made(tmp_path, 200)
    for time, count in ((300.0, 1), (100.0, 0)):
        given = [Given(n, f"{tmp_path}/step-200", 200, 0, time) for n in (0, 1)]
        assert len(failed_twice(given)) == count


def test_a_checkpoint_of_one_file_and_one_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_text("x", encoding="utf-8")
    one = str(tmp_path / "last.ckpt")
    given = [Given(n, one, None, stamp(one), 1e6) for n in (0, 1)]
    assert failed_twice(given) == {one: 2}
    os.unlink(one)
    assert failed_twice(given) == {}


def test_the_stamp_of_nested_shards_is_the_latest_and_bounded(tmp_path: Path) -> None:
    for rank in range(200):
        (tmp_path / f"mp_rank_{rank:03}").mkdir()
    (tmp_path / "mp_rank_000/model").write_text("x", encoding="utf-8")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.utime(tmp_path / "mp_rank_000/model", (4e9, 4e9))
    assert stamp(str(tmp_path)) != 4 * 10**18  # 64 entries are looked at, no more
    for rank in range(50, 200):
        (tmp_path / f"mp_rank_{rank:03}").rmdir()
    assert stamp(str(tmp_path)) == 4 * 10**18


def test_a_launch_that_did_not_come_to_the_script_is_no_attempt_of_its_own() -> None:
    entries = [
        {"attempt": 0, "path": "/a"},
        {"attempt": 1, "path": "/a"},
        {"attempt": 1, "path": "/b", "last": "infra"},
    ]
    assert [(g.attempt, g.path, g.ended) for g in given_to(entries, "user")] == [(0, "/a", ""), (1, "/b", "user")]


def test_each_record_tells_how_the_attempt_before_it_ended() -> None:
    entries = [{"attempt": 0}, {"attempt": 1, "last": "infra"}, {"attempt": 2, "last": "user"}]
    assert [g.ended for g in given_to(entries, "hang")] == ["infra", "user", "hang"]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"attempt": "x", "path": 7, "step": "many", "stamp": None, "time": "now", "last": ["infra"]},
        {"attempt": True, "path": None, "step": 1e300, "stamp": float("inf"), "time": float("nan"), "last": {}},
        {"attempt": -1, "path": "/\x00", "step": -5, "stamp": -1, "time": -1e18, "last": "x" * 100_000},
    ],
    ids=["empty", "other types", "no numbers", "out of range"],
)
def test_values_of_any_type_are_taken(entry: dict[str, Any]) -> None:
    given = given_to([entry, {**entry, "attempt": 5}, {**entry, "attempt": 6}], "")
    assert failed_twice(given) == {}


@pytest.mark.parametrize(
    ("before", "tag_text", "how"),
    [
        (None, "resume=auto last=infra", ""),
        ({"tag": "resume=auto"}, "resume=auto", ""),
        ({"tag": "resume=auto"}, "resume=auto attempt=1 last=infra", "infra"),
        ({"tag": "resume=auto attempt=1 last=infra"}, "resume=auto attempt=2 last=user", "user"),
        # Slurm or a person made this restart: what stands there tells of an older one
        ({"tag": "resume=auto attempt=1 last=infra"}, "resume=auto attempt=1 last=infra", ""),
        # the agent of a node noted its fault under that very attempt
        ({"tag": "resume=auto", "start": 1000}, "resume=auto fault=gpu.lost@gpu2@1000", "infra"),
        ({"tag": "resume=auto", "start": 2000}, "resume=auto fault=gpu.lost@gpu2@1000", ""),
        ({"tag": "resume=auto", "start": 0}, "resume=auto fault=gpu.lost@gpu2@0", ""),
        ({}, "last=hang", "hang"),
        ({"tag": "resume=auto"}, "resume=auto attempt=1 act=requeue", "infra"),
        ({"tag": ["x"], "start": {}}, "last=hang", "hang"),
    ],
)
def test_how_the_last_attempt_ended(before: Optional[dict[str, Any]], tag_text: str, how: str) -> None:
    tag = dict(word.split("=", 1) for word in tag_text.split())
    assert ended(before, tag, tag_text) == how


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    first, second = {"attempt": 0, "path": "/a\ud800"}, {"attempt": 1}
    assert record(tmp_path, first)
    with (tmp_path / ATTEMPTS).open("ab") as file:
        file.write(b'{"cut": ')  # a node that lost power while it wrote
    assert record(tmp_path, second)
    assert read(tmp_path) == [first, second]


@pytest.mark.parametrize(
    "content",
    [b"\x00" * 1000, b"\xff\xfe\n", b"[" * 300_000, b'{"a": 1' + b"1" * 300_000 + b"}", b"\n" * 1000, b"null\n[]\n3\n"],
    ids=["zeros", "no text", "nested", "a long number", "empty lines", "other json"],
)
def test_any_content_is_survived(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ATTEMPTS).write_bytes(content)
    assert read(tmp_path) == []
    assert record(tmp_path, {"attempt": 1})
    assert read(tmp_path) == [{"attempt": 1}]


def test_of_a_huge_file_the_end_is_read(tmp_path: Path) -> None:
    line = json.dumps({"job": "other", "attempt": 1}) + "\n"
    (tmp_path / ATTEMPTS).write_text(line * 300_000, encoding="utf-8")
    record(tmp_path, {"job": "mine", "attempt": 2})
    entries = read(tmp_path)
    assert 1000 < len(entries) < 10_000
    assert entries[0] == {"job": "other", "attempt": 1}
    assert entries[-1] == {"job": "mine", "attempt": 2}


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "another user's", "unwritable folder"])
def test_what_is_no_file_of_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    name = tmp_path / ATTEMPTS
    target = tmp_path / "target"
    target.write_text('{"attempt": 1}\n', encoding="utf-8")
    if kind == "link":
        name.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(name)
    elif kind == "folder":
        name.mkdir()
    elif kind == "another user's":
        name.write_text('{"attempt": 1}\n', encoding="utf-8")
        if os.geteuid():
            pytest.skip("needs root to give a file away")
        os.chown(name, 12345, 12345)
    else:
        tmp_path = tmp_path / "absent"
    assert read(tmp_path) == []
    assert record(tmp_path, {"attempt": 2}) == (kind == "another user's")  # root may write there
    assert target.read_text(encoding="utf-8") == '{"attempt": 1}\n'
