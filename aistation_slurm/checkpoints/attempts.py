"""What each attempt of a job was given, kept in the checkpoint directory, and which checkpoints it shows to be bad.

A file can be whole and still be poison: a NaN in the weights, an optimizer state of another version. Nobody can see that
without loading it, so a checkpoint that was given to two attempts, of which none saved a newer one, is not given again. An
attempt that ended for a fault of the machines says nothing about its checkpoint.
Why so: docs/decisions/0006-start-up-lease-and-failed-checkpoints.md
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from aistation_slurm.checkpoints import side_file

__all__ = ["ATTEMPTS", "INFRA", "Given", "ended", "failed_twice", "given_to", "read", "record", "stamp"]

ATTEMPTS = side_file.PREFIX + "attempts"
_TAIL_BYTES = 128 * 1024  # some 400 starts
_STAMP_FILES = 64
_TWICE = 2
INFRA = "infra"
_INNOCENT = frozenset((INFRA, "preempted", "requeued"))
"""Ends that say nothing about the checkpoint: a fault of the machines, Slurm's own or a person's requeue."""


class Given(NamedTuple):
    """One attempt: the checkpoint it was given (path empty: none) and how it ended (infra, user, hang, ... or "").

    stamp: of the checkpoint's files when it was given, 0 not known. time: unix seconds of the start.
    """

    attempt: int
    path: str
    step: Optional[int]
    stamp: int
    time: float
    ended: str = ""


def read(directory: Path) -> list[dict[str, Any]]:
    """Latest records, oldest first; lines that are none are left out, and so is a file that another user owns."""
    file = side_file.read_tail(directory / ATTEMPTS, _TAIL_BYTES)
    if file is None or file.owner != os.geteuid():
        return []
    entries = []
    for line in file.content.split(b"\n"):
        try:
            entry = json.loads(line) if line else None
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def record(directory: Path, entry: Mapping[str, Any]) -> bool:
    """Append one record; a directory that cannot be written stays as it is (False)."""
    return side_file.append(directory / ATTEMPTS, (json.dumps(entry) + "\n").encode())


def stamp(path: str) -> int:
    """Latest change (ns) among the first files of a checkpoint: another value, another content under the same name.

    The directory's own time would not do: a trainer that runs through a step again overwrites the files in place.
    """
    latest = _changed(path)
    pending = [path]
    left = _STAMP_FILES
    while pending and left > 0:
        folder = pending.pop(0)
        try:
            names = sorted(os.listdir(folder))
        except (OSError, ValueError):  # a checkpoint of one file
            continue
        for name in names[:left]:
            child = f"{folder}/{name}"
            latest = max(latest, _changed(child))
            left -= 1
            if os.path.isdir(child) and not os.path.islink(child):
                pending.append(child)
    return latest


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):  # a record may name what no path can be
        return 0


def given_to(mine: Sequence[Mapping[str, Any]], ended_last: str) -> list[Given]:
    """The attempts of one job, oldest first, from its records. ended_last: how the latest of them ended.

    Every record tells how the attempt before it ended (``last``), as the watchdog judged it. Values of a wrong type count as
    not known: the file is the user's.
    """
    found: list[Given] = []
    for entry, following in zip(mine, [*mine[1:], None]):
        last = ended_last if following is None else _text(following.get("last"))
        one = Given(
            _number(entry.get("attempt")) or 0,
            _text(entry.get("path")),
            _number(entry.get("step")),
            _number(entry.get("stamp")) or 0,
            float(_number(entry.get("time")) or 0),
            last,
        )
        if found and found[-1].attempt == one.attempt:
            found.pop()  # its first launch did not come as far as the script
        found.append(one)
    return found


def ended(before: Optional[Mapping[str, Any]], tag: Mapping[str, str], tag_text: str) -> str:
    """How the attempt recorded in ``before`` ended, by the AdminComment's ``last`` and ``fault`` as they are now; "" unknown.

    A tag that still is what it was when that attempt began tells of an older one: Slurm or a person made this restart.
    """
    if before is None:
        return ""
    start = before.get("start")
    if start and tag.get("fault", "").rpartition("@")[2] == str(start):
        return INFRA
    if before.get("tag") == tag_text:
        return ""
    # a watchdog that does not write `last` restarts for faults of the machines alone
    return tag.get("last") or (INFRA if tag.get("act") else "")


def failed_twice(given: Sequence[Given], most: int = 16) -> dict[str, int]:
    """Checkpoints, by path, that two attempts were given and got nowhere with, and that are what they were then.

    Value: how many attempts. A newer checkpoint given since then clears one: the run had gone on from it.
    """
    counts: dict[tuple[str, int], int] = {}
    known: dict[tuple[str, int], Given] = {}
    for one in given:
        for key in [key for key, older in known.items() if _newer(one, older)]:
            del known[key], counts[key]
        if one.path and one.ended not in _INNOCENT:
            key = (one.path, one.stamp)
            counts[key] = counts.get(key, 0) + 1
            known[key] = one
    suspects = [key for key, count in counts.items() if count >= _TWICE][-most:]
    return {path: counts[path, then] for path, then in suspects if _same(path, then, known[path, then].time)}


def _newer(one: Given, than: Given) -> bool:
    if not one.path or (one.path, one.stamp) == (than.path, than.stamp):
        return False
    if one.step is not None and than.step is not None and one.step != than.step:
        return one.step > than.step
    return one.stamp > than.stamp


def _same(path: str, then: int, given: float) -> bool:
    now = stamp(path)
    return now == then if then else now <= given * 1e9


def _number(value: object) -> Optional[int]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if abs(value) < 1e19 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
