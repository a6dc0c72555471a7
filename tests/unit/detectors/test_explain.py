"""Every check can be explained, and every limit that is named exists."""

from __future__ import annotations

import pytest

from aistation_slurm.config import CheckRule, Config
from aistation_slurm.detectors import ALL
from aistation_slurm.detectors.explain import SOURCES, explain
from aistation_slurm.findings import Finding, Scope, Status


@pytest.mark.parametrize("check", ALL)
def test_each_check_has_a_source_and_its_limits_exist(check: str) -> None:
    assert check in SOURCES
    why = explain(Finding(check, Status.FAIL), Config())
    assert why.facts
    assert why.means == ALL[check]
    assert set(why.limits) == set(SOURCES[check].limits)


def test_nothing_is_explained_that_is_no_check() -> None:
    assert set(SOURCES) == set(ALL)


def test_who_acts_and_the_rule_of_the_site() -> None:
    config = Config(checks={"gpu.*": CheckRule(severity="warn")})
    assert explain(Finding("gpu.lost", Status.FAIL), config).acts == "this node drains itself for it"
    assert "controller" in explain(Finding("host.disk", Status.FAIL, scope=Scope.SHARED), config).acts
    assert explain(Finding("gpu.lost", Status.WARN), config).rule == "enabled = True, severity = 'warn'"
    assert explain(Finding("host.disk", Status.OK), config).rule == ""
    assert explain(Finding("site.raid", Status.FAIL), config).limits["check.plugins_dir"] == "/etc/aistation/checks.d"
