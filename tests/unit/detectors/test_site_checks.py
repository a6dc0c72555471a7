"""A site's own checks and its rules, from values."""

from __future__ import annotations

import pytest

from aistation_slurm.config import CheckRule
from aistation_slurm.detectors.rules import apply_rules
from aistation_slurm.detectors.site_checks import SiteResult, findings
from aistation_slurm.findings import Action, Finding, Scope, Status

OK, WARN, FAIL, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.UNKNOWN


@pytest.mark.parametrize(
    ("result", "status", "evidence"),
    [
        (SiteResult("raid", 0, "all 4 members"), OK, "all 4 members"),
        (SiteResult("raid", 1, "member sdb missing"), FAIL, "member sdb missing"),
        (SiteResult("raid", 2, "rebuilding"), WARN, "rebuilding"),
        (SiteResult("raid", 3, "no controller"), UNKNOWN, "no controller"),
        (
            SiteResult("raid", 127, "sh: x: not found"),
            UNKNOWN,
            "exit code 127 is none of 0 ok, 1 fail, 2 warn, 3 unknown: sh",
        ),
        (SiteResult("raid", -11), UNKNOWN, "signal 11 is none of"),
        (SiteResult("raid", None, "", "raid did not end within 10 s"), UNKNOWN, "raid did not end within 10 s"),
        (SiteResult("raid", 1, "a\x1b[31m b\x00"), FAIL, "a [31m b"),
    ],
)
def test_four_outcomes(result: SiteResult, status: Status, evidence: str) -> None:
    (found,) = findings([result])
    assert (found.check, found.status, found.drains) == ("site.raid", status, False)
    assert found.evidence.startswith(evidence)


LOST = Finding("gpu.lost", FAIL, "GPU3", action=Action.REBOOT)
HOT = Finding("gpu.throttle", WARN, "GPU3", scope=Scope.SHARED)
UNSEEN = Finding("gpu.lost", UNKNOWN, "GPUs")


def judged(finding: Finding, **rules: CheckRule) -> list[tuple[Status, bool]]:
    return [(f.status, f.drains) for f in apply_rules([finding], {k.replace("_", ".", 1): r for k, r in rules.items()})]


def test_rules_of_the_site() -> None:
    assert judged(LOST) == [(FAIL, True)]
    assert judged(LOST, gpu_lost=CheckRule(enabled=False)) == []
    assert judged(LOST, gpu_lost=CheckRule(severity="warn")) == [(WARN, False)]
    assert judged(LOST, gpu_lost=CheckRule(action="report")) == [(FAIL, False)]
    assert judged(HOT, gpu_throttle=CheckRule(severity="fail")) == [(FAIL, False)]
    assert judged(HOT, gpu_throttle=CheckRule(severity="fail", action="drain")) == [(FAIL, True)]
    assert judged(UNSEEN, gpu_lost=CheckRule(severity="fail", action="drain")) == [(UNKNOWN, False)]


def test_the_exact_name_counts_before_a_pattern_and_the_longer_pattern_before_the_shorter() -> None:
    rules = {"*": CheckRule(enabled=False), "gpu.*": CheckRule(severity="warn"), "gpu.lost": CheckRule()}
    assert [f.status for f in apply_rules([LOST, HOT, Finding("host.disk", FAIL)], rules)] == [FAIL, WARN]
