"""A hung driver is told from a slow one."""

from __future__ import annotations

from typing import Any

import pytest

from aistation_slurm.detectors.driver_hang import finding
from aistation_slurm.findings import Action, Status
from aistation_slurm.probes.pending import Blocked


def blocked(blocked_s: float, still_s: float, looks: int) -> Blocked:
    return Blocked("nvmlInit", 4711, blocked_s, still_s, looks)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ([], Status.OK),
        ([blocked(10, 10, 1)], Status.UNKNOWN),
        ([blocked(29, 29, 2)], Status.UNKNOWN),
        ([blocked(45, 45, 1)], Status.UNKNOWN),
        ([blocked(31, 31, 2)], Status.FAIL),
        ([blocked(60, 5, 4)], Status.UNKNOWN),
        ([blocked(181, 5, 9)], Status.FAIL),
        ([blocked(10, 10, 1), blocked(40, 40, 3)], Status.FAIL),
    ],
    ids=["none", "first look", "too soon", "once", "hangs", "it moves", "moves for ever", "one of two"],
)
def test_verdict(given: list[Blocked], status: Status) -> None:
    found = finding(given, "", confirm_s=30, maintenance="")
    assert (found.check, found.status) == ("gpu.driver_hang", status)
    assert found.drains is (status is Status.FAIL)
    if status is Status.FAIL:
        assert found.action is Action.REBOOT
    if given:
        assert "nvmlInit blocked in the driver" in found.evidence


@pytest.mark.parametrize("options", [{"maintenance": "nvidia-smi --gpu-reset"}, {"late": "nvmlInit did not return"}])
def test_what_explains_it_makes_it_unknown(options: dict[str, Any]) -> None:
    given = [blocked(300, 300, 9)] if "maintenance" in options else []
    found = finding(given, options.get("late", ""), 30, options.get("maintenance", ""))
    assert found.status is Status.UNKNOWN
    assert next(iter(options.values())) in found.evidence
