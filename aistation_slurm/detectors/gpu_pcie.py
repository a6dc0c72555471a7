"""``gpu.pcie``: the width of a GPU's PCIe link, its speed under load, and replays by rate. Pure.

Idle cards lower the speed of their link and never its width. So the width is judged always, the speed only under load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, about
from aistation_slurm.detectors.kernel_events import gpu_key
from aistation_slurm.detectors.rates import growth, slow_link, span_s, times_seen
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.nvml import GpuSnapshot

__all__ = ["findings"]

CHECK = "gpu.pcie"
MIN_SPAN_S = 60.0
CONFIRM_LOOKS = 3


@dataclass(frozen=True)
class _Link:
    """wide: lanes now; could: what card and slot together can, None unknown. proven: the slot itself was seen to offer it."""

    pci: str
    kind: str
    wide: int
    could: Optional[int]
    proven: bool
    speed: str


def findings(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    links = _links(facts)
    slow = {g.pci: g for g in facts.working if slow_link(g)}
    for link in links:
        short = _short(link, links, facts.want.pcie_width)
        if short is not None:
            status, text = short.status, short.evidence
            if _wider_before(facts, link) and status is Status.FAIL:
                status, text = Status.WARN, f"{text}; the look before saw more, so the next one decides"
            yield about(names, link.pci, CHECK, status, text, Action.INSPECT)
        elif link.pci in slow and _confirmed(facts, link.pci):
            gpu = slow[link.pci]
            text = f"PCIe generation {gpu.pcie_gen} under load in {CONFIRM_LOOKS} looks or more, maximum {gpu.pcie_max_gen}"
            yield about(names, link.pci, CHECK, Status.WARN, text, Action.INSPECT)
        else:
            yield about(names, link.pci, CHECK, Status.OK, f"x{link.wide}{link.speed}")
    yield from _replays(facts, names)


def _links(facts: GpuFacts) -> list[_Link]:
    """From NVML where it tells, else from sysfs. A device that is off the bus has no link to judge."""
    told = {gpu_key(g.pci): g for g in facts.working if g.pcie_width}
    found = []
    for device in facts.pci:
        if device.alive is False:
            continue
        gpu = told.pop(gpu_key(device.address), None)
        wide = device.width or (gpu.pcie_width if gpu else None)
        if not wide:
            continue
        slot = device.slot_width
        card = device.max_width or (gpu.pcie_max_width if gpu else None)
        could = min(card, slot) if card and slot else card
        if gpu is not None and gpu.pcie_max_width:
            # NVML's maximum is that of the card in this system
            could = min(could, gpu.pcie_max_width) if could else gpu.pcie_max_width
        speed = f" at {device.speed:g} GT/s" if device.speed else ""
        kind = (gpu.name if gpu else "") or device.model or device.name
        found.append(_Link(device.address, kind, wide, could, bool(slot and could), speed))
    for gpu in told.values():
        found.append(_Link(gpu.pci, gpu.name, gpu.pcie_width or 0, gpu.pcie_max_width, False, _generation(gpu)))
    return sorted(found, key=lambda link: link.pci)


def _generation(gpu: GpuSnapshot) -> str:
    return f" generation {gpu.pcie_gen}" if gpu.pcie_gen else ""


def _short(link: _Link, links: Sequence[_Link], expected: Optional[int]) -> Optional[Finding]:
    """Narrower than it should be. A fail needs proof: the configuration, the slot itself, or most like cards of the node.

    Alone, a card's own maximum is no proof, and neither is a width that all cards have: slots may be wired for fewer lanes.
    """
    if expected is not None:
        if link.wide >= expected:
            return None
        return Finding(CHECK, Status.FAIL, "", f"x{link.wide}, expected x{expected}")
    alike = [other for other in links if other.kind == link.kind]
    usual, owners = max(Counter(o.wide for o in alike).items(), key=lambda item: (item[1], item[0]))
    if link.wide < usual and owners > len(alike) / 2:
        return Finding(CHECK, Status.FAIL, "", f"x{link.wide}, most like cards here x{usual}")
    if link.could is None or link.wide >= link.could:
        return None
    by_design = len(alike) > 1 and owners == len(alike)
    if link.proven and not by_design:
        return Finding(CHECK, Status.FAIL, "", f"x{link.wide}, card and slot can x{link.could}")
    why = "as all cards here have it" if by_design else "the slot's own width is unknown"
    return Finding(CHECK, Status.WARN, "", f"x{link.wide}, the card can x{link.could}; {why}")


def _wider_before(facts: GpuFacts, link: _Link) -> bool:
    """A link that is being trained anew is narrow for a moment, and one moment must not drain a node."""
    before = [look.gpus[link.pci].lanes for look in facts.earlier if link.pci in look.gpus]
    return bool(before) and (before[-1] or 0) > link.wide


def _confirmed(facts: GpuFacts, pci: str) -> bool:
    seen, looks = times_seen(facts.earlier, pci, lambda look: look.slow_link)
    return looks >= CONFIRM_LOOKS - 1 and seen == looks


def _replays(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    span, limit = span_s(facts.earlier, facts.now), facts.want.pcie_replays_per_min
    if span < MIN_SPAN_S:
        return
    for gpu in facts.working:
        grown = growth(facts.earlier, gpu.pci, lambda look: look.counters.get("pcie_replay"), gpu.pcie_replays)
        if grown * 60 / span > limit:
            text = f"{grown * 60 / span:.1f} PCIe replays a minute over {span / 60:.0f} min, limit {limit:g}"
            yield about(names, gpu.pci, CHECK, Status.WARN, text, Action.INSPECT)
