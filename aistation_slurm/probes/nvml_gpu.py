"""The questions that are put to one GPU through NVML. Only a child calls this: any of them may block.

What is missing in an older driver or on a lesser card is left out, and is then not judged.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional

from aistation_slurm.probes.child import Step

__all__ = ["error_name", "read_gpu", "text_of"]

SRAM, DRAM = 7, 2
"""NVML_MEMORY_LOCATION_*; SRAM is told apart from Ampere on."""


def error_name(pynvml: Any, exc: Any) -> str:
    for name in dir(pynvml):
        if name.startswith("NVML_ERROR_") and getattr(pynvml, name) == exc.value:
            return name
    return f"NVML error {exc.value}"


def text_of(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _Asker:
    """Calls one GPU, and keeps in ``out`` what failed.

    ``ask`` is for questions that every driver knows; ``extra`` for those whose failure says nothing about the card, but for
    the two errors that always do.
    """

    def __init__(self, pynvml: Any, index: int, step: Step, out: dict[str, Any]) -> None:
        self.pynvml, self.index, self.step, self.out = pynvml, index, step, out
        self.handle: Any = None

    def call(self, name: str, function: Callable[[], Any], telling: Optional[tuple[int, ...]] = None) -> Any:
        nvml = self.pynvml
        for again in (True, False):
            self.step(f"{name}({self.index})")
            try:
                return function()
            except nvml.NVMLError as exc:
                if exc.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                    return None
                if telling is not None and exc.value not in telling:
                    return None
                if exc.value == nvml.NVML_ERROR_UNKNOWN and again:
                    continue  # one failed read may be a race with a reset or with a process that ends
                self.out["errors"][name] = error_name(nvml, exc)
                self.out["lost"] = self.out.get("lost", False) or exc.value == nvml.NVML_ERROR_GPU_IS_LOST
                return None
            except (AttributeError, TypeError):
                if telling is None:
                    raise
                return None  # this pynvml has another form of the call
        return None

    def ask(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.pynvml, name)
        return self.call(name, lambda: function(self.handle, *arguments))

    def extra(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.pynvml, name, None)
        if function is None:
            return None
        telling = (self.pynvml.NVML_ERROR_GPU_IS_LOST, getattr(self.pynvml, "NVML_ERROR_RESET_REQUIRED", -1))
        return self.call(name, lambda: function(self.handle, *arguments), telling)


def read_gpu(pynvml: Any, index: int, step: Step) -> dict[str, Any]:
    """Fields of a GpuSnapshot."""
    out: dict[str, Any] = {"index": index, "errors": {}}
    gpu = _Asker(pynvml, index, step, out)
    by_index = pynvml.nvmlDeviceGetHandleByIndex
    gpu.handle = gpu.call("nvmlDeviceGetHandleByIndex", lambda: by_index(index))
    if gpu.handle is None:
        return out
    _identity(gpu, out)
    _memory_errors(pynvml, gpu, out)
    _clocks_and_heat(pynvml, gpu, out)
    memory = gpu.ask("nvmlDeviceGetMemoryInfo")
    out["memory_used"] = None if memory is None else int(memory.used)
    _fields(pynvml, gpu, out)
    _modes(gpu, out)
    out["nvlinks"] = _nvlinks(pynvml, gpu.handle, index, step)
    running = gpu.ask("nvmlDeviceGetComputeRunningProcesses")
    out["processes"] = [{"pid": p.pid, "used": p.usedGpuMemory} for p in running or ()]
    return out


def _identity(gpu: _Asker, out: dict[str, Any]) -> None:
    pci = gpu.ask("nvmlDeviceGetPciInfo")
    if pci is not None:
        out["pci"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    for key, name in (("uuid", "nvmlDeviceGetUUID"), ("serial", "nvmlDeviceGetSerial"), ("name", "nvmlDeviceGetName")):
        found = gpu.ask(name)
        out[key] = "" if found is None else text_of(found)
    for key, name in (("vbios", "nvmlDeviceGetVbiosVersion"), ("inforom", "nvmlDeviceGetInforomImageVersion")):
        found = gpu.extra(name)
        out[key] = "" if found is None else text_of(found)
    minor = gpu.ask("nvmlDeviceGetMinorNumber")
    out["minor"] = -1 if minor is None else int(minor)
    out["architecture"] = _number(gpu.extra("nvmlDeviceGetArchitecture"))


def _memory_errors(pynvml: Any, gpu: _Asker, out: dict[str, Any]) -> None:
    corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    mode = gpu.extra("nvmlDeviceGetEccMode")
    if mode is not None:
        out.update(ecc_enabled=bool(mode[0]), ecc_pending=bool(mode[1]))
    out["ecc_volatile"] = gpu.ask("nvmlDeviceGetTotalEccErrors", uncorrected, volatile)
    if out["ecc_volatile"] is not None:
        out["ecc_aggregate"] = gpu.extra("nvmlDeviceGetTotalEccErrors", uncorrected, aggregate)
        out["ecc_corrected"] = gpu.extra("nvmlDeviceGetTotalEccErrors", corrected, volatile)
        out["sram_volatile"] = gpu.extra("nvmlDeviceGetMemoryErrorCounter", uncorrected, volatile, SRAM)
        out["sram_aggregate"] = gpu.extra("nvmlDeviceGetMemoryErrorCounter", uncorrected, aggregate, SRAM)
        status = getattr(pynvml, "c_nvmlEccSramErrorStatus_v1_t", None)
        if status is not None:
            told = status()
            if gpu.extra("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(told)) is not None:
                out["sram_threshold"] = bool(told.bThresholdExceeded)
    remap = gpu.ask("nvmlDeviceGetRemappedRows")
    if remap is not None:
        out.update(remap_correctable=int(remap[0]), remap_uncorrectable=int(remap[1]))
        out.update(remap_pending=bool(remap[2]), remap_failed=bool(remap[3]))
        banks = gpu.extra("nvmlDeviceGetRowRemapperHistogram")
        out["banks_spent"] = None if banks is None else int(banks.none)


def _clocks_and_heat(pynvml: Any, gpu: _Asker, out: dict[str, Any]) -> None:
    out["throttle"] = gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    out["temperature"] = gpu.ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
    for key, which in (("shutdown", 0), ("slowdown", 1), ("memory_max", 2)):
        out[f"temperature_{key}"] = _number(gpu.extra("nvmlDeviceGetTemperatureThreshold", which)) or None
    out["power"] = _number(gpu.extra("nvmlDeviceGetPowerUsage"))
    out["power_limit"] = _number(gpu.extra("nvmlDeviceGetEnforcedPowerLimit"))
    out["power_default"] = _number(gpu.extra("nvmlDeviceGetPowerManagementDefaultLimit"))
    rates = gpu.extra("nvmlDeviceGetUtilizationRates")
    out["utilization"] = None if rates is None else int(rates.gpu)
    out["sm_clock"] = _number(gpu.extra("nvmlDeviceGetClockInfo", 1))
    out["sm_clock_max"] = _number(gpu.extra("nvmlDeviceGetMaxClockInfo", 1))
    # the link first, then the load again: a card that went idle in between is not called slow
    out["pcie_gen"] = _number(gpu.extra("nvmlDeviceGetCurrPcieLinkGeneration"))
    rates = gpu.extra("nvmlDeviceGetUtilizationRates")
    if rates is not None and out["utilization"] is not None:
        out["utilization"] = min(out["utilization"], int(rates.gpu))
    for key, name in (
        ("pcie_max_gen", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        ("pcie_max_width", "nvmlDeviceGetMaxPcieLinkWidth"),
        ("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    ):
        out[key] = _number(gpu.extra(name))


_FIELDS = {
    # GpuSnapshot field, or kind of NVLink error: NVML_FI_DEV_*
    "recovery_action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    "retired_single": "NVML_FI_DEV_RETIRED_SBE",
    "retired_double": "NVML_FI_DEV_RETIRED_DBE",
    "retired_pending": "NVML_FI_DEV_RETIRED_PENDING",
    "thermal_ns": "NVML_FI_DEV_PERF_POLICY_THERMAL",
    "temperature_memory": "NVML_FI_DEV_MEMORY_TEMP",
    "nvlink crc flit": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "nvlink crc data": "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "nvlink replay": "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "nvlink recovery": "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "nvlink ecc": "NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL",
}


def _fields(pynvml: Any, gpu: _Asker, out: dict[str, Any]) -> None:
    """Many facts in one call. Recovery action: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset."""
    wanted = {key: getattr(pynvml, name) for key, name in _FIELDS.items() if hasattr(pynvml, name)}
    values = gpu.ask("nvmlDeviceGetFieldValues", list(wanted.values()))
    errors = {}
    for key, value in zip(wanted, values or ()):
        if value.nvmlReturn != 0:
            continue
        number = _field_number(value)
        if key.startswith("nvlink "):
            errors[key.partition(" ")[2]] = number
        else:
            out[key] = bool(number) if key == "retired_pending" else number
    out["nvlink_errors"] = errors
    if not out.get("temperature_memory"):
        out["temperature_memory"] = None


def _field_number(value: Any) -> int:
    kind = {0: "dVal", 1: "uiVal", 2: "ulVal", 4: "sllVal", 5: "siVal", 6: "usVal"}.get(value.valueType, "ullVal")
    return int(getattr(value.value, kind, value.value.ullVal))


def _modes(gpu: _Asker, out: dict[str, Any]) -> None:
    mig = gpu.ask("nvmlDeviceGetMigMode")
    out["mig"] = bool(mig and mig[0])
    out["mig_pending"] = None if mig is None else bool(mig[1])
    persistence = gpu.extra("nvmlDeviceGetPersistenceMode")
    out["persistence"] = None if persistence is None else bool(persistence)
    kind = getattr(gpu.pynvml, "c_nvmlGpuFabricInfo_v2_t", None)
    if kind is not None:
        info = kind()
        if gpu.extra("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)) is not None and info.state:
            out.update(fabric_state=int(info.state), fabric_status=int(info.status))


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


def _number(value: Any) -> Optional[int]:
    return None if value is None else int(value)
