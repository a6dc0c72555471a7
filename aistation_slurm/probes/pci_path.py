"""Where a PCI device hangs: the bridges from the host bridge down to it, from the links in /sys/bus/pci/devices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["read_pci_paths"]

_PART = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_pci_paths(root: Path, addresses: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """``0000:18:00.0`` -> ("pci0000:15", "0000:15:01.0", ..., "0000:18:00.0"); devices that the tree does not link are left out."""
    found = {}
    for address in addresses:
        try:
            target = os.readlink(root / "sys/bus/pci/devices" / address)
        except (OSError, ValueError):
            continue
        parts = tuple(part for part in target.split("/") if _PART.fullmatch(part))
        if parts and parts[-1] == address:
            found[address] = parts
    return found
