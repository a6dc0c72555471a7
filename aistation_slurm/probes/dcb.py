"""Priority flow control of an interface, as ``dcb pfc show`` tells it: RTM_GETDCB over netlink.

Source: include/uapi/linux/dcbnl.h (DCB_CMD_IEEE_GET, struct ieee_pfc). The kernel asks the device's firmware under its RTNL
lock: call :func:`read_pfc` in a child (probes/child.py).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Callable, Optional

__all__ = ["parse_pfc", "read_pfc"]

_RTM_GETDCB, _NLM_F_REQUEST, _NLMSG_ERROR = 78, 1, 2
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE, _IEEE_PFC = 1, 13, 2
_TYPE_MASK = 0x3FFF
_TIMEOUT_S = 1.0


def read_pfc(interfaces: Sequence[str], step: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """``priorities 3`` or ``off`` by interface; those whose driver does not tell are left out."""
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(_TIMEOUT_S)
        for number, name in enumerate(interfaces, start=1):
            step(f"priority flow control of {name}")
            attribute = _attribute(_ATTR_IFNAME, name.encode()[:15] + b"\0")
            body = struct.pack("=BBH", socket.AF_UNSPEC, _CMD_IEEE_GET, 0) + attribute
            head = struct.pack("=IHHII", 16 + len(body), _RTM_GETDCB, _NLM_F_REQUEST, number, 0)
            try:
                sock.sendto(head + body, (0, 0))
                enabled = parse_pfc(sock.recv(65536))
            except OSError:
                continue
            if enabled is not None:
                found[name] = "priorities " + ",".join(map(str, enabled)) if enabled else "off"
    return found


def parse_pfc(message: bytes) -> Optional[tuple[int, ...]]:
    """Priorities with flow control in a reply; None where it has none: an error, or a driver without PFC."""
    if len(message) < 20 or struct.unpack_from("=H", message, 4)[0] == _NLMSG_ERROR:
        return None
    length = min(struct.unpack_from("=I", message, 0)[0], len(message))
    for kind, data in _attributes(message[20:length]):
        if kind == _ATTR_IEEE:
            for inner, value in _attributes(data):
                if inner == _IEEE_PFC and len(value) >= 2:
                    return tuple(priority for priority in range(8) if value[1] >> priority & 1)
    return None


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data, 0)
        if not 4 <= length <= len(data):
            return
        yield kind & _TYPE_MASK, data[4:length]
        data = data[(length + 3) & ~3 :]
