"""Counters of RDMA ports: which ones are read, how they count, what they mean.

Sources: IBTA PortCounters (width: a counter stops at its highest value and does not wrap), kernel
Documentation/ABI/stable/sysfs-class-infiniband, the drivers mlx5, irdma, bnxt_re and efa. All count since the driver was loaded, or
since somebody cleared them: a number alone proves nothing, only what was added since an earlier look does.
"""

from __future__ import annotations

import os
from typing import Optional

__all__ = ["BYTES_PER_WORD", "DATA", "HIGHEST", "SIGNS_OF_USE", "read_counters", "read_line"]

DATA = ("port_xmit_data", "port_rcv_data")
"""In words of 4 bytes, whatever the number of lanes (IBTA PortXmitData: "octets, divided by 4")."""
BYTES_PER_WORD = 4

SIGNS_OF_USE = (
    "port_rcv_data", "port_xmit_data", "link_downed",
    "rx_write_requests", "rx_read_requests",  # mlx5
    "ip4InOctets", "ip4OutOctets", "InRdmaWrites", "InRdmaSends",  # irdma
    "rx_pkts", "tx_pkts",  # bnxt_re, efa
)  # fmt: skip
"""Counters that stay 0 on a port that never carried anything. Errors are no such sign: a port without a cable hears noise."""

HIGHEST = {
    "link_downed": 0xFF,
    "link_error_recovery": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
    "port_rcv_constraint_errors": 0xFF,
    "port_xmit_constraint_errors": 0xFF,
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_rcv_remote_physical_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
}
"""Where the classic counters stop. Newer hardware counts further: only a value of exactly this says "at least"."""

_PORT: tuple[str, ...] = (*DATA, *HIGHEST)
_HARDWARE: tuple[str, ...] = ("rx_icrc_encapsulated", "rx_roce_error_pkts", "rx_drops", "retrans_timeout_events")
_OF_USE: dict[str, tuple[str, ...]] = {"counters": SIGNS_OF_USE[:3], "hw_counters": SIGNS_OF_USE[3:]}


def read_counters(port: str, active: bool) -> dict[str, int]:
    """Counters of the port folder. Those that tell of faults where it is active, else those that tell of use."""
    wanted = {"counters": _PORT, "hw_counters": _HARDWARE} if active else _OF_USE
    found: dict[str, int] = {}
    for folder, names in wanted.items():
        try:
            there = set(os.listdir(f"{port}/{folder}"))
        except OSError:
            continue
        for name in names:
            value = read_line(f"{port}/{folder}/{name}") if name in there else ""
            if value and value.isascii() and value.isdigit():
                found[name] = int(value)
    return found


def read_line(path: str, size: int = 256) -> str:
    """The text of a small sysfs file, stripped; "" where it cannot be read. Half the cost of pathlib's way."""
    fd: Optional[int] = None
    try:
        # O_NONBLOCK: a captured tree may hold a FIFO
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return os.read(fd, size).decode("ascii", "replace").strip()
    except (OSError, ValueError):
        return ""
    finally:
        if fd is not None:
            os.close(fd)
