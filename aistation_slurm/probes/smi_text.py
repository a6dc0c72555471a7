"""What ``nvidia-smi`` printed on a captured node: ``-q``, ``--query-gpu=... --format=csv``, or its table.

``[N/A]`` and ``[Not Supported]`` are facts about the card; ``ERR!``, ``[Unknown Error]``, ``[GPU requires reset]`` and ``[GPU is
lost]`` are failures. On a live node NVML itself is asked (probes/nvml.py): nvidia-smi hangs when the driver does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Callable, Optional

import msgspec

from aistation_slurm.probes.nvml import NvmlSnapshot

__all__ = ["parse"]

_FAILURES = (
    ("gpu is lost", "NVML_ERROR_GPU_IS_LOST"),
    ("requires reset", "NVML_ERROR_RESET_REQUIRED"),
    ("unknown error", "NVML_ERROR_UNKNOWN"),
    ("err!", "NVML_ERROR_UNKNOWN"),
)
_RECOVERY = {"none": 0, "reset": 1, "gpu reset": 1, "reboot": 2, "node reboot": 2, "drain p2p": 3, "drain and reset": 4}
_FABRIC = {"not started": 1, "in progress": 2, "completed": 3}
_BUS = r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"


def parse(text: str) -> Optional[NvmlSnapshot]:
    """None where the text is none of the forms."""
    if "NVSMI LOG" in text:
        return _query_report(text)
    gpus: list[dict[str, Any]] = []
    for facts in [*_table(text), *_csv(text), *_lost_lines(text)]:
        known = next((g for g in gpus if _same(g, facts)), None)
        if known is None:
            gpus.append(facts)
        else:
            # the same card in two outputs: each tells what the other does not
            known.update(
                {**facts, "pci": facts.get("pci") or known.get("pci", ""), "errors": known["errors"] | facts["errors"]}
            )
    if not gpus:
        return None
    driver = re.search(r"Driver Version: ([\d.]+)", text)
    return msgspec.convert({"gpus": gpus, "driver": driver.group(1) if driver else ""}, NvmlSnapshot)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one.get("pci") and other.get("pci"):
        return bool(one["pci"] == other["pci"])
    return bool(one["index"] == other["index"] >= 0)


def _number(text: str) -> Optional[int]:
    match = re.match(r"-?\d+(?:\.\d+)?", text)
    return int(float(match.group())) if match else None


def _milliwatts(text: str) -> Optional[int]:
    match = re.match(r"\d+(?:\.\d+)?", text)
    return int(float(match.group()) * 1000) if match else None


def _yes(text: str) -> Optional[bool]:
    word = text.lower()
    if word in ("yes", "enabled", "active", "on", "1"):
        return True
    return False if word in ("no", "disabled", "not active", "off", "0") else None


def _word(text: str) -> str:
    return text


def _recovery(text: str) -> Optional[int]:
    return _RECOVERY.get(text.lower(), 99)


Reader = Callable[[str], Any]
_T, _R, _M, _H = "nvmlDeviceGetTemperature", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetMemoryInfo", "nvidia-smi"
_E = "nvmlDeviceGetTotalEccErrors"

_CSV: dict[str, tuple[str, Reader, str]] = {
    # query field: (GpuSnapshot field, reader, the question that fails with it)
    "index": ("index", _number, _H),
    "name": ("name", _word, _H),
    "uuid": ("uuid", _word, _H),
    "serial": ("serial", _word, _H),
    "pci.bus_id": ("pci", lambda t: _pci(t), _H),
    "vbios_version": ("vbios", _word, _H),
    "inforom.img": ("inforom", _word, _H),
    "persistence_mode": ("persistence", _yes, _H),
    "ecc.mode.current": ("ecc_enabled", _yes, _H),
    "ecc.mode.pending": ("ecc_pending", _yes, _H),
    "ecc.errors.uncorrected.volatile.total": ("ecc_volatile", _number, _E),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_aggregate", _number, _E),
    "ecc.errors.corrected.volatile.total": ("ecc_corrected", _number, _E),
    "ecc.errors.uncorrected.volatile.sram": ("sram_volatile", _number, _E),
    "ecc.errors.uncorrected.aggregate.sram": ("sram_aggregate", _number, _E),
    "retired_pages.single_bit_ecc.count": ("retired_single", _number, _H),
    "retired_pages.double_bit.count": ("retired_double", _number, _H),
    "retired_pages.pending": ("retired_pending", _yes, _H),
    "remapped_rows.correctable": ("remap_correctable", _number, _R),
    "remapped_rows.uncorrectable": ("remap_uncorrectable", _number, _R),
    "remapped_rows.pending": ("remap_pending", _yes, _R),
    "remapped_rows.failure": ("remap_failed", _yes, _R),
    "temperature.gpu": ("temperature", _number, _T),
    "temperature.memory": ("temperature_memory", _number, _H),
    "power.draw": ("power", _milliwatts, _H),
    "enforced.power.limit": ("power_limit", _milliwatts, _H),
    "power.limit": ("power_limit", _milliwatts, _H),
    "power.default_limit": ("power_default", _milliwatts, _H),
    "utilization.gpu": ("utilization", _number, _H),
    "clocks.sm": ("sm_clock", _number, _H),
    "clocks.max.sm": ("sm_clock_max", _number, _H),
    "pcie.link.gen.current": ("pcie_gen", _number, _H),
    "pcie.link.gen.max": ("pcie_max_gen", _number, _H),
    "pcie.link.width.current": ("pcie_width", _number, _H),
    "pcie.link.width.max": ("pcie_max_width", _number, _H),
    "memory.used": ("memory_used", lambda t: (_number(t) or 0) << 20, _M),
    "mig.mode.current": ("mig", lambda t: bool(_yes(t)), _H),
    "mig.mode.pending": ("mig_pending", _yes, _H),
    "gpu_recovery_action": ("recovery_action", _recovery, _H),
    "clocks_throttle_reasons.active": ("throttle", lambda t: int(t, 16), _H),
    "clocks_event_reasons.active": ("throttle", lambda t: int(t, 16), _H),
}

_QUERY: dict[str, tuple[str, Reader, str]] = {
    # end of the path in the -q report: the same
    "Product Name": _CSV["name"],
    "GPU UUID": _CSV["uuid"],
    "Serial Number": _CSV["serial"],
    "Minor Number": ("minor", _number, _H),
    "VBIOS Version": _CSV["vbios_version"],
    "Inforom Version/Image Version": _CSV["inforom.img"],
    "Persistence Mode": _CSV["persistence_mode"],
    "MIG Mode/Current": _CSV["mig.mode.current"],
    "MIG Mode/Pending": _CSV["mig.mode.pending"],
    "ECC Mode/Current": _CSV["ecc.mode.current"],
    "ECC Mode/Pending": _CSV["ecc.mode.pending"],
    "Volatile/Double Bit/Total": _CSV["ecc.errors.uncorrected.volatile.total"],
    "Aggregate/Double Bit/Total": _CSV["ecc.errors.uncorrected.aggregate.total"],
    "Volatile/Single Bit/Total": _CSV["ecc.errors.corrected.volatile.total"],
    "Aggregate/SRAM Threshold Exceeded": ("sram_threshold", _yes, _H),
    "Retired Pages/Single Bit ECC": _CSV["retired_pages.single_bit_ecc.count"],
    "Retired Pages/Double Bit ECC": _CSV["retired_pages.double_bit.count"],
    "Retired Pages/Pending Page Blacklist": _CSV["retired_pages.pending"],
    "Retired Pages/Pending": _CSV["retired_pages.pending"],
    "Remapped Rows/Correctable Error": _CSV["remapped_rows.correctable"],
    "Remapped Rows/Uncorrectable Error": _CSV["remapped_rows.uncorrectable"],
    "Remapped Rows/Pending": _CSV["remapped_rows.pending"],
    "Remapped Rows/Remapping Failure Occurred": _CSV["remapped_rows.failure"],
    "Temperature/GPU Current Temp": _CSV["temperature.gpu"],
    "Temperature/GPU Shutdown Temp": ("temperature_shutdown", _number, _H),
    "Temperature/GPU Slowdown Temp": ("temperature_slowdown", _number, _H),
    "Temperature/Memory Current Temp": _CSV["temperature.memory"],
    "Temperature/Memory Max Operating Temp": ("temperature_memory_max", _number, _H),
    "Power Readings/Power Draw": _CSV["power.draw"],
    "Power Readings/Enforced Power Limit": _CSV["power.limit"],
    "GPU Power Readings/Current Power Limit": _CSV["power.limit"],
    "Power Readings/Default Power Limit": _CSV["power.default_limit"],
    "GPU Power Readings/Power Draw": _CSV["power.draw"],
    "GPU Power Readings/Instantaneous Power Draw": _CSV["power.draw"],
    "GPU Power Readings/Default Power Limit": _CSV["power.default_limit"],
    "Utilization/Gpu": _CSV["utilization.gpu"],
    "Utilization/GPU": _CSV["utilization.gpu"],
    "Max Clocks/SM": _CSV["clocks.max.sm"],
    "Clocks/SM": _CSV["clocks.sm"],
    "PCIe Generation/Max": _CSV["pcie.link.gen.max"],
    "PCIe Generation/Current": _CSV["pcie.link.gen.current"],
    "Link Width/Max": _CSV["pcie.link.width.max"],
    "Link Width/Current": _CSV["pcie.link.width.current"],
    "Fabric/State": ("fabric_state", lambda t: _FABRIC.get(t.lower()), _H),
    "GPU Recovery Action": _CSV["gpu_recovery_action"],
}
_SUMS = {
    # kinds of newer drivers that together are one number
    "ecc_volatile": ("Volatile/SRAM Uncorrectable", "Volatile/DRAM Uncorrectable"),
    "ecc_aggregate": ("Aggregate/SRAM Uncorrectable", "Aggregate/DRAM Uncorrectable"),
    "ecc_corrected": ("Volatile/SRAM Correctable", "Volatile/DRAM Correctable"),
    "sram_volatile": ("Volatile/SRAM Uncorrectable",),
    "sram_aggregate": ("Aggregate/SRAM Uncorrectable",),
}
_HELD = {
    "HW Slowdown": 0x8,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "SW Power Cap": 0x4,
    "Idle": 0x1,
}


def _pci(text: str) -> str:
    """``00000000:8F:00.0`` -> ``0000:8f:00.0``."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _take(facts: dict[str, Any], field: tuple[str, Reader, str], text: str) -> None:
    """Read one cell into ``facts``."""
    name, read, question = field
    value = text.strip().strip("[]")
    low = value.lower()
    error = next((error for words, error in _FAILURES if words in low), "")
    if error:
        facts["errors"][question] = error
        facts["lost"] = facts.get("lost", False) or error == "NVML_ERROR_GPU_IS_LOST"
    elif low not in ("n/a", "not supported", "not available", "", "unknown"):
        try:
            found = read(value)
        except ValueError:
            found = None
        if found is not None:
            facts[name] = found


def _csv(text: str) -> Iterator[dict[str, Any]]:
    """With its header line, or below the command line that asked (``--query-gpu=a,b --format=csv,noheader``)."""
    names: list[str] = []
    for line in text.splitlines():
        asked = re.search(r"--query-gpu=(\S+)", line)
        cells = [cell.strip() for cell in (asked.group(1) if asked else line).split(",")]
        header = [re.sub(r"\s*\[.*\]$", "", cell) for cell in cells]
        if sum(name in _CSV for name in header) >= 2 or (asked and header):
            names = header
        elif names and len(cells) == len(names) and "|" not in line:
            facts: dict[str, Any] = {"index": -1, "errors": {}}
            for name, cell in zip(names, cells):
                if name in _CSV:
                    _take(facts, _CSV[name], cell)
            yield facts


def _table(text: str) -> Iterator[dict[str, Any]]:
    """``|  14  NVIDIA RTX 4000 ...  On  |   00000000:CC:00.0 Off |`` and the line below it, with fan, heat, power, memory."""
    lines = text.splitlines()
    for line, below in zip(lines, [*lines[1:], ""]):
        match = re.match(r"\|\s*(\d+)\s+(\S.*?)\s+(?:On|Off|N/A|ERR!)\s*\|\s*" + _BUS, line)
        if match is None:
            continue
        facts: dict[str, Any] = {"index": int(match.group(1)), "pci": _pci(match.group(3)), "errors": {}}
        cells = below.strip().strip("|").split("|")
        heat = cells[0].split()
        if "ERR!" in below or "ERR!" in line:
            hot = len(heat) > 1 and heat[1] == "ERR!"
            facts["errors"][_T if hot else _M if len(cells) > 1 and "ERR!" in cells[1] else _H] = "NVML_ERROR_UNKNOWN"
        yield facts


def _lost_lines(text: str) -> Iterator[dict[str, Any]]:
    """``Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU``."""
    pattern = r"Unable to determine the device handle for (?:GPU|gpu) ?(?:\d+: )?" + _BUS + r":? (.*)"
    for number, match in enumerate(re.finditer(pattern, text)):
        lost = "lost" in match.group(2).lower()
        error = "NVML_ERROR_GPU_IS_LOST" if lost else "NVML_ERROR_UNKNOWN"
        errors = {"nvmlDeviceGetHandleByIndex": error}
        yield {"index": -2 - number, "pci": _pci(match.group(1)), "lost": lost, "errors": errors}


def _query_report(text: str) -> NvmlSnapshot:
    driver, gpus = "", []
    path: list[tuple[int, str]] = []
    told: dict[str, str] = {}
    for line in text.splitlines():
        top = re.match(r"GPU " + _BUS, line)
        if top:
            told = {"pci": _pci(top.group(1))}
            gpus.append(told)
            path = []
            continue
        key, colon, value = line.partition(" : ")
        depth = len(line) - len(line.lstrip())
        path = [(d, name) for d, name in path if d < depth]
        if colon and not gpus and key.strip() == "Driver Version":
            driver = value.strip()
        if colon:
            told["/".join([*(name for _, name in path), key.strip()])] = value.strip()
        if line.strip():
            path.append((depth, key.strip()))
    snapshots = [_of_report(index, facts) for index, facts in enumerate(gpus)]
    return msgspec.convert({"gpus": snapshots, "driver": driver}, NvmlSnapshot)


def _of_report(index: int, told: dict[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"index": index, "pci": told["pci"], "errors": {}}
    for path, value in told.items():
        end = next((end for end in _QUERY if path == end or path.endswith(f"/{end}")), None)
        if end is not None and not path.startswith(("Processes", "Applications Clocks")):
            _take(facts, _QUERY[end], value)
    for name, kinds in _SUMS.items():
        parts = [_number(value) for path, value in told.items() if any(kind in path for kind in kinds)]
        known = [part for part in parts if part is not None]
        if known and name not in facts:
            facts[name] = sum(known)
    reasons = {p.rpartition("/")[2]: v for p, v in told.items() if "Reasons/" in p and "Counters" not in p}
    if reasons:
        facts["throttle"] = sum(bit for name, bit in _HELD.items() if reasons.get(name) == "Active")
    return facts
