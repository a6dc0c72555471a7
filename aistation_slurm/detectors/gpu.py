"""GPU findings from NVML, the PCI bus and kernel events. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.detectors.kernel_events import Event, deciding, gpu_key
from aistation_slurm.detectors.nvrm_lines import OFF_BUS_XID, RECOVERY_ACTIONS
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.nvml import GpuSnapshot, NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu

__all__ = ["GpuFacts", "findings"]

_THROTTLE = {0x8: "HW slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake"}
"""nvmlClocksEventReasons bits that mean the hardware protects itself; the other bits are policy or idling."""

_BROKEN = {
    "NVML_ERROR_UNKNOWN": Action.GPU_RESET,
    "NVML_ERROR_RESET_REQUIRED": Action.GPU_RESET,
    "NVML_ERROR_IRQ_ISSUE": Action.INSPECT,
    "NVML_ERROR_INSUFFICIENT_POWER": Action.INSPECT,
}
"""Errors that tell of the card. The others tell of the question (no permission, no data, too small a buffer)."""

_GET = "nvmlDeviceGet"
_CORE = ("HandleByIndex", "MemoryInfo", "TotalEccErrors", "RemappedRows", "Temperature", "PciInfo")
"""Questions that every working data centre GPU answers or says it does not support."""


@dataclass(frozen=True)
class GpuFacts:
    """What is known of a node's GPUs. expected: from the configuration or gres.conf; None: not judged.

    nvml: None where it was not asked (a captured tree). whole_node: False inside a job's device cgroup, where a missing GPU
    means nothing. log_error: why the kernel log could not be read; None where there is none to read.
    """

    nvml: Optional[NvmlSnapshot]
    pci: Sequence[PciGpu]
    events: Sequence[Event] = ()
    expected: Optional[int] = None
    whole_node: bool = True
    log_error: Optional[str] = ""
    pci_error: str = ""

    @property
    def gpus(self) -> Sequence[GpuSnapshot]:
        return self.nvml.gpus if self.nvml is not None else ()


def findings(facts: GpuFacts) -> list[Finding]:
    """All findings of the gpu family except ``gpu.driver_hang``. None on a node that has no GPU and should have none."""
    if not (facts.pci or facts.gpus or facts.expected or facts.pci_error or facts.events):
        return []
    namer = _Names(facts)
    out = [_count(facts)]
    out += _lost(facts, namer)
    out += _xids(facts, namer)
    for gpu in facts.gpus:
        out += _telemetry(gpu, namer)
    out += _nvlink(facts.gpus, namer)
    return out


class _Names:
    """``GPU3 0000:8f:00``: the number is the device minor, which survives a lost neighbour; the NVML index does not."""

    def __init__(self, facts: GpuFacts) -> None:
        self._minor = {gpu_key(g.address): g.minor for g in facts.pci}
        for gpu in facts.gpus:
            if gpu.pci and (gpu.minor >= 0 or gpu_key(gpu.pci) not in self._minor):
                self._minor[gpu_key(gpu.pci)] = gpu.minor

    def of(self, pci: str) -> str:
        if not pci:
            return "GPU of unknown address"
        minor = self._minor.get(gpu_key(pci), -1)
        return f"GPU{minor} {gpu_key(pci)}" if minor >= 0 else f"GPU {gpu_key(pci)}"


def _device(pci: str) -> Optional[str]:
    return f"{gpu_key(pci)}.0" if pci else None


def _count(facts: GpuFacts) -> Finding:
    check, subject = "gpu.count", "GPUs"
    if not facts.whole_node:
        return Finding(check, Status.UNKNOWN, subject, "inside a job only the job's own GPUs can be seen")
    nvml, expected, on_bus = facts.nvml, facts.expected, len(facts.pci)
    if nvml is None or nvml.error:
        # without NVML the bus alone tells; fewer devices than expected is a fact with or without a driver
        if expected is not None and facts.pci and on_bus < expected:
            text = f"{on_bus} on the PCI bus, expected {expected}"
            return Finding(check, Status.FAIL, subject, text, Action.REBOOT)
        if nvml is not None:
            return Finding(check, Status.UNKNOWN, subject, f"NVML could not be asked: {nvml.error}")
        return Finding(check, Status.OK, subject, f"{on_bus} on the PCI bus" + (f" of {expected}" if expected else ""))
    seen = len(nvml.gpus)
    bus = f", {on_bus} on the PCI bus" if facts.pci else ""
    if expected is None:
        return Finding(check, Status.OK, subject, f"{seen} found, no number expected")
    if seen < expected:
        return Finding(check, Status.FAIL, subject, f"{seen} found{bus}, expected {expected}", Action.REBOOT)
    return Finding(check, Status.OK, subject, f"{seen} of {expected}")


def _lost(facts: GpuFacts, namer: _Names) -> list[Finding]:
    check = "gpu.lost"
    why: dict[str, list[str]] = {}
    for gpu in facts.pci:
        if gpu.alive is False:
            why.setdefault(gpu_key(gpu.address), []).append("PCI configuration reads 0xff")
    for seen in facts.gpus:
        if seen.lost and seen.pci:
            why.setdefault(gpu_key(seen.pci), []).append("NVML says GPU_IS_LOST")
    for event in facts.events:
        if event.xid == OFF_BUS_XID and not event.superseded:
            text = "fallen off the bus in the kernel log" if event.synthetic else "Xid 79"
            why.setdefault(event.pci, []).append(text)
    # NVML refuses even the handle of some lost GPUs, so their address has to be concluded from the bus
    nameless = [g.index for g in facts.gpus if g.lost and not g.pci]
    known = {gpu_key(g.pci) for g in facts.gpus if g.pci}
    missing = [gpu_key(g.address) for g in facts.pci if gpu_key(g.address) not in known]
    if nameless and len(nameless) == len(missing):
        for pci in missing:
            why.setdefault(pci, []).append("NVML says GPU_IS_LOST")
        nameless = []
    found = [
        Finding(check, Status.FAIL, namer.of(pci), ", ".join(dict.fromkeys(texts)), Action.REBOOT, device=_device(pci))
        for pci, texts in sorted(why.items())
    ]
    if not why:
        found += [
            Finding(check, Status.FAIL, f"NVML index {i}", "NVML says GPU_IS_LOST", Action.REBOOT) for i in nameless
        ]
    if found:
        return found
    unread = [g.address for g in facts.pci if g.alive is None]
    if facts.pci_error:
        return [Finding(check, Status.UNKNOWN, "GPUs", facts.pci_error)]
    if facts.pci and len(unread) == len(facts.pci) and not facts.gpus and not facts.events:
        return [Finding(check, Status.UNKNOWN, "GPUs", f"PCI configuration of {unread[0]} cannot be read")]
    return [Finding(check, Status.OK, "GPUs", "every GPU answers on the bus")]


def _xids(facts: GpuFacts, namer: _Names) -> list[Finding]:
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
        device = _device(pci) if first.kind == "xid" else None
        found.append(Finding(check, Status.FAIL, _subject(first, namer), text, Action(first.action), device=device))
    for (pci, code), event in sorted(odd.items()):
        if pci not in by_gpu:
            device = _device(pci) if event.kind == "xid" else None
            text = f"{code}: {event.meaning}; not known to be harmless"
            found.append(Finding(check, Status.WARN, _subject(event, namer), text, Action.INSPECT, device=device))
    if found or facts.log_error is None:
        return found
    return [Finding(check, Status.OK, "GPUs", "no fatal Xid in this boot")]


def _code(event: Event) -> str:
    return f"Xid {event.xid}" if event.xid is not None else f"SXid {event.sxid}"


def _subject(event: Event, namer: _Names) -> str:
    return namer.of(event.pci) if event.kind == "xid" else f"nvswitch{event.switch} {event.pci}"


def _telemetry(gpu: GpuSnapshot, namer: _Names) -> Iterable[Finding]:
    if gpu.lost or not gpu.pci:
        return
    name, device = namer.of(gpu.pci), _device(gpu.pci)
    if gpu.ecc_volatile:
        text = f"{gpu.ecc_volatile} uncorrectable errors since the driver was loaded, limit 0"
        yield Finding("gpu.ecc_uncorrectable", Status.FAIL, name, text, Action.GPU_RESET, device=device)
    elif gpu.ecc_volatile is not None:
        yield Finding("gpu.ecc_uncorrectable", Status.OK, name, "0 uncorrectable errors", device=device)
    if gpu.remap_failed:
        yield Finding("gpu.row_remap", Status.FAIL, name, "row remapping failed", Action.REPLACE_GPU, device=device)
    elif gpu.remap_pending:
        # NVIDIA: new work may be launched while a remap is pending; it takes effect at the next reset
        text = "row remap pending, reset when idle"
        yield Finding("gpu.row_remap", Status.WARN, name, text, Action.GPU_RESET, device=device)
    elif gpu.remap_failed is not None:
        yield Finding("gpu.row_remap", Status.OK, name, "no remap pending", device=device)
    if gpu.recovery_action:
        _, action, words = RECOVERY_ACTIONS.get(gpu.recovery_action, ("", "inspect", f"action {gpu.recovery_action}"))
        status = Status.WARN if action == "inspect" else Status.FAIL
        yield Finding("gpu.recovery", status, name, f"the driver asks for {words}", Action(action), device=device)
    held = [text for bit, text in _THROTTLE.items() if gpu.throttle is not None and gpu.throttle & bit]
    if held:
        text = ", ".join(held) + (f" at {gpu.temperature} C" if gpu.temperature else "")
        yield Finding("gpu.throttle", Status.WARN, name, text, Action.INSPECT, device=device)
    yield from _failed_questions(gpu, name, device)


def _failed_questions(gpu: GpuSnapshot, name: str, device: Optional[str]) -> Iterable[Finding]:
    core = {q: e for q, e in gpu.errors.items() if q.startswith(_GET) and q[len(_GET) :] in _CORE}
    broken = {q: e for q, e in gpu.errors.items() if e in _BROKEN}
    both = {q: e for q, e in core.items() if q in broken}
    failed = both or broken or core
    if not failed:
        return  # no permission, no data: nothing about the card
    question, error = next(iter(failed.items()))
    text = f"{question}: {error}" + (f", and {len(failed) - 1} more" if len(failed) > 1 else "")
    status = Status.FAIL if both else Status.WARN if broken else Status.UNKNOWN
    yield Finding("gpu.telemetry", status, name, text, _BROKEN.get(error, Action.NONE), device=device)


def _nvlink(gpus: Sequence[GpuSnapshot], namer: _Names) -> list[Finding]:
    """A GPU with fewer links up than most GPUs of the node.

    All GPUs alike is how the board is wired, or a fabric manager that has not started; MIG switches links off.
    """
    judged = [g for g in gpus if g.nvlinks and g.pci and not g.lost and not g.mig]
    counts = Counter(sum(g.nvlinks) for g in judged)
    usual, owners = max(counts.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    if not usual:
        return []
    found = []
    for gpu in judged:
        up = sum(gpu.nvlinks)
        if up < usual:
            down = ", ".join(str(i) for i, active in enumerate(gpu.nvlinks) if not active)
            text = f"{up} links up, most GPUs here have {usual}; down: {down}"
            clear = owners > len(judged) / 2
            status, action = (Status.FAIL, Action.GPU_RESET) if clear else (Status.WARN, Action.INSPECT)
            found.append(Finding("gpu.nvlink", status, namer.of(gpu.pci), text, action, device=_device(gpu.pci)))
    return found or [Finding("gpu.nvlink", Status.OK, "GPUs", f"{usual} links up on each GPU")]
