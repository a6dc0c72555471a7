"""One sweep that acts at a time on this host. Two hosts at once are kept apart by reading Slurm before every change."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from aistation_slurm.errors import StateFileError

__all__ = ["only_sweep"]


@contextmanager
def only_sweep(state_dir: str) -> Iterator[None]:
    """Raises StateFileError where another one acts right now, or the lock cannot be made: without it nothing is changed."""
    path = f"{state_dir}/sweep.lock"
    try:
        os.makedirs(state_dir, mode=0o755, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StateFileError(
            f"{path}: {exc.strerror}; a sweep that acts needs root, or another node.state_dir"
        ) from exc
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateFileError(f"{path}: another sweep acts right now; nothing was changed") from None
        yield
    finally:
        os.close(fd)
