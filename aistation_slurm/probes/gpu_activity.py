"""How busy each GPU is and what power it draws, by NVML in a child (probes/pending.py remembers one that blocks).

Utilisation counts time in which any kernel ran, so a waiting NCCL kernel is 100 %; only the power tells it from work.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

import msgspec

from aistation_slurm.config import Probe
from aistation_slurm.probes import pending
from aistation_slurm.probes.child import Step

__all__ = ["GpuLoad", "read_loads"]


@dataclass(frozen=True)
class GpuLoad:
    """One GPU: utilisation 0..100, power in W against its limit; None where the driver does not say."""

    utilisation_percent: Optional[float] = None
    power_w: Optional[float] = None
    limit_w: Optional[float] = None


def read_loads(settings: Probe, state_dir: Path, boot_id: str) -> dict[int, GpuLoad]:
    """Device minor -> load; empty where NVML is absent, fails or does not answer in time."""

    def body(step: Step) -> dict[str, Any]:
        return _read(settings.nvml_library, step)

    result, _ = pending.call("hang-gpus", body, settings.nvml_deadline_s, state_dir, boot_id)
    if result.value is None:
        return {}
    return {int(minor): msgspec.convert(load, GpuLoad) for minor, load in result.value.items()}


def _read(library: str, step: Step) -> dict[str, Any]:
    """In the child."""
    import pynvml

    if library:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)

    def ask(call: Callable[[Any], Any], handle: Any) -> Any:
        try:
            return call(handle)
        except pynvml.NVMLError:
            return None

    step("nvmlInit")
    pynvml.nvmlInit()
    loads: dict[str, Any] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        step(f"utilisation and power of GPU {index}")
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        used = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        power = ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        limit = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        loads[str(pynvml.nvmlDeviceGetMinorNumber(handle))] = {
            "utilisation_percent": None if used is None else float(used.gpu),
            "power_w": None if power is None else power / 1000.0,
            "limit_w": None if limit is None else limit / 1000.0,
        }
    return loads
