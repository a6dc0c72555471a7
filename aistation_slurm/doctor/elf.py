"""The Slurm release that a SPANK plugin was built for, read from its file without loading it.

``SPANK_PLUGIN()`` (slurm/spank.h) leaves SLURM_VERSION_NUMBER, 0xMMmmpp, in the exported 32-bit symbol ``plugin_version``; Slurm
compares its upper two bytes with its own (src/common/plugin.c). 64-bit little-endian ELF alone, as Slurm's builds are.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Optional

__all__ = ["spank_release"]

MAX_BYTES = 16 << 20
SYMBOL = b"plugin_version\0"
DYNSYM = 11


def spank_release(path: Path) -> Optional[tuple[int, int]]:
    """(22, 5) for a plugin of 22.05; None where the file does not tell."""
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_BYTES else b""
        number = _number(data)
    except (OSError, struct.error, IndexError):
        return None
    return None if number is None else (number >> 16 & 255, number >> 8 & 255)


def _number(data: bytes) -> Optional[int]:
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    # name, type, flags, address, offset, size, link, info, align, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    for section in sections:
        if section[1] != DYNSYM:
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, home, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if data.startswith(SYMBOL, names + name):
                there = sections[home]
                (found,) = struct.unpack_from("<I", data, there[4] + value - there[3])
                return int(found)
    return None
