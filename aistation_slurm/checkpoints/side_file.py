"""The small files that we keep in a checkpoint directory, which is the user's and may hold anything under their names."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple, Optional

__all__ = ["PREFIX", "SideFile", "append", "is_ours", "read_tail", "write_new"]

PREFIX = ".aistation-"
"""All of our names begin so; the readers of checkpoints know none of them."""

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class SideFile(NamedTuple):
    """content: the last bytes, from the beginning of a line where the file is longer. owner: uid. inode: its identity."""

    content: bytes
    owner: int
    inode: int


def is_ours(name: str) -> bool:
    """True for a name that is not the user's."""
    return name.startswith(PREFIX)


def read_tail(path: Path, limit: int) -> Optional[SideFile]:
    """The last ``limit`` bytes of a regular file; None for anything else (a link, a FIFO, a folder, nothing)."""
    try:
        fd = os.open(path, os.O_RDONLY | _SAFE)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        cut = max(0, status.st_size - limit)
        content = os.pread(fd, limit, cut)
    except OSError:
        return None
    finally:
        os.close(fd)
    return SideFile(content.partition(b"\n")[2] if cut else content, status.st_uid, status.st_ino)


def append(path: Path, line: bytes) -> bool:
    """Add one line, also behind a line that was cut short. False where that is not possible; nothing is raised."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _SAFE, 0o644)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return False
            torn = status.st_size > 0 and os.pread(fd, 1, status.st_size - 1) != b"\n"
            os.write(fd, (b"\n" if torn else b"") + line)
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def write_new(path: Path, content: bytes) -> None:
    """A new file, readable by all. Raises OSError, also where the name is taken."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o644)
    try:
        os.fchmod(fd, 0o644)
        os.write(fd, content)
    finally:
        os.close(fd)
