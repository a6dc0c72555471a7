"""What the driver itself says of a card: ``gpu.recovery`` and ``gpu.telemetry`` (ERR! of nvidia-smi). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, about
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
    for gpu in facts.working:
        if gpu.recovery_action:
            _, action, words = RECOVERY_ACTIONS.get(
                gpu.recovery_action, ("", "inspect", f"action {gpu.recovery_action}")
            )
            status = Status.WARN if action == "inspect" else Status.FAIL
            text = f"the driver asks for {words}"
            yield about(names, gpu.pci, "gpu.recovery", status, text, Action(action))
        yield from _failed_questions(gpu, names)


def _failed_questions(gpu: GpuSnapshot, names: Names) -> Iterator[Finding]:
    core = {q: e for q, e in gpu.errors.items() if q.startswith(_GET) and q[len(_GET) :] in _CORE}
    broken = {q: e for q, e in gpu.errors.items() if e in _BROKEN}
    both = {q: e for q, e in core.items() if q in broken}
    failed = both or broken or core
    if not failed:
        return  # no permission, no data: nothing about the card
    question, error = next(iter(failed.items()))
    text = f"{question}: {error}" + (f", and {len(failed) - 1} more" if len(failed) > 1 else "")
    status = Status.FAIL if both else Status.WARN if broken else Status.UNKNOWN
    yield about(names, gpu.pci, "gpu.telemetry", status, text, _BROKEN.get(error, Action.NONE))
