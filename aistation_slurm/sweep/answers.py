"""From what a node answered to findings. Pure.

The text comes over the network and goes to a terminal: it is decoded strictly, and control characters are taken out. What
cannot be believed makes the node ``unknown`` and is never a reason to drain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import msgspec

from aistation_slurm.findings import Action, Finding, Scope, Status, worst
from aistation_slurm.sweep.fanout import Answer
from aistation_slurm.sweep.targets import Target

__all__ = ["GARBLED", "NO_ANSWER", "UNREACHABLE", "NodeAnswer", "judge", "plain", "unknown"]

UNREACHABLE, NO_ANSWER, GARBLED = "sweep.unreachable", "sweep.no_answer", "sweep.garbled"
SHOWN = 160


@dataclass(frozen=True)
class NodeAnswer:
    """One node as the sweep found it; boot_id "" where it did not tell."""

    name: str
    findings: tuple[Finding, ...]
    boot_id: str = ""

    @property
    def status(self) -> Status:
        return worst(self.findings)

    @property
    def drains(self) -> tuple[Finding, ...]:
        """Findings for which a node may be drained."""
        return tuple(f for f in self.findings if f.drains)

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.name,
            "status": self.status.value,
            "boot_id": self.boot_id,
            "findings": [f.as_json() for f in self.findings],
        }


class _Finding(msgspec.Struct):
    check: str
    status: Status
    subject: str = ""
    evidence: str = ""
    action: str = "none"
    scope: Scope = Scope.LOCAL
    device: Optional[str] = None


class _Report(msgspec.Struct):
    node: str
    findings: list[_Finding]
    boot_id: str = ""


def judge(target: Target, answer: Answer) -> NodeAnswer:
    """The exit code is not asked: 0, 1 and 3 of `aistation check` all come with a report, and others without one."""
    said = plain(answer.err.decode("utf-8", "replace").strip().rpartition("\n")[2])
    if answer.lost:
        return unknown(target.name, NO_ANSWER, answer.lost)
    if not answer.out.strip():
        return unknown(target.name, UNREACHABLE, said or f"exit code {answer.rc} and no word")
    try:
        report = msgspec.json.decode(answer.out, type=_Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        text = plain(answer.out[:400].decode("utf-8", "replace"))[:60]
        return unknown(target.name, GARBLED, f"no report of a check ({plain(str(exc))}): {text}")
    if not _same(report.node, target):
        return unknown(target.name, GARBLED, f"{plain(report.node)[:64]} answered in its place")
    if not report.findings:
        return unknown(target.name, GARBLED, "its report is empty: nothing to check was found")
    return NodeAnswer(target.name, tuple(_finding(f) for f in report.findings), plain(report.boot_id))


def unknown(name: str, check: str, why: str) -> NodeAnswer:
    return NodeAnswer(name, (Finding(check, Status.UNKNOWN, "", why[:SHOWN]),))


def plain(text: str) -> str:
    """On one line, without what a terminal would obey."""
    clean = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    return " ".join(clean.split())


def _same(said: str, target: Target) -> bool:
    """A node says its name of Slurm, or its host's before it has asked Slurm for the other."""
    return said == target.name or said.partition(".")[0] in (target.name, target.host.partition(".")[0])


def _finding(wire: _Finding) -> Finding:
    try:
        action = Action(wire.action)
    except ValueError:  # of a newer version
        action = Action.INSPECT
    device = None if wire.device is None else plain(wire.device)
    return Finding(
        plain(wire.check), wire.status, plain(wire.subject), plain(wire.evidence), action, wire.scope, device
    )
