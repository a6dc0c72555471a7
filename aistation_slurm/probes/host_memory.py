"""Errors of the host's memory from EDAC (kernel Documentation/admin-guide/RAS) and the kernel's taint flags. /sys and /proc."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import msgspec

__all__ = ["MemoryController", "read_controllers", "read_taint"]


class MemoryController(msgspec.Struct, frozen=True):
    """Counts since boot. dimms: label -> (uncorrected, corrected), only those with any."""

    name: str
    uncorrected: int = 0
    corrected: int = 0
    dimms: dict[str, tuple[int, int]] = {}


def read_controllers(root: Path) -> Optional[list[MemoryController]]:
    """None where the kernel has no EDAC driver for this board."""
    folders = _folders(root / "sys/devices/system/edac/mc", "mc")
    found = []
    for folder in folders:
        uncorrected, corrected = _count(folder / "ue_count"), _count(folder / "ce_count")
        if uncorrected is None and corrected is None:
            continue
        dimms = {}
        for dimm in [*_folders(folder, "dimm"), *_folders(folder, "rank")]:
            errors = (_count(dimm / "dimm_ue_count") or 0, _count(dimm / "dimm_ce_count") or 0)
            if any(errors):
                dimms[_line(dimm / "dimm_label") or dimm.name] = errors
        found.append(MemoryController(folder.name, uncorrected or 0, corrected or 0, dimms))
    return found or None


def read_taint(root: Path) -> Optional[int]:
    """Bits as in Documentation/admin-guide/tainted-kernels; None where it cannot be read."""
    return _count(root / "proc/sys/kernel/tainted")


def _folders(parent: Path, prefix: str) -> list[Path]:
    try:
        return sorted(p for p in parent.iterdir() if p.name.startswith(prefix) and p.name[len(prefix) :].isdigit())
    except OSError:
        return []


def _count(path: Path) -> Optional[int]:
    text = _line(path)
    return int(text) if text.isdecimal() and text.isascii() else None


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
