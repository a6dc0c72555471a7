"""Findings of many nodes grouped as one table: one row for what is the same, with a folded node list. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.slurm import hostlist
from aistation_slurm.sweep.answers import NodeAnswer

__all__ = ["Group", "gather"]

SUBJECTS = 3
_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")


@dataclass
class Group:
    """Nodes with the same check, outcome and wording; numbers may differ, then ``evidence`` is the first node's."""

    check: str
    status: Status
    action: Action
    evidence: str
    nodes: list[str] = field(default_factory=list)
    subjects: list[str] = field(default_factory=list)
    differ: bool = False

    @property
    def folded(self) -> str:
        return hostlist.fold(self.nodes)

    @property
    def subject(self) -> str:
        rest = len(self.subjects) - SUBJECTS
        return ", ".join(self.subjects[:SUBJECTS]) + (f" and {rest} more" if rest > 0 else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "status": self.status.value,
            "action": self.action.value,
            "evidence": self.evidence,
            "subjects": self.subjects,
            "nodes": self.folded,
            "count": len(self.nodes),
        }


def gather(answers: Iterable[NodeAnswer]) -> list[Group]:
    """All but ``ok``, the worst first, then by number of nodes."""
    groups: dict[tuple[str, Status, Action, str], Group] = {}
    for answer in answers:
        for finding in answer.findings:
            if finding.status is not Status.OK:
                _add(groups, answer.name, finding)
    return sorted(groups.values(), key=lambda g: (-g.status.rank, -len(g.nodes), g.check, g.nodes))


def _add(groups: dict[tuple[str, Status, Action, str], Group], node: str, finding: Finding) -> None:
    key = (finding.check, finding.status, finding.action, _NUMBER.sub("#", finding.evidence))
    group = groups.setdefault(key, Group(finding.check, finding.status, finding.action, finding.evidence))
    if node not in group.nodes[-1:]:
        group.nodes.append(node)
    if finding.subject and finding.subject not in group.subjects:
        group.subjects.append(finding.subject)
    group.differ = group.differ or finding.evidence != group.evidence
