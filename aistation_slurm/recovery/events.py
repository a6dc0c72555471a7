"""The event spool: EpilogSlurmctld renames files in, the watchdog journals and then removes them.

A file appears whole or not at all; one that is not of the form goes to ``bad/`` for a person, and never stops the others.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import AistationError
from aistation_slurm.slurm import hostlist

__all__ = ["JobEnded", "read_spool", "remove"]

log = logging.getLogger(__name__)

MAX_BYTES = 16384
_warned: set[str] = set()


@dataclass(frozen=True)
class JobEnded:
    """An attempt of a managed job ended. time: unix seconds. restart_count is for display: when it is raised differs."""

    path: Path
    job_id: int
    time: float
    nodes: tuple[str, ...] = ()
    exit_code: Optional[int] = None
    exit_signal: int = 0
    restart_count: Optional[int] = None
    max_restarts: Optional[int] = None
    user_id: Optional[int] = None

    @property
    def how(self) -> str:
        """How the batch script ended, in words."""
        if self.exit_signal:
            return f"signal {self.exit_signal}"
        return "exit code not told" if self.exit_code is None else f"exit code {self.exit_code}"


def read_spool(folder: Path) -> Iterator[JobEnded]:
    """Events in the order of their arrival. A missing folder is no event (the caller says so once)."""
    try:
        with os.scandir(folder) as entries:
            names = [e.path for e in entries if e.name.endswith(".ev")]
    except OSError:
        return
    for name in sorted(names, key=_arrival):
        path = Path(name)
        try:
            event = _read(path)
        except OSError as exc:
            # it may be readable later, and nothing is lost as long as it lies there
            if exc.errno != errno.ENOENT:
                _warn_once(path, f"{exc.strerror}; is the spool the watchdog's own?")
            continue
        if event is not None:
            yield event
        else:
            _set_aside(path)


def remove(event: JobEnded) -> None:
    """After it is in the journal, which knows it by its name: one that cannot be removed is taken in only once."""
    try:
        event.path.unlink(missing_ok=True)
    except OSError as exc:
        _warn_once(event.path, f"cannot be removed: {exc.strerror}; the folder has to belong to the watchdog's user")


def _arrival(name: str) -> float:
    try:
        return os.lstat(name).st_mtime
    except OSError:
        return 0.0


def _read(path: Path) -> Optional[JobEnded]:
    """The event; None for what is not one. Raises OSError where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno == errno.ELOOP:  # a link: nobody of ours makes one
            return None
        raise
    with os.fdopen(fd, "rb") as handle:
        found = os.fstat(handle.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            return None
        text = handle.read(MAX_BYTES).decode("utf-8", "replace")
    # split("\n") and not splitlines(): the latter also cuts at characters that a user may have in a value
    fields = dict(line.partition("=")[::2] for line in text.split("\n") if "=" in line)
    job_id = fields.get("JOB_ID", "")
    if not re.fullmatch(r"\d{1,10}", job_id) or fields.get("END") != "1":
        return None
    try:
        nodes = tuple(hostlist.expand(fields.get("NODELIST", "")))
    except AistationError:
        nodes = ()
    code, signal = _exit(fields.get("EXIT_CODE2", ""), fields.get("EXIT_CODE", ""))
    return JobEnded(
        path=path,
        job_id=int(job_id),
        time=found.st_mtime,
        nodes=nodes,
        exit_code=code,
        exit_signal=signal,
        restart_count=_number(fields.get("RESTART_COUNT", "")),
        max_restarts=_number(fields.get("SPANK_AISTATION_MAX_RESTARTS", "")),
        user_id=_number(fields.get("UID", "")),
    )


def _number(text: str) -> Optional[int]:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def _exit(pair: str, status: str) -> tuple[Optional[int], int]:
    """``EXIT_CODE2`` is "code:signal"; ``EXIT_CODE`` a wait(2) status."""
    match = re.fullmatch(r"(\d+):(\d+)", pair)
    if match:
        return int(match.group(1)), int(match.group(2))
    number = _number(status)
    return (None, 0) if number is None else ((number >> 8) & 0xFF, number & 0x7F)


def _warn_once(path: Path, what: str) -> None:
    """The spool is read five times a second."""
    if str(path) not in _warned:
        _warned.add(str(path))
        log.warning("%s: %s", path, what)


def _set_aside(path: Path) -> None:
    """To a person's attention, out of the way of the others."""
    folder = path.parent / "bad"
    _warn_once(path, f"not an event; moved to {folder}")
    try:
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    except OSError:
        pass
