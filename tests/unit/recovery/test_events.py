"""The spool: whole files, hostile files, files that cannot be read, and the order of arrival."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from aistation_slurm.recovery import events
from aistation_slurm.recovery.events import read_spool, remove

WHOLE = """SPANK_AISTATION_RESUME=auto
SPANK_AISTATION_MAX_RESTARTS=5
JOB_ID=4711
ARRAY_JOB_ID=
UID=20001
NODELIST=gpu[1-2]
EXIT_CODE=256
EXIT_CODE2=1:0
RESTART_COUNT=1
TIME=1796091137
END=1
"""


def put(spool: Path, name: str, text: str, mtime: float = 1000.0) -> Path:
    path = spool / name
    path.write_text(text)
    os.utime(path, (mtime, mtime))
    return path


def test_a_whole_event(tmp_path: Path) -> None:
    path = put(tmp_path, "4711.1-1.ev", WHOLE)
    (event,) = read_spool(tmp_path)
    assert (event.job_id, event.nodes, event.user_id, event.time) == (4711, ("gpu1", "gpu2"), 20001, 1000.0)
    assert (event.exit_code, event.exit_signal, event.restart_count, event.max_restarts) == (1, 0, 1, 5)
    assert event.how == "exit code 1"
    assert path.exists(), "reading removes nothing"
    remove(event)
    remove(event)
    assert list(read_spool(tmp_path)) == []


@pytest.mark.parametrize(
    ("lines", "how"),
    [("EXIT_CODE2=0:9", "signal 9"), ("EXIT_CODE=9", "signal 9"), ("EXIT_CODE=139", "signal 11"), ("EXIT_CODE=0", "exit code 0"),
     ("EXIT_CODE=", "exit code not told"), ("EXIT_CODE=junk", "exit code not told")],
)  # fmt: skip
def test_how_the_script_ended(tmp_path: Path, lines: str, how: str) -> None:
    put(tmp_path, "1.ev", f"JOB_ID=1\n{lines}\nEND=1\n")
    (event,) = read_spool(tmp_path)
    assert event.how == how


@pytest.mark.parametrize(
    "text",
    ["", "JOB_ID=4711\n", WHOLE.replace("END=1\n", ""), WHOLE.replace("4711", "47; rm"), WHOLE.replace("4711", ""),
     WHOLE + "x" * 20000, "\0\xff" * 40],
)  # fmt: skip
def test_what_is_no_event_goes_aside_and_stops_no_other(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "1.ev", text, 500.0)
    put(tmp_path, "2.ev", WHOLE)
    with caplog.at_level(logging.WARNING):
        assert [event.job_id for event in read_spool(tmp_path)] == [4711]
    assert (tmp_path / "bad" / "1.ev").read_text() == text
    assert "not an event; moved to" in caplog.text


def test_later_lines_win_so_a_user_cannot_set_slurms_values(tmp_path: Path) -> None:
    put(tmp_path, "1.ev", "JOB_ID=1\n" + WHOLE)
    assert [event.job_id for event in read_spool(tmp_path)] == [4711]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    put(tmp_path, "1.ev", WHOLE + "SPANK_AISTATION_CKPT_DIR=/x\x0bJOB_ID=2\u2028JOB_ID=3\n")
    assert [event.job_id for event in read_spool(tmp_path)] == [4711]


def test_links_and_other_files_are_not_followed(tmp_path: Path) -> None:
    outside = put(tmp_path, "outside", WHOLE)
    (tmp_path / "1.ev").symlink_to(outside)
    os.mkfifo(tmp_path / "2.ev")
    put(tmp_path, "3.tmp", WHOLE)
    assert list(read_spool(tmp_path)) == []
    assert outside.exists()
    assert (tmp_path / "3.tmp").exists()


def test_order_of_arrival(tmp_path: Path) -> None:
    for name, mtime in (("9.ev", 3.0), ("10.ev", 1.0), ("1.ev", 2.0)):
        put(tmp_path, name, WHOLE.replace("4711", name[:-3]), mtime)
    assert [event.job_id for event in read_spool(tmp_path)] == [10, 1, 9]


def test_an_odd_node_list_does_not_lose_the_event(tmp_path: Path) -> None:
    put(tmp_path, "1.ev", WHOLE.replace("gpu[1-2]", "gpu[1-"))
    (event,) = read_spool(tmp_path)
    assert event.nodes == ()


def test_a_file_that_cannot_be_read_now_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, "1.ev", WHOLE)

    def busy(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("aistation_slurm.recovery.events.os.open", busy)
    with caplog.at_level(logging.WARNING):
        assert list(read_spool(tmp_path)) == list(read_spool(tmp_path)) == []
    assert path.exists()
    assert len(caplog.records) == 1, "said once"
    monkeypatch.undo()
    assert len(list(read_spool(tmp_path))) == 1
    events._warned.clear()


def test_no_spool_is_no_event(tmp_path: Path) -> None:
    assert list(read_spool(tmp_path / "none")) == []
