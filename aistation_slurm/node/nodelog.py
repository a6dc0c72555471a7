"""One-line messages of the prolog and the epilog: stderr (slurmd's log) and syslog.

``syslog(3)`` waits when the log daemon is stuck; a prolog must not. So: one datagram that is sent or dropped.
"""

from __future__ import annotations

import os

from aistation_slurm.node.gate_job import plain

__all__ = ["say"]

DAEMON_WARNING = 3 << 3 | 4


def say(part: str, text: str, socket_path: str = "/dev/log") -> None:
    """``aistation <part>: <text>`` as printable ASCII on one line. Never fails."""
    line = f"aistation {part}: {plain(text)}"
    try:
        os.write(2, line.encode() + b"\n")
    except OSError:
        pass
    try:
        import _socket

        link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            link.setblocking(False)
            link.sendto(f"<{DAEMON_WARNING}>{line}".encode(), socket_path)
        finally:
            link.close()
    except (ImportError, OSError):
        pass
