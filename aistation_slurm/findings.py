"""The one core type of health: a Finding says what was looked at, what came out and on what evidence.

Standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Optional

__all__ = ["Action", "Finding", "Scope", "Status", "drain_reason", "is_our_reason", "worst"]

REASON_PREFIX = "ais:"
REASON_MAX = 200
"""Bytes of a drain reason. Slurm itself keeps any length; longer ones are cut by sinfo and by people's screens."""


class Status(str, Enum):
    """Outcome of one check. Only ``FAIL`` may drain; ``UNKNOWN`` means it could not be looked at."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"

    @property
    def rank(self) -> int:
        """Merge order: ok < unknown < warn < fail."""
        return _RANK[self]


_RANK = {Status.OK: 0, Status.UNKNOWN: 1, Status.WARN: 2, Status.FAIL: 3}


class Scope(str, Enum):
    """Who may drain on this finding.

    ``LOCAL``: an independent hardware fault of this node, which the node itself drains for.
    ``SHARED``: may be one cause seen by many nodes (fabric, mounts, clocks); nodes report it, and only the
    controller, which sees the others, or the gate for the job's own ports, acts on it.
    """

    LOCAL = "local"
    SHARED = "shared"


class Action(str, Enum):
    """What a person (or opt-in self-healing) has to do before the subject can be trusted again."""

    NONE = "none"
    RESTART_APP = "restart_app"
    GPU_RESET = "gpu_reset"
    REBOOT = "reboot"
    INSPECT = "inspect"
    REPLACE_GPU = "replace_gpu"
    CHECK_CABLE = "check_cable"
    UPDATE_SOFTWARE = "update_software"


@dataclass(frozen=True)
class Finding:
    """One verdict of one check about one subject.

    check: stable id such as ``gpu.lost``. subject: the thing as a person names it (``GPU3 0000:8f:00``,
    ``mlx5_3/1``, ``/tmp``). evidence: the fact and the limit, in one line without newlines. device: key that ties the
    finding to what a job was given: PCI address of the GPU (``0000:8f:00.0``) or ``hca/port``; None is node-wide.
    """

    check: str
    status: Status
    subject: str = ""
    evidence: str = ""
    action: Action = Action.NONE
    scope: Scope = Scope.LOCAL
    device: Optional[str] = None

    @property
    def drains(self) -> bool:
        """True where the node itself drains for it: a failed local hardware fact."""
        return self.status is Status.FAIL and self.scope is Scope.LOCAL

    def as_json(self) -> dict[str, str]:
        """The fields of the public JSON contract, enums as text."""
        out = {
            "check": self.check,
            "status": self.status.value,
            "subject": self.subject,
            "evidence": self.evidence,
            "action": self.action.value,
            "scope": self.scope.value,
        }
        if self.device is not None:
            out["device"] = self.device
        return out


def worst(findings: Iterable[Finding]) -> Status:
    """The status of a whole node: its worst finding; ``UNKNOWN`` when nothing was looked at."""
    return max((f.status for f in findings), key=lambda s: s.rank, default=Status.UNKNOWN)


def drain_reason(finding: Finding, *, node: str, boot_id: str) -> str:
    """Reason text ``ais:<check> <subject> <evidence> [<id>]`` in printable ASCII on one line.

    The id is derived from node, boot, check and subject, so the same fault seen twice (by the gate and by the agent)
    gives the same text, and nobody rewrites a reason that says the same.
    """
    key = "\0".join((node, boot_id, finding.check, finding.subject)).encode("utf-8", "replace")
    ident = hashlib.sha256(key).hexdigest()[:6]
    head = f"{REASON_PREFIX}{finding.check}"
    text = " ".join(part for part in (head, finding.subject, finding.evidence) if part)
    clean = "".join(c if " " <= c <= "~" and c not in "\"'`\\" else "_" for c in text)
    clean = " ".join(clean.split())
    tail = f" [{ident}]"
    return clean[: REASON_MAX - len(tail)].rstrip() + tail


def is_our_reason(reason: Optional[str]) -> bool:
    """True for a drain that AIStation set. Every other reason belongs to someone else and stays untouched."""
    return reason is not None and reason.startswith(REASON_PREFIX)
