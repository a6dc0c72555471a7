"""How often and with what progress a job was restarted, by journal and by the job's own tag."""

from __future__ import annotations

import pytest

from aistation_slurm.recovery.past import Past, PastAttempt, Progress, past_of, progress_of


def attempt(start: int, ran: float = 1000.0, cause: str = "infrastructure", by_us: bool = True) -> PastAttempt:
    return PastAttempt(start, start + ran, True, cause, by_us)


NEWEST = attempt(900, by_us=False)


def test_restarts_are_counted_by_cause_and_the_present_attempts_own_is_not() -> None:
    rows = [attempt(900), attempt(700), attempt(500, cause="hang"), attempt(300, by_us=False)]
    assert past_of(rows, {}, 300.0) == Past(2, 1, {"infrastructure": 1, "hang": 1}, 0, 300)


@pytest.mark.parametrize(
    ("tag", "restarts", "own", "infrastructure"),
    [
        ({}, 1, 0, 1),
        ({"attempt": "5", "own": "2"}, 5, 2, 3),
        ({"attempt": "5", "own": "2", "did": "900"}, 1, 0, 1),
        ({"attempt": "1", "own": "9"}, 1, 1, 1),
        ({"attempt": "x", "own": "-3"}, 1, 0, 1),
        ({"attempt": "99999999999999"}, 1, 0, 1),
    ],
)
def test_the_tag_outlives_the_journal(tag: dict[str, str], restarts: int, own: int, infrastructure: int) -> None:
    past = past_of([NEWEST, attempt(500)], tag, 300.0)
    assert (past.restarts, past.own, past.by_cause["infrastructure"]) == (restarts, own, infrastructure)


@pytest.mark.parametrize(
    ("rows", "quick"),
    [
        ([attempt(900)], 0),
        ([attempt(900, 20), attempt(500)], 1),
        ([attempt(900, 20), attempt(500, 20), attempt(100)], 2),
        ([attempt(900), attempt(500, 20)], 0),
        ([PastAttempt(900, 900.0, False, "infrastructure", False), attempt(500, 20)], 2),
    ],
)
def test_quick_attempts_in_a_row(rows: list[PastAttempt], quick: int) -> None:
    assert past_of(rows, {}, 300.0).quick == quick


RUN = "by hand [ais-run a={} s={} v=ok]"


@pytest.mark.parametrize(
    ("tag", "comment", "expected"),
    [
        ({}, "", Progress()),
        ({}, RUN.format(0, "-"), Progress(None, 0, 0)),
        ({}, RUN.format(0, 100), Progress(100, 0, 0)),
        ({}, RUN.format(2, "-"), Progress(None, 1, 2)),
        ({"step": "100", "idle": "1", "ran": "1"}, RUN.format(2, 100), Progress(100, 2, 2)),
        ({"step": "100", "idle": "1", "ran": "1"}, RUN.format(2, 50), Progress(100, 2, 2)),
        ({"step": "100", "idle": "1", "ran": "1"}, RUN.format(2, 101), Progress(101, 0, 2)),
        # the start that is told is the one that was counted: the attempt after it never came to its start-up
        ({"step": "100", "idle": "1", "ran": "2"}, RUN.format(2, 100), Progress(100, 1, 2)),
        ({"step": "100", "idle": "1", "ran": "2"}, "[ais-run a=3 s=1e9 v=ok]", Progress(100, 1, 2)),
    ],
)
def test_progress(tag: dict[str, str], comment: str, expected: Progress) -> None:
    assert progress_of(tag, comment, 3) == expected


def test_a_forged_attempt_does_not_hide_the_true_ones() -> None:
    """The no-progress stop would never come again for a job whose script writes this once."""
    forged = RUN.format(999999999, 1)
    assert progress_of({}, forged, 3) == Progress()
    taken = {"step": "100", "idle": "1", "ran": "999999999"}
    assert progress_of(taken, forged, 3) == Progress(100, 1, 3)
    assert progress_of(taken, RUN.format(4, 100), 4) == Progress(100, 1, 4)
    assert progress_of({"step": "100", "idle": "1", "ran": "4"}, RUN.format(5, 100), 5) == Progress(100, 2, 5)
