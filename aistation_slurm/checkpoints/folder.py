"""The only place that touches the file system: list folders, read heads and tails of regular files.

Checkpoint folders are hostile: links that loop or dangle, FIFOs and devices under the names of shards, names with
newlines. Only regular files are ever opened, without blocking, and only a bounded part of them is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.errors import CheckpointError

__all__ = ["Folder", "MissingDirectory", "OpenFile", "mtime", "open_regular", "plain", "read_folder", "read_word"]

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class MissingDirectory(CheckpointError):
    """The checkpoint directory does not exist: a first run, or a file system that is not mounted here."""


@dataclass(frozen=True)
class Folder:
    """One listing. Links count as what they lead to; dangling: name -> link text; special: FIFOs, sockets, devices.

    links: names among dirs and files that are symbolic links.
    """

    path: str
    dirs: frozenset[str]
    files: frozenset[str]
    dangling: dict[str, str]
    special: frozenset[str]
    links: frozenset[str]

    @property
    def empty(self) -> bool:
        return not (self.dirs or self.files or self.dangling or self.special)

    def child(self, name: str) -> str:
        return f"{self.path}/{name}"  # os.path.join would take a third of the time of choosing among 10,000


def read_folder(path: str) -> Folder:
    """List one folder with one pass of scandir. Raises OSError."""
    dirs, files, special, links = set(), set(), set(), set()
    dangling: dict[str, str] = {}
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.is_symlink():
                    links.add(entry.name)
                if entry.is_dir():
                    dirs.add(entry.name)
                elif entry.is_file():
                    files.add(entry.name)
                elif entry.is_symlink() and not os.path.exists(entry.path):
                    dangling[entry.name] = os.readlink(entry.path)
                else:
                    special.add(entry.name)
            except OSError as exc:  # a loop of links, or a name that went away since
                dangling[entry.name] = plain(exc.strerror or "link loop")
    live = frozenset(links - dangling.keys())
    return Folder(path, frozenset(dirs), frozenset(files), dangling, frozenset(special), live)


@dataclass(frozen=True)
class OpenFile:
    """A regular file; size in bytes and mtime (unix seconds) at the time of opening."""

    fd: int
    size: int
    mtime: float = 0.0

    def at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer at the end of the file."""
        parts = []
        while length > 0:
            part = os.pread(self.fd, length, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)


@contextmanager
def open_regular(path: str) -> Iterator[OpenFile]:
    """Open a regular file. Raises OSError, also when it is something else (which is then never opened)."""
    _refuse_special(os.stat(path).st_mode, path)  # opening a device or a FIFO has effects of its own
    fd = os.open(path, _FLAGS)
    try:
        now = os.fstat(fd)
        _refuse_special(now.st_mode, path)
        yield OpenFile(fd, now.st_size, now.st_mtime)
    finally:
        os.close(fd)


def _refuse_special(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(f"not a regular file: {plain(path)}")


def read_word(path: str, limit: int = 4096) -> Optional[str]:
    """The text of a small file such as a tracker, stripped; None when it holds more than ``limit`` bytes or no text.

    Raises OSError.
    """
    with open_regular(path) as file:
        raw = file.at(0, limit + 1)
    if len(raw) > limit:
        return None
    try:
        text = raw.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None
    return text if text and text.isprintable() else None


def mtime(path: str) -> float:
    """Unix seconds; 0.0 when it cannot be read. A link's own time where the link dangles."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        try:
            return os.lstat(path).st_mtime
        except OSError:
            return 0.0


def plain(text: str, limit: int = 200) -> str:
    """Text of foreign origin for a message: printable, on one line, bounded."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."
