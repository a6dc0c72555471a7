"""Slurm hostlists, through ClusterShell's NodeSet, with Slurm's rules where the two differ.

Slurm keeps the order in which names are written and each name's own zero padding; NodeSet sorts and, in old releases,
folds paddings together. So lists are cut at top-level commas first, and each piece is expanded by NodeSet alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import NodeSet, NodeSetException

from aistation_slurm.errors import AistationError

__all__ = ["HostlistError", "expand", "fold"]

MAX_HOSTS = 65536
"""More names than this in one list is a typing error or an attack, not a cluster."""


class HostlistError(AistationError):
    """The text is not a Slurm hostlist."""


def expand(text: str) -> list[str]:
    """``gpu[1-2,07],login`` -> ``["gpu1", "gpu2", "gpu07", "login"]``, in the order written.

    Raises HostlistError for unbalanced brackets, empty or backward ranges and anything that is not a list of names.
    """
    found: list[str] = []
    for piece in _pieces(text):
        found += _expand_piece(piece, text)
        if len(found) > MAX_HOSTS:
            raise HostlistError(f"{text[:60]!r} has more than {MAX_HOSTS} names")
    return found


def _pieces(text: str) -> list[str]:
    """Cut at commas outside brackets."""
    pieces, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        if depth not in (0, 1):
            raise HostlistError(f"{text!r}: unbalanced or nested brackets at column {index + 1}")
        if char == "," and depth == 0:
            pieces.append(text[start:index].strip())
            start = index + 1
    if depth:
        raise HostlistError(f"{text!r}: a bracket is opened and never closed")
    pieces.append(text[start:].strip())
    return [p for p in pieces if p]


def _expand_piece(piece: str, whole: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", piece)
    if match is None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", piece):
            raise HostlistError(f"{whole!r}: {piece!r} is not a node name")
        return [piece]
    head, tail = piece[: match.start()], piece[match.end() :]
    names: list[str] = []
    for item in match.group(1).split(","):
        bounds = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        if bounds is None:
            raise HostlistError(f"{whole!r}: {item!r} inside brackets is neither a number nor a range like 1-8")
        low, high = bounds.group(1), bounds.group(2) or bounds.group(1)
        if int(high) < int(low):
            raise HostlistError(f"{whole!r}: range {item!r} runs backward")
        if int(high) - int(low) >= MAX_HOSTS:
            raise HostlistError(f"{whole!r}: range {item!r} has more than {MAX_HOSTS} names")
        names += [f"{head}{n:0{len(low)}d}" for n in range(int(low), int(high) + 1)]
    return [name for each in names for name in (_expand_piece(each + tail, whole) if "[" in tail else [each + tail])]


def fold(names: Iterable[str]) -> str:
    """Names as one hostlist, sorted, each padding kept: ``["gpu2", "gpu1"]`` -> ``gpu[1-2]``."""
    try:
        return str(NodeSet.fromlist(sorted(set(names))))
    except NodeSetException as exc:
        raise HostlistError(f"cannot fold these names: {exc}") from exc
