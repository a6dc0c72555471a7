"""GPU findings from NVML, the PCI bus and kernel events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.detectors.kernel_events import Event, gpu_key
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.nvml import GpuSnapshot, NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu

__all__ = ["GpuFacts", "findings"]

RECOVERY = {1: ("GPU reset", Action.GPU_RESET), 2: ("node reboot", Action.REBOOT)}
RECOVERY |= {3: ("drain P2P", Action.GPU_RESET), 4: ("drain and reset", Action.GPU_RESET)}
"""NVML's GPU recovery action -> words and action."""

_THROTTLE = {0x8: "HW slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake"}
"""nvmlClocksEventReasons bits that mean the hardware protects itself; the other bits are policy or idling."""

_SEVERITY = {"replace_gpu": 5, "reboot": 4, "gpu_reset": 3, "inspect": 2, "restart_app": 1}
_CORE_QUESTIONS = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetHandleByIndex")


@dataclass(frozen=True)
class GpuFacts:
    """What is known of a node's GPUs. expected: from the configuration or gres.conf; None: not judged.

    whole_node: False inside a job's device cgroup, where a missing GPU means nothing.
    """

    nvml: NvmlSnapshot
    pci: Sequence[PciGpu]
    events: Sequence[Event] = ()
    expected: Optional[int] = None
    whole_node: bool = True


def findings(facts: GpuFacts) -> list[Finding]:
    """All findings of the gpu family except ``gpu.driver_hang``, which takes two looks in time."""
    if not facts.pci and not facts.nvml.gpus and not facts.expected and facts.nvml.absent:
        return []
    namer = _Names(facts)
    out = [_count(facts)]
    out += _lost(facts, namer)
    out += _xids(facts, namer)
    for gpu in facts.nvml.gpus:
        out += _telemetry(gpu, namer)
    out += _nvlink(facts.nvml.gpus, namer)
    return out


class _Names:
    """``GPU3 0000:8f:00``: the number is the device minor, which survives a lost neighbour; the NVML index does not."""

    def __init__(self, facts: GpuFacts) -> None:
        self._minor = {gpu_key(g.address): g.minor for g in facts.pci}
        for gpu in facts.nvml.gpus:
            if gpu.pci and (gpu.minor >= 0 or gpu_key(gpu.pci) not in self._minor):
                self._minor[gpu_key(gpu.pci)] = gpu.minor

    def of(self, pci: str) -> str:
        minor = self._minor.get(gpu_key(pci), -1)
        return f"GPU{minor} {gpu_key(pci)}" if minor >= 0 else f"GPU {gpu_key(pci)}"


def _device(pci: str) -> str:
    return f"{gpu_key(pci)}.0"


def _count(facts: GpuFacts) -> Finding:
    check = "gpu.count"
    if not facts.whole_node:
        return Finding(check, Status.UNKNOWN, "GPUs", "inside a job only the job's own GPUs can be seen")
    seen = len(facts.nvml.gpus)
    if facts.nvml.error:
        # without NVML the bus alone tells; fewer devices than expected is a fact with or without a driver
        if facts.expected is not None and facts.pci and len(facts.pci) < facts.expected:
            return Finding(
                check, Status.FAIL, "GPUs", f"{len(facts.pci)} on the PCI bus, expected {facts.expected}", Action.REBOOT
            )
        return Finding(check, Status.UNKNOWN, "GPUs", f"NVML could not be asked: {facts.nvml.error}")
    if facts.expected is None:
        return Finding(check, Status.OK, "GPUs", f"{seen} found, no number expected")
    if seen < facts.expected:
        return Finding(check, Status.FAIL, "GPUs", f"{seen} found, expected {facts.expected}", Action.REBOOT)
    return Finding(check, Status.OK, "GPUs", f"{seen} of {facts.expected}")


def _lost(facts: GpuFacts, namer: _Names) -> list[Finding]:
    why: dict[str, list[str]] = {}
    for gpu in facts.pci:
        if gpu.alive is False:
            why.setdefault(gpu_key(gpu.address), []).append("PCI configuration reads 0xff")
    for snapshot in facts.nvml.gpus:
        if snapshot.lost and snapshot.pci:
            why.setdefault(gpu_key(snapshot.pci), []).append("NVML says GPU_IS_LOST")
    for event in facts.events:
        if event.xid == 79 and event.pci:
            why.setdefault(event.pci, []).append(
                "fallen off the bus in the kernel log" if event.synthetic else "Xid 79"
            )
    found = [
        Finding(
            "gpu.lost", Status.FAIL, namer.of(pci), ", ".join(dict.fromkeys(texts)), Action.REBOOT, device=_device(pci)
        )
        for pci, texts in sorted(why.items())
    ]
    unnamed = [s.index for s in facts.nvml.gpus if s.lost and not s.pci]
    if unnamed and not found:
        found = [
            Finding("gpu.lost", Status.FAIL, f"NVML index {i}", "NVML says GPU_IS_LOST", Action.REBOOT) for i in unnamed
        ]
    return found or [Finding("gpu.lost", Status.OK, "GPUs", "every GPU answers on the bus")]


def _xids(facts: GpuFacts, namer: _Names) -> list[Finding]:
    by_gpu: dict[str, list[Event]] = {}
    odd: list[Event] = []
    for event in facts.events:
        if event.kind == "sxid" or (event.kind == "xid" and event.xid != 79):
            if event.drain:
                by_gpu.setdefault(event.pci, []).append(event)
            elif event.classified in ("unknown", "warn"):
                odd.append(event)
    found = []
    for pci, events in sorted(by_gpu.items()):
        # the carrier (154) repeats what another line said first; it decides only where it stands alone
        first = max(events, key=lambda e: (_SEVERITY.get(e.action, 0), e.xid != 154))
        codes = ", ".join(
            dict.fromkeys(f"Xid {e.xid}" if e.xid is not None else f"SXid {e.sxid}" for e in [first, *events])
        )
        what = first.meaning if first.xid != 154 else f"recovery action {first.recovery_action}"
        subject = namer.of(pci) if first.kind == "xid" else f"nvswitch{first.switch} {pci}"
        device = _device(pci) if first.kind == "xid" else None
        found.append(
            Finding(
                "gpu.xid", Status.FAIL, subject, f"{codes}: {what}".rstrip(": "), Action(first.action), device=device
            )
        )
    seen = {(e.pci, e.xid) for e in odd if e.pci not in by_gpu}
    found += [
        Finding(
            "gpu.xid",
            Status.WARN,
            namer.of(pci),
            f"Xid {code}, not known to be harmless",
            Action.INSPECT,
            device=_device(pci),
        )
        for pci, code in sorted(seen, key=str)
    ]
    return found or [Finding("gpu.xid", Status.OK, "GPUs", "no fatal Xid in this boot")]


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
        yield Finding(
            "gpu.row_remap", Status.WARN, name, "row remap pending, reset when idle", Action.GPU_RESET, device=device
        )
    elif gpu.remap_failed is not None:
        yield Finding("gpu.row_remap", Status.OK, name, "no remap pending", device=device)
    words, action = RECOVERY.get(gpu.recovery_action or 0, ("", Action.NONE))
    if words:
        yield Finding("gpu.recovery", Status.FAIL, name, f"the driver asks for {words}", action, device=device)
    held = [text for bit, text in _THROTTLE.items() if gpu.throttle is not None and gpu.throttle & bit]
    if held:
        text = ", ".join(held) + (f" at {gpu.temperature} C" if gpu.temperature else "")
        yield Finding("gpu.throttle", Status.WARN, name, text, Action.INSPECT, device=device)
    if gpu.errors:
        question, error = next(iter(gpu.errors.items()))
        core = any(q in _CORE_QUESTIONS for q in gpu.errors)
        status = Status.FAIL if core and len(gpu.errors) > 1 else Status.WARN
        text = f"{len(gpu.errors)} questions failed, first {question}: {error}"
        yield Finding("gpu.telemetry", status, name, text, Action.GPU_RESET, device=device)


def _nvlink(gpus: Sequence[GpuSnapshot], namer: _Names) -> list[Finding]:
    """A link that is down while others are up. All down is a fabric manager that has not started, not a cable."""
    if not any(any(g.nvlinks) for g in gpus):
        return []
    found = []
    for gpu in gpus:
        down = [i for i, up in enumerate(gpu.nvlinks) if not up]
        if down and not gpu.lost and gpu.pci:
            text = f"link {', '.join(map(str, down))} down of {len(gpu.nvlinks)}"
            found.append(
                Finding("gpu.nvlink", Status.FAIL, namer.of(gpu.pci), text, Action.GPU_RESET, device=_device(gpu.pci))
            )
    return found or [Finding("gpu.nvlink", Status.OK, "GPUs", "all links up")]
