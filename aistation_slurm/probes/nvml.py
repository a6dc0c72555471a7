"""GPUs as NVML tells them, read by a child (a blocked ioctl cannot be interrupted).

Facts and return codes: docs.nvidia.com/deploy/nvml-api. "Not supported" is a fact about the card and gives None; every
other error is kept by name, since a wedged card answers some questions and fails others ("ERR!" of nvidia-smi).
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional

import msgspec

from aistation_slurm.config import Probe
from aistation_slurm.probes.child import ChildResult, Step, run_child

__all__ = ["GpuProcess", "GpuSnapshot", "NvmlSnapshot", "question", "read_nvml", "snapshot"]


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that holds a context on the GPU. used: bytes, None where the driver does not say."""

    pid: int
    used: Optional[int] = None


class GpuSnapshot(msgspec.Struct, frozen=True):
    """One GPU. pci: ``0000:8f:00.0``. errors: question -> NVML's error name. None: not supported, or not told.

    Memory in bytes, temperatures in degrees C, power in mW, clocks in MHz. ecc_volatile, ecc_aggregate: uncorrectable errors
    since the driver was loaded and of the card's life; sram_*: the part of them outside device memory (Ampere and newer).
    retired_*: pages (before Ampere). banks_spent: memory banks with no spare row left. throttle: clock event reason bits.
    thermal_ns: time that heat has held the clocks down. nvlink_errors: kind -> count over all links. architecture: NVML's
    number (7 Ampere, 9 Hopper). fabric_state, fabric_status: registration with the fabric manager (3 and 0: done).
    """

    index: int
    pci: str = ""
    uuid: str = ""
    serial: str = ""
    name: str = ""
    minor: int = -1
    lost: bool = False
    mig: bool = False
    errors: dict[str, str] = {}
    ecc_volatile: Optional[int] = None
    remap_pending: Optional[bool] = None
    remap_failed: Optional[bool] = None
    remap_uncorrectable: Optional[int] = None
    nvlinks: tuple[bool, ...] = ()
    throttle: Optional[int] = None
    temperature: Optional[int] = None
    memory_used: Optional[int] = None
    recovery_action: Optional[int] = None
    processes: tuple[GpuProcess, ...] = ()
    architecture: Optional[int] = None
    vbios: str = ""
    inforom: str = ""
    ecc_enabled: Optional[bool] = None
    ecc_pending: Optional[bool] = None
    ecc_aggregate: Optional[int] = None
    ecc_corrected: Optional[int] = None
    sram_volatile: Optional[int] = None
    sram_aggregate: Optional[int] = None
    sram_threshold: Optional[bool] = None
    remap_correctable: Optional[int] = None
    banks_spent: Optional[int] = None
    retired_single: Optional[int] = None
    retired_double: Optional[int] = None
    retired_pending: Optional[bool] = None
    nvlink_errors: dict[str, int] = {}
    fabric_state: Optional[int] = None
    fabric_status: int = 0
    thermal_ns: Optional[int] = None
    temperature_slowdown: Optional[int] = None
    temperature_shutdown: Optional[int] = None
    temperature_memory: Optional[int] = None
    temperature_memory_max: Optional[int] = None
    power: Optional[int] = None
    power_limit: Optional[int] = None
    power_default: Optional[int] = None
    utilization: Optional[int] = None
    sm_clock: Optional[int] = None
    sm_clock_max: Optional[int] = None
    pcie_gen: Optional[int] = None
    pcie_max_gen: Optional[int] = None
    pcie_width: Optional[int] = None
    pcie_max_width: Optional[int] = None
    pcie_replays: Optional[int] = None
    persistence: Optional[bool] = None
    mig_pending: Optional[bool] = None


class NvmlSnapshot(msgspec.Struct, frozen=True):
    """All of a node. absent: there is no NVML library here, which says nothing about the hardware."""

    gpus: tuple[GpuSnapshot, ...] = ()
    driver: str = ""
    absent: bool = False
    error: str = ""


def read_nvml(settings: Probe) -> tuple[NvmlSnapshot, ChildResult]:
    """Ask in a child, within ``settings.nvml_deadline_s``: the snapshot, and how the child fared."""
    result = run_child(question(settings), settings.nvml_deadline_s)
    return snapshot(result), result


def question(settings: Probe) -> Callable[[Step], dict[str, Any]]:
    """What the child does; its result goes through :func:`snapshot`."""
    return lambda step: _read(settings.nvml_library, step)


def snapshot(result: ChildResult) -> NvmlSnapshot:
    """The child's answer as a snapshot; one that gave none (late, crashed in the library) is an error in words."""
    if result.value is None:
        return NvmlSnapshot(error=result.error)
    return msgspec.convert(result.value, NvmlSnapshot)


def _read(library: str, step: Step) -> dict[str, Any]:
    """In the child: real pynvml over the library found (or named: then loaded first, so that its SONAME is taken)."""
    import pynvml

    from aistation_slurm.probes.nvml_gpu import error_name, read_gpu, text_of

    if library:
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError as exc:
            return {"absent": True, "error": f"NVML library not found: {exc}"}
    at = "nvmlInit"
    try:
        step(at)
        pynvml.nvmlInit()
        at = "nvmlDeviceGetCount"
        step(at)
        count = pynvml.nvmlDeviceGetCount()
        at = "nvmlSystemGetDriverVersion"
        step(at)
        driver = text_of(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as exc:
        missing = exc.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return {"absent": missing, "error": f"{at}: {error_name(pynvml, exc)}"}
    return {"gpus": [read_gpu(pynvml, i, step) for i in range(count)], "driver": driver}
