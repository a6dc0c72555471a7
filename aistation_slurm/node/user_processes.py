"""Whether a user still has any process on this node, for the epilog's quick end. Imports nothing but ``os``."""

from __future__ import annotations

import os

__all__ = ["has_processes"]


def has_processes(uid: int, proc: str = "/proc") -> bool:
    """True while some process, zombies apart, has this real uid (proc(5), ``Uid:`` of status).

    The owner of /proc/PID is not enough: it is root for a process that made itself undumpable.
    """
    wanted = str(uid)
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            if os.stat(f"{proc}/{entry}").st_uid not in (0, uid):
                continue
            fd = os.open(f"{proc}/{entry}/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            text = os.read(fd, 2048).decode("ascii", "replace")
        except OSError:
            continue
        finally:
            os.close(fd)
        fields = dict(line.split(":\t", 1) for line in text.split("\n") if ":\t" in line)
        if fields.get("Uid", "").split("\t")[0] == wanted and fields.get("State", "")[:1] not in ("Z", "X"):
            return True
    return False
