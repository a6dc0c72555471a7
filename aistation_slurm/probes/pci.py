"""NVIDIA GPUs as the PCI bus and the driver's /proc show them, without NVML.

A device that fell off the bus keeps its sysfs folder; its configuration space then reads all ones (``lspci``: rev ff).
Reading these files of a sick device can block: call :func:`read_gpus` in a child (probes/child.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

__all__ = ["PciGpu", "has_bus", "parse_lspci", "read_gpus"]

_VENDOR = "0x10de"
_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controller; audio and USB functions of the same card are other classes (pci.ids)."""


@dataclass(frozen=True)
class PciGpu:
    """address: ``0000:8f:00.0``. alive: None where the configuration could not be read. minor: of /dev/nvidiaN.

    width, speed: lanes and GT/s of the link now; max_*: what the device can; slot_*: what the port above it can. None where
    the tree does not say. vbios, model: as the driver tells them; "" where it does not. name: the PCI device id.
    """

    address: str
    alive: Optional[bool]
    minor: int = -1
    uuid: str = ""
    name: str = ""
    model: str = ""
    vbios: str = ""
    width: Optional[int] = None
    max_width: Optional[int] = None
    slot_width: Optional[int] = None
    speed: Optional[float] = None
    max_speed: Optional[float] = None
    slot_speed: Optional[float] = None


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
        found.append(
            PciGpu(
                path.name,
                alive,
                int(minor) if minor.isdigit() else -1,
                information.get("GPU UUID", ""),
                _line(path / "device"),
                information.get("Model", ""),
                information.get("Video BIOS", ""),
                **_link(path),
            )
        )
    return found


def parse_lspci(text: str) -> list[PciGpu]:
    """What ``lspci`` printed: ``1c:00.0 3D controller: NVIDIA Corporation TU102GL (rev ff)``; rev ff does not answer.

    Also ``lspci -n`` (``1c:00.0 0302: 10de:2330 (rev a1)``) and, below a device of ``lspci -vv``, its LnkCap and LnkSta.
    """
    found: dict[str, dict[str, Any]] = {}
    facts: Optional[dict[str, Any]] = None
    for line in text.splitlines():
        head = re.match(r"((?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) (.*)", line)
        if head:
            address = head.group(1).lower()
            address = address if address.count(":") == 2 else f"0000:{address}"
            facts = None
            if re.match(r"(VGA compatible|3D) controller.*NVIDIA|030[02]: 10de:|.*\[030[02]\].*\[10de:", head.group(2)):
                facts = found[address] = {"alive": "(rev ff)" not in line}
        elif facts is not None:
            cap = re.search(r"LnkCap:.*Speed ([\d.]+)GT/s.*Width x(\d+)", line)
            now = re.search(r"LnkSta:.*Speed ([\d.]+)GT/s.*Width x(\d+)", line)
            if cap:
                facts.update(max_speed=float(cap.group(1)), max_width=int(cap.group(2)))
            elif now and int(now.group(2)):
                facts.update(speed=float(now.group(1)), width=int(now.group(2)))
            elif "Unknown header type 7f" in line:
                facts["alive"] = False
    return [PciGpu(address, **facts) for address, facts in sorted(found.items())]


def has_bus(root: Path) -> bool:
    """True where the PCI tree can be seen at all, so that a GPU that is not in it is not there."""
    try:
        return any((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return False


def _link(device: Path) -> dict[str, Any]:
    """The device's own link, and what the port above it offers (its folder is the parent of the device's)."""
    slot = _real(device).parent
    return {
        "width": _lanes(device / "current_link_width"),
        "max_width": _lanes(device / "max_link_width"),
        "slot_width": _lanes(slot / "max_link_width"),
        "speed": _speed(device / "current_link_speed"),
        "max_speed": _speed(device / "max_link_speed"),
        "slot_speed": _speed(slot / "max_link_speed"),
    }


def _real(device: Path) -> Path:
    try:
        return device.resolve()
    except (OSError, RuntimeError):
        return device


def _lanes(path: Path) -> Optional[int]:
    """0, 63 and 255 are what a link that is down or a device that is off the bus gives."""
    text = _line(path).lstrip("x")
    return int(text) if text.isdigit() and 1 <= int(text) <= 32 else None


def _speed(path: Path) -> Optional[float]:
    """``16.0 GT/s PCIe`` (older kernels: ``16 GT/s``) -> 16.0; ``Unknown`` -> None."""
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", _line(path))
    return float(match.group(1)) if match else None


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
