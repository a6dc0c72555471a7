"""The story of a job: which gaps count as lost time."""

from __future__ import annotations

from typing import Any

from aistation_slurm.observe.story import from_journal, from_slurm
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


def test_a_user_is_told_in_short_from_slurms_own_fields() -> None:
    job = Job(
        7,
        "RUNNING",
        nodes=("gpu3",),
        restart_cnt=2,
        admin_comment="[ais resume=auto max=3 attempt=2 act=start why=gpu.lost@gpu2 own=1 step=100 idle=1]",
        comment="mine [ais: restart 2 away from gpu2: ais:gpu.lost GPU3] [ais-run a=2 s=100 v=ok]",
    )
    told = [entry.text for entry in from_slurm(job).entries]
    assert told == [
        "resumes with auto, at most 3 restarts",
        "restart 2: start because of gpu.lost@gpu2; 1 of them not for the machine's faults",
        "1 restarts in a row without a newer checkpoint than step 100",
        "attempt 2 resumed from step 100 (ok)",
        "restart 2 away from gpu2: ais:gpu.lost GPU3",
        "RUNNING on gpu3, started 3 times",
    ]
