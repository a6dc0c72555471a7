"""One-line messages of the prolog and the epilog: stderr, syslog, and ``<state_dir>/hooks.log``.

slurmd shows a script's stderr only when it failed, and a node may have no syslog, hence the file. ``syslog(3)`` waits when
the log daemon is stuck; a prolog must not: one datagram, sent or dropped.
"""

from __future__ import annotations

import os
import time

from aistation_slurm.node.gate_job import plain

__all__ = ["say"]

DAEMON_WARNING = 3 << 3 | 4
KEPT_BYTES = 256 * 1024
"""Of hooks.log, on a file system in memory: then it is begun anew, keeping one older file."""


def say(part: str, text: str, state_dir: str, socket_path: str = "/dev/log") -> None:
    """``aistation <part>: <text>`` as printable ASCII on one line. Never fails, never waits."""
    line = f"aistation {part}: {plain(text)}"
    try:
        os.write(2, line.encode() + b"\n")
    except OSError:
        pass
    _keep(f"{state_dir}/hooks.log", f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}\n".encode())
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


def _keep(path: str, line: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    try:
        if os.fstat(fd).st_size > KEPT_BYTES:
            os.rename(path, f"{path}.1")
        os.write(fd, line)
    except OSError:
        pass
    finally:
        os.close(fd)
