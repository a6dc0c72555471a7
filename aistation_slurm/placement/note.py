"""What placement did to a job, as one segment of its AdminComment, which users cannot write.

``[ais-place n=16 s=2 w=600 x=gpu{1-3,7}]``, written by job_submit.lua (note_of) and kept true by :mod:`.correct`:

===== ==========================================================================================================
n     nodes that the decision was looked up for
s, w  leaf switches that the job may span, and seconds that it waits for so few, where the table and not the user said so
x     nodes that AIStation excludes, ``-`` for none now; ``user``: the job's own --exclude stands. Without x the job
      may use every node
===== ==========================================================================================================

Braces stand for the brackets of a hostlist, which would end the segment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Optional

from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.hostlist import HostlistError

__all__ = ["Note", "admin_comment_with", "read_note"]

_SEGMENT = re.compile(r"\s*\[ais-place ([^\]]*)\]")
_TO_BRACKETS = str.maketrans("{}", "[]")
_TO_BRACES = str.maketrans("[]", "{}")


class Note(NamedTuple):
    """nodes: 0 where it was not looked up; excluded: ours; ours: True where exclusions are AIStation's to set and to lift."""

    nodes: int = 0
    switches: Optional[int] = None
    wait_s: Optional[int] = None
    excluded: tuple[str, ...] = ()
    ours: bool = False
    users_own: bool = False


def read_note(admin_comment: str) -> Optional[Note]:
    """None where placement did nothing to the job, or where what it wrote cannot be read."""
    match = _SEGMENT.search(admin_comment or "")
    if match is None:
        return None
    values = dict(word.partition("=")[::2] for word in match.group(1).split())
    excluded = values.get("x", "").translate(_TO_BRACKETS)
    try:
        names = tuple(hostlist.expand(excluded)) if excluded not in ("", "-", "user") else ()
    except HostlistError:
        return None
    return Note(
        nodes=_number(values.get("n")) or 0,
        switches=_number(values.get("s")),
        wait_s=_number(values.get("w")),
        excluded=names,
        ours=excluded not in ("", "user"),
        users_own=excluded == "user",
    )


def admin_comment_with(
    admin_comment: str, excluded: Optional[Iterable[str]] = None, limit: Optional[tuple[int, int]] = None
) -> str:
    """The AdminComment with these nodes as the ones that AIStation excludes, and this limit (leaf switches, wait in s).

    None: as it was. All else stays.
    """
    changes = {} if limit is None else {"s": str(limit[0]), "w": str(limit[1])}
    if excluded is not None:
        changes["x"] = (hostlist.fold(excluded) or "-").translate(_TO_BRACES)

    def replaced(match: re.Match[str]) -> str:
        words = [word for word in match.group(1).split() if word.partition("=")[0] not in changes]
        order = [*words, *(f"{key}={value}" for key, value in changes.items())]
        order.sort(key=lambda word: "nswx".find(word[:1]))
        return f" [ais-place {' '.join(order)}]"

    return _SEGMENT.sub(replaced, admin_comment, count=1).strip()


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
