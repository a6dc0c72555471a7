"""What nodes have told Slurm, for sites without ssh (``via = "slurm"``). Pure: nobody is asked, no job is started.

A node is not ``ok`` for having said nothing: something has to run the checks there, HealthCheckProgram or an agent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aistation_slurm.correlation.published import shown
from aistation_slurm.findings import Finding, Scope, Status, is_our_reason
from aistation_slurm.healing.reason import check_of
from aistation_slurm.slurm.client import Node
from aistation_slurm.sweep.answers import UNREACHABLE, NodeAnswer, plain, unknown
from aistation_slurm.sweep.targets import Target

__all__ = ["health_check_runs", "published"]

REPORTED, UNWATCHED = "sweep.reported", "sweep.unwatched"


def health_check_runs(config_text: str) -> bool:
    """Whether `scontrol show config` has Slurm run our checks on every node, drained ones too."""
    program = re.search(r"^HealthCheckProgram\s*=\s*(.*?)\s*$", config_text, re.MULTILINE)
    interval = re.search(r"^HealthCheckInterval\s*=\s*(\d+)", config_text, re.MULTILINE)
    return program is not None and "aistation" in program[1] and interval is not None and int(interval[1]) > 0


def published(targets: Sequence[Target], watched: bool) -> list[NodeAnswer]:
    """watched: agents or HealthCheckProgram look at every node."""
    return [_of(target.node, watched) for target in targets if target.node is not None]


def _of(node: Node, watched: bool) -> NodeAnswer:
    if not node.responding:
        return unknown(node.name, UNREACHABLE, f"Slurm shows it {'+'.join([node.state, *sorted(node.flags)])}")
    found = [
        Finding(plain(p.check), Status.FAIL, plain(p.subject), plain(p.evidence), scope=Scope.SHARED)
        for p in shown(node.comment)
    ]
    if node.drained and is_our_reason(node.reason):
        found.append(Finding(check_of(node.reason), Status.FAIL, "", plain(node.reason), scope=Scope.SHARED))
    if found:
        return NodeAnswer(node.name, tuple(found))
    if not watched:
        why = "nothing is known to check this node: HealthCheckProgram does not, and sweep.agents is not set"
        return unknown(node.name, UNWATCHED, why)
    return NodeAnswer(node.name, (Finding(REPORTED, Status.OK, "", "nothing reported"),))
