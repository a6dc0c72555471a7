"""Statistics of a network driver, as ``ethtool -S`` shows them: by ioctl on the node, from a sosreport in a captured tree.

Source: include/uapi/linux/ethtool.h (SIOCETHTOOL; ETHTOOL_GSSET_INFO, GSTRINGS, GSTATS). The ioctl takes the kernel's RTNL lock and
asks the device's firmware, so it can block: call :func:`read_statistics` in a child (probes/child.py).
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

__all__ = ["captured_statistics", "parse_statistics", "read_statistics"]

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SS_STATS = 1
_NAME_LENGTH = 32
_MOST = 100_000
"""No driver has as many; a larger number is not believed."""


def read_statistics(
    interfaces: Sequence[str], keep: str, step: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, int]]:
    """Statistics whose name matches the pattern ``keep``, by interface. Interfaces that have none are left out."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name in interfaces:
            step(f"ethtool statistics of {name}")
            try:
                found[name] = _statistics(sock, name, re.compile(keep))
            except OSError:
                continue
    return found


def _statistics(sock: socket.socket, interface: str, keep: re.Pattern[str]) -> dict[str, int]:
    info = _ask(sock, interface, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
    count = struct.unpack_from("=I", info, 16)[0] if struct.unpack_from("=Q", info, 8)[0] else 0
    if not 0 < count <= _MOST:
        return {}
    head = struct.pack("=III", _GSTRINGS, _SS_STATS, count)
    names = _ask(sock, interface, head + bytes(count * _NAME_LENGTH))
    values = _ask(sock, interface, struct.pack("=II", _GSTATS, count) + bytes(count * 8))
    found = {}
    for index in range(count):
        raw = names[12 + index * _NAME_LENGTH : 12 + (index + 1) * _NAME_LENGTH]
        name = raw.split(b"\0", 1)[0].decode("ascii", "replace").strip()
        if keep.fullmatch(name):
            found[name] = struct.unpack_from("=Q", values, 8 + index * 8)[0]
    return found


def _ask(sock: socket.socket, interface: str, request: bytes) -> bytes:
    buffer = array.array("B", request)
    address, _ = buffer.buffer_info()
    fcntl.ioctl(sock, _SIOCETHTOOL, struct.pack("16sP16x", interface.encode()[:15], address))
    return buffer.tobytes()


def captured_statistics(root: Path, interface: str) -> dict[str, int]:
    """Of ``sos_commands/networking/ethtool_-S_X``; empty where the tree does not have it."""
    try:
        text = (root / f"sos_commands/networking/ethtool_-S_{interface}").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return {}
    return parse_statistics(text)


def parse_statistics(text: str) -> dict[str, int]:
    """``     tx_prio3_pause: 12`` -> {"tx_prio3_pause": 12}; other lines are left out."""
    pairs = re.findall(r"^\s*([^:\n]+?):\s*(\d{1,20})\s*$", text, re.MULTILINE | re.ASCII)
    return {name: int(value) for name, value in pairs}
