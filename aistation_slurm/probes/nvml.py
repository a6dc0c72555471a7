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
    """One GPU. pci: ``0000:8f:00.0``. errors: question -> NVML's error name. Memory in bytes, temperature in degrees C."""

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
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as exc:
        missing = exc.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return {"absent": missing, "error": f"{at}: {_name(pynvml, exc)}"}
    return {"gpus": [_gpu(pynvml, i, step) for i in range(count)], "driver": driver}


def _name(pynvml: Any, exc: Any) -> str:
    for name in dir(pynvml):
        if name.startswith("NVML_ERROR_") and getattr(pynvml, name) == exc.value:
            return name
    return f"NVML error {exc.value}"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _gpu(pynvml: Any, index: int, step: Step) -> dict[str, Any]:
    out: dict[str, Any] = {"index": index, "errors": {}}

    def ask(name: str, call: Callable[[], Any]) -> Any:
        for again in (True, False):
            step(f"{name}({index})")
            try:
                return call()
            except pynvml.NVMLError as exc:
                if exc.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                    return None
                if exc.value == pynvml.NVML_ERROR_UNKNOWN and again:
                    continue  # one failed read may be a race with a reset or with a process that ends
                out["errors"][name] = _name(pynvml, exc)
                out["lost"] = out.get("lost", False) or exc.value == pynvml.NVML_ERROR_GPU_IS_LOST
                return None
        return None

    handle = ask("nvmlDeviceGetHandleByIndex", lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return out
    pci = ask("nvmlDeviceGetPciInfo", lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    if pci is not None:
        out["pci"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    for key, call in (
        ("uuid", pynvml.nvmlDeviceGetUUID),
        ("serial", pynvml.nvmlDeviceGetSerial),
        ("name", pynvml.nvmlDeviceGetName),
    ):
        found = ask(call.__name__, lambda call=call: call(handle))  # type: ignore[misc]
        out[key] = "" if found is None else _text(found)
    minor = ask("nvmlDeviceGetMinorNumber", lambda: pynvml.nvmlDeviceGetMinorNumber(handle))
    out["minor"] = -1 if minor is None else int(minor)
    out["ecc_volatile"] = ask(
        "nvmlDeviceGetTotalEccErrors",
        lambda: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        ),
    )
    remap = ask("nvmlDeviceGetRemappedRows", lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    if remap is not None:
        out.update(remap_uncorrectable=int(remap[1]), remap_pending=bool(remap[2]), remap_failed=bool(remap[3]))
    out["throttle"] = ask(
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )
    out["temperature"] = ask(
        "nvmlDeviceGetTemperature",
        lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    )
    memory = ask("nvmlDeviceGetMemoryInfo", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    out["memory_used"] = None if memory is None else int(memory.used)
    out["recovery_action"] = _recovery_action(pynvml, handle, ask)
    mig = ask("nvmlDeviceGetMigMode", lambda: pynvml.nvmlDeviceGetMigMode(handle))
    out["mig"] = bool(mig and mig[0])
    out["nvlinks"] = _nvlinks(pynvml, handle, index, step)
    running = ask("nvmlDeviceGetComputeRunningProcesses", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    out["processes"] = [{"pid": p.pid, "used": p.usedGpuMemory} for p in running or ()]
    return out


def _recovery_action(pynvml: Any, handle: Any, ask: Callable[[str, Callable[[], Any]], Any]) -> Optional[int]:
    """0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset; None where the driver has no such field."""
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        return None
    values = ask("nvmlDeviceGetFieldValues", lambda: pynvml.nvmlDeviceGetFieldValues(handle, [field]))
    if not values or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def _nvlinks(pynvml: Any, handle: Any, index: int, step: Step) -> list[bool]:
    """Active or not, per link; ends at the first link number that the card does not have."""
    found = []
    for link in range(getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)):
        step(f"nvmlDeviceGetNvLinkState({index},{link})")
        try:
            found.append(bool(pynvml.nvmlDeviceGetNvLinkState(handle, link)))
        except pynvml.NVMLError:
            break
    return found
