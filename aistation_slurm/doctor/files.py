"""What lies at a path that Slurm runs or loads, read without following it onto a network file system."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Collection
from pathlib import Path

from aistation_slurm.doctor.elf import spank_release
from aistation_slurm.doctor.model import FileFact
from aistation_slurm.recovery.local_disk import network_filesystem

__all__ = ["look_at"]

HEAD_BYTES = 64 << 10


def look_at(path: str, owners: Collection[int] = (0,), as_root: bool = True) -> FileFact:
    """owners: uids that may own the file and the folders on its way. as_root: who runs it may read it whatever its mode.

    A file on a network file system is not opened: that could hang.
    """
    where = Path(path)
    try:
        network = network_filesystem(where)
        if network:
            return FileFact(path, True, network=network)
        real = where.resolve()
        seen = real.stat()
    except (OSError, RuntimeError):
        return FileFact(path, False)
    is_file = stat.S_ISREG(seen.st_mode)
    head = _head(real) if is_file else ""
    interpreter = _interpreter(head)
    wanted = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH if as_root else stat.S_IXOTH
    return FileFact(
        path,
        True,
        is_file,
        bool(seen.st_mode & wanted),
        _loose(real, owners),
        "",
        interpreter,
        not interpreter or os.access(interpreter, os.X_OK),
        head,
        spank_release(real) if path.endswith(".so") else None,
    )


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _interpreter(head: str) -> str:
    if not head.startswith("#!"):
        return ""
    words = head.partition("\n")[0][2:].split()
    return words[0] if words else ""


def _loose(path: Path, owners: Collection[int]) -> str:
    """What others may change: ``/etc/slurm/x.sh is writable for its group``; "" where all is well."""
    for part in (path, *path.parents):
        try:
            seen = part.lstat()
        except OSError:
            continue
        if seen.st_uid not in owners:
            return f"{part} belongs to the user {seen.st_uid}"
        # who may write into a sticky folder may not replace what is another's there
        sticky = stat.S_ISDIR(seen.st_mode) and seen.st_mode & stat.S_ISVTX
        if not sticky and seen.st_mode & stat.S_IWOTH:
            return f"{part} is writable for everybody"
        if not sticky and seen.st_mode & stat.S_IWGRP and not _trusted(seen.st_gid):
            return f"{part} is writable for its group"
    return ""


def _trusted(gid: int) -> bool:
    """Root's own group, and those that distributions give to administrators: /usr/local of Debian 11 is staff's."""
    try:
        return gid == 0 or grp.getgrgid(gid).gr_name in ("staff", "wheel", "slurm")
    except KeyError:
        return False
