"""``gpu.xid``: Xids and SXids of this boot. Pure; what each code means is in xid.toml."""

from __future__ import annotations

from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, device_key
from aistation_slurm.detectors.kernel_events import Event, deciding
from aistation_slurm.detectors.nvrm_lines import OFF_BUS_XID
from aistation_slurm.findings import Action, Finding, Status

__all__ = ["findings"]


def findings(facts: GpuFacts, names: Names) -> list[Finding]:
    """One fail a GPU (the most severe Xid decides, all are named), and a warning for what is not known to be harmless."""
    check = "gpu.xid"
    if facts.log_error:
        return [Finding(check, Status.UNKNOWN, "GPUs", facts.log_error)]
    by_gpu: dict[str, list[Event]] = {}
    odd: dict[tuple[str, str], Event] = {}
    for event in facts.events:
        if event.kind not in ("xid", "sxid") or event.xid == OFF_BUS_XID:
            continue
        if event.drain:
            by_gpu.setdefault(event.pci, []).append(event)
        elif event.classified in ("unknown", "warn") and not event.superseded:
            odd[event.pci, _code(event)] = event
    found = []
    for pci, events in sorted(by_gpu.items()):
        first = deciding(events) or events[0]
        codes = ", ".join(dict.fromkeys(_code(e) for e in [first, *events]))
        asked = f"the driver asks for {first.recovery_action}" if first.recovery_action else first.meaning
        text = f"{codes}: {asked}".rstrip(": ")
        device = device_key(pci) if first.kind == "xid" else None
        found.append(Finding(check, Status.FAIL, _subject(first, names), text, Action(first.action), device=device))
    for (pci, code), event in sorted(odd.items()):
        if pci not in by_gpu:
            device = device_key(pci) if event.kind == "xid" else None
            text = f"{code}: {event.meaning}; not known to be harmless"
            found.append(Finding(check, Status.WARN, _subject(event, names), text, Action.INSPECT, device=device))
    if found or facts.log_error is None:
        return found
    return [Finding(check, Status.OK, "GPUs", "no fatal Xid in this boot")]


def _code(event: Event) -> str:
    return f"Xid {event.xid}" if event.xid is not None else f"SXid {event.sxid}"


def _subject(event: Event, names: Names) -> str:
    return names.of(event.pci) if event.kind == "xid" else f"nvswitch{event.switch} {event.pci}"
