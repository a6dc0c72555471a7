"""NVIDIA GPUs as the PCI bus and the driver's /proc show them, without NVML.

A device that fell off the bus keeps its sysfs folder; its configuration space then reads all ones (``lspci``: rev ff).
Reading these files of a sick device can block: call :func:`read_gpus` in a child (probes/child.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

__all__ = ["PciGpu", "read_gpus"]

_VENDOR = "0x10de"
_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controller; audio and USB functions of the same card are other classes (pci.ids)."""


@dataclass(frozen=True)
class PciGpu:
    """address: ``0000:8f:00.0``. alive: None where the configuration could not be read. minor: of /dev/nvidiaN."""

    address: str
    alive: Optional[bool]
    minor: int = -1
    uuid: str = ""


def read_gpus(root: Path, step: Callable[[str], None] = lambda _: None) -> list[PciGpu]:
    """Sorted by address. Empty where the node has no NVIDIA GPU (or no readable PCI tree). step: told each device."""
    found = []
    try:
        devices = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []
    for path in devices:
        if _line(path / "vendor") != _VENDOR or not _line(path / "class").startswith(_CLASSES):
            continue
        step(f"sysfs of {path.name}")
        alive = _alive(path)
        step(f"/proc/driver/nvidia of {path.name}")
        information = _information(root / "proc/driver/nvidia/gpus" / path.name / "information")
        minor = information.get("Device Minor", "")
        uuid = information.get("GPU UUID", "")
        found.append(PciGpu(path.name, alive, int(minor) if minor.isdigit() else -1, uuid))
    return found


def _alive(device: Path) -> Optional[bool]:
    try:
        with (device / "config").open("rb") as handle:
            head = handle.read(4)
    except OSError:
        head = b""
    if len(head) == 4:
        return head != b"\xff\xff\xff\xff"
    # a copy made without the binary files: what was read when the device was found
    return False if _line(device / "revision") == "0xff" else None


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _information(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in _line(path).splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
