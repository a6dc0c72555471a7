"""Which of two watchdogs acts: every answer of ``scontrol ping``, and what each host makes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import product
from typing import Union

import pytest

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.recovery.primary import (
    ACTING_LOOK_S,
    ALONE_LOOK_S,
    FRESH_S,
    STANDBY_LOOK_S,
    Controller,
    Primary,
    Turn,
    read_controllers,
    turn_of,
)
from tests.unit.recovery.sim import FakeClock

# as root, which also gets the banner; Slurm 22.05.8
BOTH = "Slurmctld(primary) at ctl1 is UP\nSlurmctld(backup) at ctl2 is UP\n"
FIRST_DOWN = """Slurmctld(primary) at ctl1 is DOWN
Slurmctld(backup) at ctl2 is UP
*****************************************
** RESTORE SLURMCTLD DAEMON TO SERVICE **
*****************************************
"""
NONE_UP = "Slurmctld(primary) at ctl1 is DOWN\nSlurmctld(backup) at ctl2 is DOWN\n"
ALONE = "Slurmctld(primary) at ctl1 is UP\n"
CONFIG = "ClusterName             = one\nSlurmctldHost[0]        = ctl1(10.77.0.11)\n\n" + FIRST_DOWN
Answer = Union[str, Exception]


class Scontrol:
    """``ping`` and ``config`` are what the commands answer now; ``asked`` what was asked."""

    def __init__(self, ping: Answer, config: Answer = "") -> None:
        self.ping = ping
        self.config = config or SlurmUnavailable("scontrol did not answer within 10 s")
        self.asked: list[str] = []
        self.takes: Callable[[], None] = lambda: None

    def run(self, argv: Sequence[str], *, timeout_s: float, conf: str = "") -> str:
        self.takes()
        words = " ".join(argv[1:])
        assert (argv[0], conf) == ("/usr/bin/scontrol", "")
        assert timeout_s == 10.0 if words == "ping" else timeout_s <= 10.0
        self.asked.append(words)
        answer = {"ping": self.ping, "show config": self.config}[words]
        if isinstance(answer, Exception):
            raise answer
        return answer


def primary(scontrol: Scontrol, name: str, clock: FakeClock) -> Primary:
    return Primary(Slurm(), clock, (name,), scontrol.run)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_lines_of_ping() -> None:
    assert read_controllers(FIRST_DOWN) == (Controller("ctl1", False), Controller("ctl2", True))
    assert read_controllers(CONFIG) == read_controllers(FIRST_DOWN)
    three = "Slurmctld(primary) at a.site is UP\nSlurmctld(backup1) at b is UP\nSlurmctld(backup2) at c-1 is DOWN\n"
    assert [one.host for one in read_controllers(three)] == ["a.site", "b", "c-1"]
    assert read_controllers("slurmctld is fine") == ()


def test_one_controller_always_acts_and_is_asked_about_once(clock: FakeClock) -> None:
    scontrol = Scontrol(ALONE)
    one = primary(scontrol, "login7", clock)
    for _ in range(100):
        assert one.acts()
        assert one.acts(FRESH_S)
        clock.sleep(ALONE_LOOK_S / 101)
    assert scontrol.asked == ["ping"]
    scontrol.ping = SlurmUnavailable("scontrol did not answer within 10 s")
    clock.sleep(ALONE_LOOK_S)
    assert one.acts()


def test_one_controller_that_is_down_at_the_start(clock: FakeClock) -> None:
    scontrol = Scontrol(SlurmRefused("scontrol ping: Slurmctld(primary) at ctl1 is DOWN"))
    assert primary(scontrol, "ctl1", clock).acts()


def test_a_backup_that_is_added_is_noticed_at_sighup(clock: FakeClock) -> None:
    scontrol = Scontrol(ALONE)
    one = primary(scontrol, "ctl2", clock)
    assert one.acts()
    scontrol.ping = BOTH
    assert one.acts()
    one.ask_again()
    assert not one.acts()


def test_the_first_acts_and_the_backup_stands_by_at_one_request_in_ten_seconds(clock: FakeClock) -> None:
    scontrol = Scontrol(BOTH)
    backup = primary(scontrol, "ctl2", clock)
    for _ in range(600):
        assert not backup.acts()
        clock.sleep(0.2)
    assert len(scontrol.asked) <= 120 / STANDBY_LOOK_S
    assert backup.state == "stands by: ctl1 comes before this host and answers"
    scontrol.asked.clear()
    first = primary(scontrol, "ctl1", clock)
    for _ in range(600):
        assert first.acts()
        clock.sleep(0.2)
    assert len(scontrol.asked) <= 120 / ACTING_LOOK_S


def test_before_a_change_the_answer_is_fresh(clock: FakeClock) -> None:
    scontrol = Scontrol(BOTH)
    first = primary(scontrol, "ctl1", clock)
    assert first.acts()
    clock.sleep(FRESH_S + 0.1)
    scontrol.ping = SlurmUnavailable("scontrol did not answer within 10 s")
    assert first.acts()
    assert not first.acts(FRESH_S)


def test_a_backup_in_standby_does_not_act_while_the_primary_restarts(clock: FakeClock) -> None:
    """ping says UP of it in standby too; only what is in control answers the proof."""
    scontrol = Scontrol(FIRST_DOWN)
    backup = primary(scontrol, "ctl2", clock)
    for _ in range(10):
        assert not backup.acts()
        clock.sleep(STANDBY_LOOK_S)
    assert "show config" in scontrol.asked
    assert backup.state.endswith("ctl1 does not answer, and this host is not in control yet")
    scontrol.ping = BOTH
    clock.sleep(STANDBY_LOOK_S)
    assert not backup.acts()


def test_the_proof_answered_by_a_primary_that_came_back_is_none(clock: FakeClock) -> None:
    backup = primary(Scontrol(FIRST_DOWN, CONFIG.replace(FIRST_DOWN, BOTH)), "ctl2", clock)
    assert not backup.acts()


def test_a_take_over_and_back(clock: FakeClock) -> None:
    scontrol = Scontrol(BOTH)
    backup = primary(scontrol, "ctl2", clock)
    assert not backup.acts()
    scontrol.ping, scontrol.config = FIRST_DOWN, CONFIG
    clock.sleep(STANDBY_LOOK_S)
    assert backup.acts()
    assert backup.state == "acts: this host is in control (controllers ctl1, ctl2)"
    scontrol.asked.clear()
    clock.sleep(FRESH_S + 1)
    assert backup.acts(FRESH_S)
    assert scontrol.asked == ["ping"]  # the proof is needed once
    scontrol.ping, scontrol.config = BOTH, CONFIG.replace(FIRST_DOWN, BOTH)
    assert backup.acts()
    clock.sleep(FRESH_S + 1)
    assert not backup.acts(FRESH_S)


def test_the_time_that_a_host_without_power_costs(clock: FakeClock) -> None:
    scontrol = Scontrol(FIRST_DOWN, CONFIG)
    scontrol.takes = lambda: clock.sleep(2.0)
    backup = primary(scontrol, "ctl2", clock)
    assert backup.acts()
    assert backup.detour_s == 2.0
    scontrol.ping, scontrol.takes = BOTH, lambda: clock.sleep(3.0)
    assert not primary(scontrol, "ctl2", clock).detour_s
    first = primary(scontrol, "ctl1", clock)
    assert first.acts()
    assert first.detour_s == 0.0  # a slow controller is no detour


@pytest.mark.parametrize(
    "answer",
    [
        SlurmUnavailable("scontrol did not answer within 10 s"),
        SlurmRefused(f"scontrol ping: {' '.join(NONE_UP.split())}"),
        SlurmRefused("scontrol ping: invalid keyword"),
        "",
        "some future text",
    ],
)
@pytest.mark.parametrize("name", ["ctl1", "ctl2"])
def test_what_is_not_known_is_a_no_and_said_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, answer: Answer, name: str
) -> None:
    scontrol = Scontrol(BOTH)
    one = primary(scontrol, name, clock)
    one.acts()
    scontrol.ping = answer
    caplog.clear()
    for _ in range(20):
        clock.sleep(ACTING_LOOK_S)
        assert not one.acts()
    said = [row for row in caplog.records if row.levelno == logging.WARNING]
    assert len(said) == 1
    assert "stands by until it is known which controller is in control" in said[0].message


def test_a_host_that_is_no_controller_stands_by(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    one = primary(Scontrol(BOTH), "login7", clock)
    assert not one.acts()
    assert "this host (login7) is none of the controllers ctl1, ctl2" in caplog.text


def test_full_and_short_names() -> None:
    controllers = read_controllers("Slurmctld(primary) at ctl1.site.org is UP\nSlurmctld(backup) at ctl2 is UP\n")
    assert turn_of(controllers, ("ctl1.site.org", "ctl1")) is Turn.FIRST
    assert turn_of(controllers, ("ctl2.site.org", "ctl2")) is Turn.STANDBY
    assert turn_of(controllers, ("ctl1.other.org", "ctl1")) is Turn.STRANGER


@pytest.mark.parametrize("ups", list(product([True, False], repeat=3)))
def test_never_two_by_the_same_answer(ups: tuple[bool, ...]) -> None:
    controllers = [Controller(f"ctl{i}", up) for i, up in enumerate(ups)]
    turns = [turn_of(controllers, (one.host,)) for one in controllers]
    assert sum(turn in (Turn.FIRST, Turn.CANDIDATE) for turn in turns) == (1 if any(ups) else 0)
