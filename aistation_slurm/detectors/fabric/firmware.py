"""``fabric.firmware``: cards of the same kind in one node run different firmware. A warning."""

from __future__ import annotations

from collections.abc import Sequence

from aistation_slurm.detectors.fabric.judged import most_common
from aistation_slurm.detectors.fabric.verdict import HCAS, verdict
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["firmware_findings"]

CHECK = "fabric.firmware"


def firmware_findings(mine: Sequence[PortSnapshot]) -> list[Finding]:
    """One for each HCA that differs; nothing where no kind of card is there twice."""
    cards = list({p.hca: p for p in mine if p.firmware and p.board_id}.values())
    out: list[Finding] = []
    told = []
    for board in dict.fromkeys(card.board_id for card in cards):
        same = [card for card in cards if card.board_id == board]
        versions = sorted({card.firmware for card in same})
        if len(same) > 1 and len(versions) == 1:
            told.append(f"{versions[0]} on {len(same)} {board}")
        elif len(same) > 1:
            out += _differing(same, versions)
    if told and not out:
        out.append(verdict(CHECK, Status.OK, HCAS, ", ".join(told)))
    return out


def _differing(same: Sequence[PortSnapshot], versions: Sequence[str]) -> list[Finding]:
    usual, board = most_common(same, lambda card: card.firmware), same[0].board_id
    if usual is None:
        text = f"{board}: firmware {', '.join(versions)}; expected one version on all"
        return [verdict(CHECK, Status.WARN, HCAS, text, Action.UPDATE_SOFTWARE)]
    return [
        verdict(
            CHECK,
            Status.WARN,
            card.hca,
            f"firmware {card.firmware}, expected {usual} as on most {board} of this node",
            Action.UPDATE_SOFTWARE,
        )
        for card in same
        if card.firmware != usual
    ]
