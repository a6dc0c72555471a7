"""``gpu.count`` and ``gpu.lost``. Pure."""

from __future__ import annotations

from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, device_key
from aistation_slurm.detectors.kernel_events import gpu_key
from aistation_slurm.detectors.nvrm_lines import OFF_BUS_XID
from aistation_slurm.findings import Action, Finding, Status

__all__ = ["count", "lost"]


def count(facts: GpuFacts) -> Finding:
    """Fewer GPUs than the configuration or gres.conf says; unknown inside a job."""
    check, subject = "gpu.count", "GPUs"
    if not facts.whole_node:
        return Finding(check, Status.UNKNOWN, subject, "inside a job only the job's own GPUs can be seen")
    nvml, expected, on_bus = facts.nvml, facts.expected, len(facts.pci)
    if nvml is None or nvml.error:
        # without NVML the bus alone tells; fewer devices than expected is a fact with or without a driver
        seen_bus = bool(facts.pci) or facts.has_bus
        if expected is not None and seen_bus and on_bus < expected:
            text = f"{on_bus} on the PCI bus, expected {expected}"
            return Finding(check, Status.FAIL, subject, text, Action.REBOOT)
        if nvml is not None:
            return Finding(check, Status.UNKNOWN, subject, f"NVML could not be asked: {nvml.error}")
        if expected and not seen_bus:
            return Finding(check, Status.UNKNOWN, subject, f"the PCI tree cannot be seen, expected {expected}")
        return Finding(check, Status.OK, subject, f"{on_bus} on the PCI bus" + (f" of {expected}" if expected else ""))
    seen = len(nvml.gpus)
    bus = f", {on_bus} on the PCI bus" if facts.pci else ""
    if expected is None:
        return Finding(check, Status.OK, subject, f"{seen} found, no number expected")
    if seen < expected:
        return Finding(check, Status.FAIL, subject, f"{seen} found{bus}, expected {expected}", Action.REBOOT)
    return Finding(check, Status.OK, subject, f"{seen} of {expected}")


def lost(facts: GpuFacts, names: Names) -> list[Finding]:
    """A GPU that does not answer: by the bus, by NVML, by the kernel log."""
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
        Finding(
            check, Status.FAIL, names.of(pci), ", ".join(dict.fromkeys(texts)), Action.REBOOT, device=device_key(pci)
        )
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
