"""What was done for a job so far, and what its start-up told. Pure.

Two sources: the journal's attempts, and the job's own AdminComment tag, which outlives a lost journal and a change of the
controller. Where they differ the one that tells more restarts counts, since limits must not grow by losing a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from aistation_slurm.slurm import tags

__all__ = ["INFRASTRUCTURE", "Past", "PastAttempt", "Progress", "past_of", "progress_of"]

INFRASTRUCTURE = "infrastructure"
"""The cause that leaves the budget of ``--ais-max-restarts`` alone."""


@dataclass(frozen=True)
class PastAttempt:
    """One attempt as the journal has it. cause: the last judgement's, "" for none. by_us: its restart was ours."""

    start_time: int
    ended: Optional[float]
    seen: bool
    cause: str
    by_us: bool


@dataclass(frozen=True)
class Progress:
    """How far the job's checkpoints have come, by what its start-up published.

    step: the newest step that a start resumed from; None where none did. idle: restarts in a row that resumed from no newer
    one. counted: SLURM_RESTART_COUNT of the last start that is counted here; -1 before the first.
    """

    step: Optional[int] = None
    idle: int = 0
    counted: int = -1


@dataclass(frozen=True)
class Past:
    """restarts: by us, of this job. own: those that use up the job's own budget. by_cause: per cause.

    quick: attempts in a row, the last one included, that ended within ``watchdog.quick_s`` or never ran. first_start: unix
    time of the first attempt that is known, 0 for none.
    """

    restarts: int = 0
    own: int = 0
    by_cause: Mapping[str, int] = field(default_factory=dict)
    quick: int = 0
    first_start: int = 0


def past_of(attempts: Sequence[PastAttempt], tag: Mapping[str, str], quick_s: float) -> Past:
    """attempts: newest first; the first one is the one that is judged now, and its own restart is not counted."""
    before = attempts[1:]
    by_cause: dict[str, int] = {}
    for one in before:
        if one.by_us:
            by_cause[one.cause or INFRASTRUCTURE] = by_cause.get(one.cause or INFRASTRUCTURE, 0) + 1
    restarts = sum(by_cause.values())
    own = restarts - by_cause.get(INFRASTRUCTURE, 0)
    # a restart that was begun for this very attempt has written its own numbers already
    if attempts and _number(tag, "did") != attempts[0].start_time:
        told, told_own = _number(tag, "attempt"), _number(tag, "own")
        restarts, own = max(restarts, told), max(own, min(told_own, told))
        by_cause[INFRASTRUCTURE] = max(by_cause.get(INFRASTRUCTURE, 0), told - told_own)
    quick = 0
    for one in attempts:
        if one.seen and one.ended is not None and one.ended - one.start_time >= quick_s:
            break
        quick += 1
    return Past(restarts, own, by_cause, quick, min((one.start_time for one in attempts), default=0))


def progress_of(tag: Mapping[str, str], comment: str, restart_cnt: int) -> Progress:
    """With the latest start, as the job's Comment tells it, counted in. The text is the user's to write: it only stops.

    restart_cnt: Slurm's; an attempt beyond it has not been, and would hide all that come.
    """
    step = _number(tag, "step") if "step" in tag else None
    # a count beyond Slurm's was taken from a forged Comment by an earlier version
    counted = min(_number(tag, "ran"), restart_cnt) if "ran" in tag else -1
    known = Progress(step, _number(tag, "idle"), counted)
    run = tags.read_run(comment)
    if run is None or run.attempt > restart_cnt or run.attempt <= known.counted:
        return known
    if run.step is not None and (known.step is None or run.step > known.step):
        return Progress(run.step, 0, run.attempt)
    first = known.counted < 0 and run.attempt == 0
    return Progress(known.step, 0 if first else known.idle + 1, run.attempt)


def _number(tag: Mapping[str, str], key: str) -> int:
    text = tag.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
