"""All rules over one site."""

from __future__ import annotations

from aistation_slurm.doctor.model import Item, Severity, Site
from aistation_slurm.doctor.rules import FAMILIES

__all__ = ["diagnose"]

_ORDER = tuple(Severity)


def diagnose(site: Site) -> list[Item]:
    """All advice, the worst first; within one severity in the order of the families."""
    found = [item for family in FAMILIES for item in family.judge(site)]
    return sorted(dict.fromkeys(found), key=lambda item: _ORDER.index(item.severity))
