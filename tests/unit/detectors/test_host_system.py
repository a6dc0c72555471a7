"""Clock, processes and services, from values."""

from __future__ import annotations

import pytest

from aistation_slurm.config import Expect
from aistation_slurm.detectors import host_system
from aistation_slurm.detectors.rates import Look
from aistation_slurm.findings import Status
from aistation_slurm.probes.system import Census, Clock

OK, WARN, FAIL, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.UNKNOWN


@pytest.mark.parametrize(
    ("clock", "status"),
    [
        (Clock(True, 0.0001, "chronyc"), OK),
        (Clock(True, None, "the kernel"), OK),
        (Clock(True, -2.0, "chronyc"), WARN),
        (Clock(False, None, "timedatectl"), WARN),
        (Clock(None), UNKNOWN),
    ],
)
def test_clock(clock: Clock, status: Status) -> None:
    (found,) = host_system.clock_findings(clock, Expect())
    assert (found.status, found.drains) == (status, False)


def test_a_clock_that_was_not_asked_is_left_out() -> None:
    assert list(host_system.clock_findings(None, Expect())) == []


def look(time: float, *stuck: str) -> Look:
    return Look(time, stuck=dict.fromkeys(stuck, "python"))


@pytest.mark.parametrize(
    ("earlier", "status"),
    [
        ([], OK),
        ([look(900.0, "7:1")], OK),
        ([look(600.0, "7:1"), look(800.0, "7:1")], WARN),
        ([look(600.0, "7:1"), Look(700.0), look(800.0, "7:1")], WARN),
        ([look(600.0, "7:1"), look(800.0, "8:1")], OK),
        ([look(600.0, "7:2"), look(800.0, "7:2")], OK),
    ],
    ids=[
        "first look",
        "not long",
        "long",
        "one look without processes",
        "moved in between",
        "another process of that pid",
    ],
)
def test_blocked_for_long(earlier: list[Look], status: Status) -> None:
    census = Census({"7:1": "python"}, total=10)
    (found,) = [f for f in host_system.process_findings(census, earlier, 1000.0, Expect()) if f.check == "host.blocked"]
    assert (found.status, found.drains) == (status, False)
    if status is WARN:
        assert found.evidence == "python (7) for 7 min or more in state D"


def test_too_many_blocked_or_zombies() -> None:
    many = Census({f"{i}:1": "dd" for i in range(101)}, 101, ("sh",), 500)
    found = list(host_system.process_findings(many, [], 1000.0, Expect()))
    assert [(f.check, f.status) for f in found] == [("host.blocked", WARN), ("host.zombies", WARN)]
    assert "sh" in found[1].evidence
    assert list(host_system.process_findings(None, [], 1000.0, Expect())) == []


def test_services() -> None:
    states = {"a": "active", "b": "failed", "c": "inactive", "d": "activating", "e": "? no systemctl on this machine"}
    found = list(host_system.service_findings(states))
    assert [f.status for f in found] == [OK, FAIL, FAIL, WARN, UNKNOWN]
    assert not any(f.drains for f in found)
    assert found[4].evidence == "no systemctl on this machine"
