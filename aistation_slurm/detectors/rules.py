"""What the site's ``[checks]`` make of the findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Optional

from aistation_slurm.config import CheckRule
from aistation_slurm.findings import Finding, Scope, Status

__all__ = ["apply_rules", "rule_of"]


def rule_of(check: str, rules: Mapping[str, CheckRule]) -> Optional[CheckRule]:
    """The rule of that name, else the one with the longest pattern that fits; None where there is none."""
    fitting = [name for name in rules if name == check or fnmatchcase(check, name)]
    return rules[max(fitting, key=lambda name: (name == check, len(name)))] if fitting else None


def apply_rules(found: Iterable[Finding], rules: Mapping[str, CheckRule]) -> list[Finding]:
    """Findings of disabled checks are left out. What could not be judged stays ``unknown`` whatever the rule."""
    out = []
    for finding in found:
        rule = rule_of(finding.check, rules)
        if rule is None:
            out.append(finding)
            continue
        if not rule.enabled:
            continue
        status, scope = finding.status, finding.scope
        if rule.severity == "warn" and status is Status.FAIL:
            status = Status.WARN
        elif rule.severity == "fail" and status is Status.WARN:
            status = Status.FAIL
        if rule.action is not None:
            scope = Scope.LOCAL if rule.action == "drain" else Scope.SHARED
        out.append(replace(finding, status=status, scope=scope))
    return out
