"""Reading a hostile directory safely: bounded, no links followed into devices, no FIFO opened, nothing unpickled.

Tearing is judged by header and size alone: a zip (every torch.save since 1.6) ends with its directory record, a
safetensors file is exactly as long as its header says (huggingface.co/docs/safetensors). Reading is at most 64 KiB at
each end of a file, whatever its size, except for safetensors headers (at most 100 MB by that format's own rule; 16 here).
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import CheckpointError

__all__ = ["PLACEHOLDER_BYTES", "list_dir", "problem", "read_small", "size_of"]

PLACEHOLDER_BYTES = 64
"""No real tensor file is smaller; see docs/decisions/0003."""
_TAIL = 65557  # longest zip end record: 22 bytes and a comment of 65535
_HEADER_MAX = 16 << 20
_ZIP, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"


def list_dir(path: Path) -> list[os.DirEntry[str]]:
    """Entries of a directory, in no order. Raises CheckpointError where it cannot be read."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as exc:
        raise CheckpointError(f"{path}: cannot be read: {exc.strerror}") from exc


def _open(path: Path) -> tuple[int, os.stat_result]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise OSError(0, "not a regular file")
    return fd, found


def read_small(path: Path, limit: int = 4096) -> Optional[str]:
    """Text of a small file (a tracker), stripped; None where it is missing, not regular or longer than ``limit``."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        fd, found = _open(path)
    except OSError:
        return None
    try:
        return None if found.st_size > limit else os.read(fd, limit).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def size_of(path: Path) -> Optional[int]:
    """Size in bytes of a regular file (links followed); None for anything else."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def problem(path: Path, strict: bool = True) -> str:
    """Why this file cannot be whole; empty where nothing speaks against it.

    strict: False where every file of the directory is a placeholder and emptiness proves nothing.
    """
    size = size_of(path)
    if size is None:
        return f"{path.name} is missing or not a regular file"
    if size < PLACEHOLDER_BYTES:
        return f"{path.name} has {size} bytes" if strict and not path.name.endswith(".json") else ""
    try:
        fd, found = _open(path)
    except OSError as exc:
        return f"{path.name} cannot be read: {exc.strerror or exc}"
    try:
        head = os.pread(fd, 512, 0)
        if path.name.endswith(".safetensors"):
            return _safetensors(fd, found.st_size, head, path.name)
        if path.name.endswith(".json"):
            return _json(fd, found.st_size, path.name)
        if head.startswith(_ZIP):
            tail = os.pread(fd, _TAIL, max(0, found.st_size - _TAIL))
            return "" if _ZIP_END in tail else f"{path.name} is cut short (zip without its end record)"
        return f"{path.name} begins with zeros" if not any(head) else ""
    except OSError as exc:
        return f"{path.name} cannot be read: {exc.strerror}"
    finally:
        os.close(fd)


def _safetensors(fd: int, size: int, head: bytes, name: str) -> str:
    length = int.from_bytes(head[:8], "little")
    if length == 0 or length > _HEADER_MAX or length + 8 > size:
        return f"{name} is cut short or no safetensors file (its header would be {length} bytes)"
    try:
        header = json.loads(os.pread(fd, length, 8))
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        wanted = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return f"{name} has a broken header"
    return "" if wanted == size else f"{name} has {size} bytes, its header says {wanted}"


def _json(fd: int, size: int, name: str) -> str:
    if size > _HEADER_MAX:
        return ""
    try:
        json.loads(os.pread(fd, size, 0))
    except (ValueError, RecursionError):
        return f"{name} is cut short (not valid JSON)"
    return ""
