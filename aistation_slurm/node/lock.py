"""The node's two locks: who may change this node's drain right now, and who is this node's agent.

The kernel drops both with their holder, so a killed process never leaves one behind.
"""

from __future__ import annotations

import fcntl
import os
import time

from aistation_slurm.errors import StateFileError

__all__ = ["DrainLock", "agent_is_running", "take_agent_lock"]


class DrainLock:
    """Agent, gate and `aistation check --act` set or clear this node's drain only under it.

    ``with DrainLock(state_dir, wait_s) as held:``; ``held`` is False when another holds it for longer. Where the lock cannot be
    made (a full or read-only /run) it counts as held: two requests in one moment do less harm than a sick node in service.
    """

    def __init__(self, state_dir: str, wait_s: float) -> None:
        self.path = f"{state_dir}/drain.lock"
        self.wait_s = wait_s
        self.fd = -1

    def __enter__(self) -> bool:
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return True
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
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def take_agent_lock(state_dir: str) -> int:
    """Become this node's only agent; the file descriptor that holds it. Raises StateFileError.

    A POSIX record lock, since that is not inherited: a child stuck in state D must not keep a dead agent's place.
    """
    path = f"{state_dir}/agent.lock"
    try:
        os.makedirs(state_dir, mode=0o755, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StateFileError(f"{path}: {exc.strerror}; run the agent as root, or set node.state_dir") from exc
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StateFileError(f"{path}: another `aistation agent` runs on this node; stop it first") from None
    return fd


def agent_is_running(state_dir: str) -> bool:
    """Whether some process holds the agent's lock."""
    try:
        fd = os.open(f"{state_dir}/agent.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)
