"""What a job has written so far: its output files and its checkpoint directory, read as the job's user under a deadline.

Cheap on purpose, as it is asked every half minute: sizes and times of directory entries only, newest folders first, and
no more than 20,000 entries. No file is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from aistation_slurm.probes.child import ChildResult, Step, run_child
from aistation_slurm.probes.user import Credentials

__all__ = ["Source", "Written", "read_written", "scan_folder", "scan_outputs"]

MAX_ENTRIES = 20_000
MAX_DEPTH = 4
MAX_FOLDERS = 64
"""Of one folder, the newest this many are entered: nobody writes to the older of 10,000 checkpoints."""
OWN = (".aistation-", "aistation-hang-")
"""Files of our own (lease, attempts, stacks) are no progress of the job."""


@dataclass(frozen=True)
class Source:
    """The output files, or the checkpoint directory, at one look.

    state: ``present`` (something is in it), ``absent`` (missing or empty: nothing to judge by), ``unknown`` (could not be
    read). newest_ns: newest modification time as the file server gave it; only compared for change.
    """

    state: Literal["present", "absent", "unknown"] = "absent"
    newest_ns: int = 0
    entries: int = 0
    size: int = 0


@dataclass(frozen=True)
class Written:
    """error: why something could not be read, in words; empty where all could."""

    output: Source
    checkpoint: Source
    error: str = ""


def read_written(
    outputs: Sequence[str], checkpoint_dir: str, user: Credentials, deadline_s: float, pids: Sequence[int] = ()
) -> tuple[Written, ChildResult]:
    """Never later than the deadline. A file system that does not answer makes both sources ``unknown``.

    pids: processes of the job, whose stdout and stderr count too, since scripts send them to files of their own.
    """

    def body(step: Step) -> dict[str, Any]:
        step(f"becoming uid {user.uid}")
        user.become()
        answer: dict[str, Any] = {}
        for name in ("output", "checkpoint"):
            try:
                found = scan_outputs(outputs, step, pids) if name == "output" else scan_folder(checkpoint_dir, step)
                answer[name] = msgspec.to_builtins(found)
            except OSError as exc:
                answer[name] = msgspec.to_builtins(Source("unknown"))
                answer["error"] = f"{exc.filename}: {exc.strerror}"
        return answer

    result = run_child(body, deadline_s)
    if result.value is None:
        return Written(Source("unknown"), Source("unknown"), result.error), result
    return msgspec.convert(result.value, Written), result


def scan_outputs(paths: Sequence[str], step: Step = lambda _: None, pids: Sequence[int] = ()) -> Source:
    """Files that stdout and stderr go to; what is no regular file, missing or empty is nothing to judge by.

    Raises OSError where one of ``paths`` cannot be looked at.
    """
    found: dict[tuple[int, int], os.stat_result] = {}
    for path in paths:
        step(f"stat {path}")
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found[status.st_dev, status.st_ino] = status
    for pid in pids:
        for number in (1, 2):
            step(f"stat of output {number} of process {pid}")
            try:
                status = os.stat(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue  # it has ended, or runs as somebody else
            found[status.st_dev, status.st_ino] = status
    files = [status for status in found.values() if stat.S_ISREG(status.st_mode) and status.st_size]
    newest = max((status.st_mtime_ns for status in files), default=0)
    return Source("present" if files else "absent", newest, len(files), sum(status.st_size for status in files))


def scan_folder(root: str, step: Step = lambda _: None) -> Source:
    """Every entry below ``root`` in the newest folders, four levels deep; links are not followed below it.

    Raises OSError where the folder itself cannot be read; one below it that vanishes or refuses is passed over.
    """
    if not root:
        return Source()
    newest = entries = size = 0
    level = [root]
    for _ in range(MAX_DEPTH):
        following: list[str] = []
        for folder in level:
            step(f"reading {folder}")
            try:
                rows = _entries(folder, MAX_ENTRIES - entries)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError:
                if folder == root:
                    raise
                continue
            newest = max([newest, *(row[0] for row in rows)])
            size += sum(row[1] for row in rows)
            entries += len(rows)
            following += [row[2] for row in sorted(rows, reverse=True) if row[2]][:MAX_FOLDERS]
        level = following
        if entries >= MAX_ENTRIES:
            break
    return Source("present" if entries else "absent", newest, entries, size)


def _entries(folder: str, limit: int) -> list[tuple[int, int, str]]:
    """(mtime in ns, size, path where it is a folder else "") of the entries, our own left out."""
    rows: list[tuple[int, int, str]] = []
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith(OWN):
                continue
            if len(rows) >= limit:
                break
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            inner = entry.path if stat.S_ISDIR(status.st_mode) else ""
            rows.append((status.st_mtime_ns, 0 if inner else status.st_size, inner))
    return rows
