from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

import pytest

from aistation_slurm.detectors.hang import HangLimits, Look, Verdict, Watch, activity, after, judge
from aistation_slurm.probes.gpu_activity import GpuLoad
from aistation_slurm.probes.progress import Source

# Ten minutes wanted; looks every 30 s.
LIMITS = HangLimits(
    timeout_s=600, startup_grace_s=1800, checkpoint_allowance_s=300, computing_allowance_s=900, max_gap_s=60
)
STEP = 30.0
ABSENT, UNKNOWN = Source("absent"), Source("unknown")


def source(version: int, grown: bool = True) -> Source:
    """A source as it is after ``version`` changes."""
    return Source("present", 1000 + version, 3, 100 + (version if grown else 0))


def run(looks: Sequence[Look], limits: HangLimits = LIMITS) -> list[Verdict]:
    """The verdict after each look."""
    watch: Optional[Watch] = None
    verdicts = []
    for look in looks:
        watch = after(watch, look, limits)
        verdicts.append(judge(watch, limits))
    return verdicts


def looks(seconds: float, begin: float = 0.0, **fields: object) -> list[Look]:
    """The same look again and again."""
    count = int(seconds / STEP)
    base = Look(begin, output=source(0))
    return [replace(base, at=begin + n * STEP, **fields) for n in range(count + 1)]  # type: ignore[arg-type]


def first_suspect(looked: Sequence[Look], limits: HangLimits = LIMITS) -> Optional[float]:
    """Time of the first look that is suspect."""
    return next((look.at for look, verdict in zip(looked, run(looked, limits)) if verdict.suspect), None)


def steady(seconds: float, every: int = 1) -> list[Look]:
    """Output grows at each ``every``-th look."""
    return [Look(n * STEP, output=source(n // every)) for n in range(int(seconds / STEP) + 1)]


def then(before: list[Look], seconds: float, **fields: object) -> list[Look]:
    """Nothing changes any more, but for ``fields``."""
    last = before[-1]
    more = [
        replace(last, at=last.at + n * STEP, **fields)  # type: ignore[arg-type]
        for n in range(1, int(seconds / STEP) + 1)
    ]
    return before + more


# ---- a hang


def test_quiet_after_steady_output_is_suspect_at_the_timeout() -> None:
    assert first_suspect(then(steady(3600), 3600)) == 3600 + 600
    verdict = run(then(steady(3600), 600))[-1]
    assert verdict.evidence == "no progress of output for 600 s after output, limit 600 s"


def test_a_job_that_never_moves_is_suspect_when_the_grace_is_over() -> None:
    assert first_suspect(looks(7200)) == 1800


def test_it_is_no_longer_suspect_when_it_moves_again() -> None:
    quiet = then(steady(3600), 900)
    verdicts = run([*quiet, Look(quiet[-1].at + STEP, output=source(999))])
    assert [v.suspect for v in verdicts[-2:]] == [True, False]


def test_both_sources_quiet() -> None:
    looked = [replace(look, checkpoint=source(0)) for look in then(steady(3600), 900)]
    assert first_suspect(looked) == 3600 + 600
    assert "no progress of output and checkpoints" in run(looked)[-1].evidence


def test_judged_by_checkpoints_alone_where_no_output_is() -> None:
    """Output to /dev/null, or to files that Slurm does not know of."""
    saving = [Look(n * STEP, output=ABSENT, checkpoint=source(n // 10)) for n in range(101)]
    assert first_suspect(saving) is None
    assert first_suspect(then(saving, 3600)) == 3000 + 600 + 300


# ---- no false alarm


def test_slow_but_steady_output() -> None:
    assert first_suspect(steady(36000, every=19)) is None


def test_a_long_start_up() -> None:
    assert first_suspect(then(steady(120), 1650)) is None


def test_a_checkpoint_ends_the_start_up_early() -> None:
    saved = [replace(look, checkpoint=source(look.at >= 300)) for look in then(steady(120), 1650)]
    assert first_suspect(saved) == 300 + 600 + 300


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Source("present", 1000, 30, 9000), Source("present", 1001, 20, 6000)),
        (Source("present", 1000, 30, 9000), Source("present", 1000, 31, 9000)),
    ],
    ids=["old ones removed", "a folder of another time"],
)
def test_tidying_the_checkpoint_directory_is_not_a_save(before: Source, now: Source) -> None:
    tidied = [replace(look, checkpoint=before if look.at < 60 else now) for look in then(steady(30), 1700)]
    assert first_suspect(tidied) is None


def test_buffered_output_while_checkpoints_advance() -> None:
    looked = [Look(n * STEP, output=source(0), checkpoint=source(n // 15)) for n in range(400)]
    assert first_suspect(looked) is None


def test_a_checkpoint_that_is_still_written() -> None:
    """Longer than every timeout, and only the size of the newest file grows."""
    written = [
        replace(look, checkpoint=Source("present", 2000 + n, 8, 10**9 * n))
        for n, look in enumerate(then(steady(3600), 7200))
    ]
    assert first_suspect(written) is None


def test_what_comes_after_a_checkpoint_has_its_allowance() -> None:
    last_save = then(
        [*steady(3600)[:-1], Look(3600, output=source(119), checkpoint=source(1))],
        3600,
    )
    assert first_suspect(last_save) == 3600 + 600 + 300


def test_an_evaluation_on_the_gpus_has_its_allowance_and_no_more() -> None:
    assert first_suspect(then(steady(3600), 3600, gpus="computing")) == 3600 + 600 + 900


def test_a_pause_within_an_evaluation_is_not_taken_for_its_end() -> None:
    evaluates = then(then(steady(3600), 630, gpus="computing"), 3600, gpus="idle")
    assert first_suspect(evaluates) == 3600 + 630 + 600


@pytest.mark.parametrize("state", ["idle", "mixed", "spinning", ""])
def test_gpus_alone_neither_shorten_nor_lengthen(state: str) -> None:
    assert first_suspect(then(steady(3600), 3600, gpus=state)) == 3600 + 600


def test_a_suspended_job() -> None:
    suspended = then(steady(3600), 36000, stopped=True)
    assert first_suspect(suspended) is None
    assert first_suspect(then(suspended, 3600, stopped=False)) == suspended[-1].at + STEP + 600


@pytest.mark.parametrize(
    "fields",
    [{"output": UNKNOWN}, {"checkpoint": UNKNOWN}, {"output": ABSENT}],
    ids=["output unknown", "checkpoints unknown", "nothing to judge by"],
)
def test_a_file_system_that_does_not_answer_is_no_evidence(fields: dict[str, Source]) -> None:
    looked = [replace(look, checkpoint=ABSENT) for look in steady(3600)]
    assert first_suspect(then(looked, 36000, **fields)) is None


def test_answers_between_hung_looks_do_not_add_the_hung_time() -> None:
    looked = [replace(look, output=UNKNOWN) if n % 2 else look for n, look in enumerate(then(steady(3600), 36000))]
    assert first_suspect(looked) is None


def test_no_output_file_and_no_checkpoint_directory() -> None:
    assert first_suspect(looks(36000, output=ABSENT)) is None


def test_a_file_that_appears_is_progress() -> None:
    appears = then(steady(3600), 570) + [
        replace(look, at=look.at + 4170 + STEP, output=source(119), checkpoint=source(0)) for look in looks(60)
    ]
    assert first_suspect(appears) is None


@pytest.mark.parametrize("jump_s", [3600.0, 10**6])
def test_an_agent_that_slept(jump_s: float) -> None:
    """One gap between looks counts for at most ``max_gap_s``, whatever happened meanwhile."""
    busy = steady(3600)
    asleep = [replace(busy[-1], at=3600 + jump_s), replace(busy[-1], at=3600 + jump_s + STEP)]
    assert first_suspect(busy + asleep) is None


def test_a_clock_that_goes_back() -> None:
    assert first_suspect([*steady(3600), *looks(570, begin=100, output=source(120))]) is None


def test_files_with_times_of_another_clock() -> None:
    """A file server's clock that is behind, or was set back: any change is progress."""
    looked = [Look(n * STEP, output=Source("present", 10**6 - n, 1, 50)) for n in range(400)]
    assert first_suspect(looked) is None


# ---- spinning GPUs


def test_spinning_shortens_the_timeout_only_where_configured() -> None:
    spinning = then(steady(3600), 3600, gpus="spinning")
    limits = replace(LIMITS, spin_timeout_s=120)
    assert first_suspect(spinning) == 3600 + 600
    assert first_suspect(spinning, limits) == 3600 + STEP + 120
    assert "all its GPUs here are busy at idle power" in run(spinning, limits)[-1].evidence


def test_spinning_is_not_counted_while_there_is_progress_or_work() -> None:
    limits = replace(LIMITS, spin_timeout_s=120)
    moving = [replace(look, gpus="spinning") for look in steady(3600, every=3)]
    assert first_suspect(moving, limits) is None
    waits = then(steady(3600), 570)
    between = [replace(look, gpus="computing" if n % 4 == 0 else "spinning") for n, look in enumerate(waits)]
    assert first_suspect(between, limits) is None


def test_spinning_during_start_up() -> None:
    assert first_suspect(looks(1770, gpus="spinning"), replace(LIMITS, spin_timeout_s=120)) is None


def load(utilisation: Optional[float], power: Optional[float], limit: Optional[float] = 700.0) -> GpuLoad:
    return GpuLoad(utilisation, power, limit)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([load(100, 120), load(100, 115)], "spinning"),
        ([load(100, 120), load(0, 70)], "mixed"),
        ([load(100, 120), load(100, 650)], "computing"),
        ([load(0, 72), load(0, 70)], "idle"),
        ([load(None, None), load(100, 650)], "computing"),
        ([load(100, 120), load(None, 120)], ""),
        ([load(100, 120), load(100, None)], ""),
        ([load(100, 120, 0.0)], ""),
        ([], ""),
    ],
)
def test_what_the_gpus_do(gpus: list[GpuLoad], expected: str) -> None:
    assert activity(gpus, 30.0) == expected
