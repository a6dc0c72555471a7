"""The one lock of a node under which agent, gate and `aistation check --act` set or clear this node's drain."""

from __future__ import annotations

import fcntl
import os
import time

__all__ = ["DrainLock"]


class DrainLock:
    """``with DrainLock(state_dir, wait_s) as held:``; ``held`` is False when another holds it for longer.

    The kernel drops the lock with its holder, so a killed process never leaves it behind.
    """

    def __init__(self, state_dir: str, wait_s: float) -> None:
        self.path = f"{state_dir}/drain.lock"
        self.wait_s = wait_s
        self.fd = -1

    def __enter__(self) -> bool:
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + self.wait_s
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
