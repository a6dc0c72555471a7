"""The table's file: replaced as a whole, readable for slurmctld, writable for nobody but its owner.

The folder is the guard: only root or SlurmUser may write there, since a table that another user can change would let him choose
where other people's jobs run. aistation.lua opens the file for update, which works for the one that SlurmUser owns.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
import time
from pathlib import Path
from typing import Optional

from aistation_slurm.placement.table import BYTES_MAX, Table, TableError, parse

__all__ = ["intact", "read", "write"]

MODE = 0o644
LEFTOVER_S = 60.0


def write(path: Path, text: str) -> None:
    """Put ``text`` in force. The file gets the folder's owner. Raises TableError; the old table stays then."""
    folder = path.parent
    try:
        owner = _checked(folder)
        _clear_leftovers(path)
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(text.encode())
                os.fchmod(fd, MODE)
                if os.geteuid() == 0:
                    os.fchown(fd, owner.st_uid, owner.st_gid)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as exc:
        raise TableError(f"{path}: cannot be written: {exc.strerror}") from exc


def _clear_leftovers(path: Path) -> None:
    """What a writer that was killed left behind."""
    for name in path.parent.glob(f".{path.name}.*"):
        try:
            if time.time() - name.lstat().st_mtime > LEFTOVER_S:
                name.unlink()
        except FileNotFoundError:
            continue


def _checked(folder: Path) -> os.stat_result:
    found = os.stat(folder)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TableError(f"{folder}: others may write there; slurmctld trusts what lies in it: chmod go-w {folder}")
    if found.st_uid not in (0, os.geteuid()) and os.geteuid() != 0:
        raise TableError(
            f"{folder}: belongs to {_name(found.st_uid)}, not to {_name(os.geteuid())} (SlurmUser) or root"
        )
    return found


def intact(path: Path) -> bool:
    """True where the file there still has the owner and the mode that :func:`write` gave it."""
    try:
        found, folder = os.lstat(path), os.stat(path.parent)
    except OSError:
        return False
    right = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == MODE
    return right and found.st_uid == (folder.st_uid if os.geteuid() == 0 else os.geteuid())


def read(path: Path) -> Optional[Table]:
    """What is there; None where there is none. Raises TableError where it is not a table."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise TableError(f"{path}: not a plain file")
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise TableError(f"{path}: cannot be read: {exc.strerror}") from exc
    if len(data) > BYTES_MAX:
        raise TableError(f"{path}: larger than {BYTES_MAX} bytes")
    return parse(data.decode("utf-8", "replace"))


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
