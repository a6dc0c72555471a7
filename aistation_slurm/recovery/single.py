"""One watchdog a host and journal: a lock that the kernel takes back when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from aistation_slurm.errors import JournalError

__all__ = ["runs_here", "take_place"]


def _path(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.lock")


def take_place(journal: Path) -> int:
    """Become the only watchdog of this journal; the file descriptor that holds the place. Raises JournalError."""
    path = _path(journal)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise JournalError(
            f"{path}: {exc.strerror}; run the watchdog as SlurmUser, or set watchdog.journal to a folder of its user"
        ) from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(lock)
        raise JournalError(f"{path}: another watchdog runs here; one per cluster is enough") from exc
    return lock


def runs_here(journal: Path) -> bool:
    """Whether some process holds the place. Raises JournalError where that cannot be told."""
    path = _path(journal)
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}; only root and the watchdog's user can look") from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
