"""A fabric finding about one port, or about the node's HCAs. Never local: many nodes may see one cause."""

from __future__ import annotations

from typing import Union

from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["HCAS", "verdict"]

HCAS = "HCAs"
"""Subject of what is said of all of them together."""


def verdict(
    check: str, status: Status, subject: Union[PortSnapshot, str], evidence: str, action: Action = Action.NONE
) -> Finding:
    """subject: the port, or words."""
    if isinstance(subject, PortSnapshot):
        return Finding(check, status, subject.name, evidence, action, Scope.SHARED, device=subject.name)
    return Finding(check, status, subject, evidence, action, Scope.SHARED)
