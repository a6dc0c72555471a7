"""What the driver itself says of a card: ``gpu.recovery`` and ``gpu.telemetry`` (ERR! of nvidia-smi). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, device_key
from aistation_slurm.detectors.kernel_events import gpu_key
from aistation_slurm.detectors.nvrm_lines import RECOVERY_ACTIONS
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.nvml import GpuSnapshot

__all__ = ["findings"]

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


def findings(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    for gpu in facts.gpus:
        if gpu.lost:
            continue
        # a card that cannot even tell its address is the one on the bus that no other is, where that is one
        pci = gpu.pci or _missing_address(facts)
        subject = names.of(pci) if pci else f"NVML index {gpu.index}"
        if gpu.recovery_action:
            unknown = ("", "inspect", f"action {gpu.recovery_action}")
            _, action, words = RECOVERY_ACTIONS.get(gpu.recovery_action, unknown)
            status = Status.WARN if action == "inspect" else Status.FAIL
            text = f"the driver asks for {words}"
            yield Finding("gpu.recovery", status, subject, text, Action(action), device=device_key(pci))
        yield from _failed_questions(gpu, subject, device_key(pci))


def _missing_address(facts: GpuFacts) -> str:
    known = {gpu_key(g.pci) for g in facts.gpus if g.pci}
    missing = [g.address for g in facts.pci if gpu_key(g.address) not in known]
    nameless = [g for g in facts.gpus if not g.pci]
    return missing[0] if len(missing) == 1 and len(nameless) == 1 else ""


def _failed_questions(gpu: GpuSnapshot, subject: str, device: Optional[str]) -> Iterator[Finding]:
    core = {q: e for q, e in gpu.errors.items() if q.startswith(_GET) and q[len(_GET) :] in _CORE}
    broken = {q: e for q, e in gpu.errors.items() if e in _BROKEN}
    both = {q: e for q, e in core.items() if q in broken}
    failed = both or broken or core
    if not failed:
        return  # no permission, no data: nothing about the card
    question, error = next(iter(failed.items()))
    text = f"{question}: {error}" + (f", and {len(failed) - 1} more" if len(failed) > 1 else "")
    status = Status.FAIL if both else Status.WARN if broken else Status.UNKNOWN
    yield Finding("gpu.telemetry", status, subject, text, _BROKEN.get(error, Action.NONE), device=device)
