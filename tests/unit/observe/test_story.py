"""The story of a job: which gaps count as lost time."""

from __future__ import annotations

from typing import Any

from aistation_slurm.observe.story import from_journal
from aistation_slurm.slurm.client import Job

START = 1_796_091_000


def attempt(start: int, ended: float | None, seen: int = 1) -> dict[str, Any]:
    return {"start_time": START + start, "ended": None if ended is None else START + ended, "seen": seen, "state": "x"}


def test_the_gap_between_two_attempts_is_lost_time() -> None:
    story = from_journal(7, [attempt(0, 100.0), attempt(104, None)], [], [], Job(7, "RUNNING", restart_cnt=1))
    assert (story.idle_s, story.restarts) == (4.0, 1)
    assert [entry.text for entry in story.entries if entry.kind == "running_again"] == ["runs again after 4 s"]


def test_an_attempt_known_by_its_end_alone_tells_no_gap() -> None:
    """It ran for 60 s: that is not time without running."""
    story = from_journal(7, [attempt(0, 100.0), attempt(163, 163.5, seen=0), attempt(168, None)], [], [], None)
    assert story.idle_s == 168 - 163.5
    assert sum(entry.kind == "running_again" for entry in story.entries) == 1
