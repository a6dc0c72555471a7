"""What ``scontrol show config`` tells of the time that Slurm takes to end a job."""

from __future__ import annotations

import pytest

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.recovery.kill_time import KillTime, kill_time_s
from tests.unit.recovery.sim import FakeClock, Sim

HEAD = "Configuration data as of 2026-12-01T12:00:00\n"


@pytest.mark.parametrize(
    ("lines", "expected_s"),
    [
        ("KillWait                = 30 sec\nUnkillableStepTimeout   = 60 sec\nEpilog                  = (null)\n", 90),
        ("KillWait = 2 sec\nUnkillableStepTimeout = 60 sec\n", 65),
        ("KillWait = 30 sec\nUnkillableStepTimeout = 180 sec\nEpilog = /e.sh\nPrologEpilogTimeout = 65534\n", 270),
        ("KillWait = 30 sec\nUnkillableStepTimeout = 60 sec\nEpilog[0] = /e.sh\nPrologEpilogTimeout = 300\n", 390),
        ("KillWait = 30 sec\nEpilog[0] = /e.sh\nEpilogTimeout = 20 sec\nPrologEpilogTimeout = 300\n", 110),
        ("KillWait = 30 sec\nEpilog[0] = /e.sh\nEpilogTimeout = NONE\n", 150),
    ],
)
def test_the_sum(lines: str, expected_s: float) -> None:
    assert kill_time_s(HEAD + lines) == expected_s


def test_what_tells_nothing_is_no_short_time() -> None:
    with pytest.raises(SlurmUnavailable, match="KillWait"):
        kill_time_s("")


def test_asked_at_most_once_a_minute() -> None:
    clock = FakeClock()
    sim = Sim(clock, None)
    kill_time = KillTime(Slurm(), clock, sim.run)
    assert kill_time.least_s() == 90
    sim.conf["KillWait"] = "120 sec"
    assert kill_time.least_s() == 90
    clock.sleep(61)
    assert (kill_time.least_s(), sim.calls) == (180, ["scontrol show config"] * 2)
