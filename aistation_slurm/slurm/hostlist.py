"""Slurm hostlists by Slurm's own rules (src/common/hostlist.c, checked against ``scontrol show hostnames``).

Not through ClusterShell's NodeSet: it sorts, it folds different zero paddings of one prefix together, and it takes the
width of a range from the longer bound, so that ``listserv01,listserv3`` names a host that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aistation_slurm.errors import AistationError

__all__ = ["HostlistError", "expand", "fold"]

MAX_HOSTS = 65536
"""More names than this in one list is a typing error or an attack, not a cluster."""


class HostlistError(AistationError):
    """The text is not a Slurm hostlist."""


def expand(text: str) -> list[str]:
    """``gpu[1-2,07],login`` -> ``["gpu1", "gpu2", "gpu07", "login"]``, in the order written.

    Line breaks separate like commas (people paste lists); what Slurm prints for "no nodes" is an empty list.

    Raises HostlistError for unbalanced brackets, empty or backward ranges and anything that is not a list of names.
    """
    found: list[str] = []
    text = text.strip()
    if text in ("", "(null)", "None assigned", "None"):
        return found
    for piece in _pieces(re.sub(r"\s*\n\s*", ",", text)):
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


def fold(names: Iterable[str], keep_order: bool = False) -> str:
    """Names as one hostlist, each once: ``["gpu2", "gpu1"]`` -> ``gpu[1-2]``.

    Sorted by prefix and number, or in the order given, as ``scontrol show hostlist`` does. Names of different width never
    share a range: 1 and 01 are different hosts.
    """
    unique = list(dict.fromkeys(names))
    parts = [_split(name) for name in unique]
    if not keep_order:
        parts.sort(key=lambda p: (p[0], len(p[1]) if p[1].startswith("0") else 0, int(p[1] or -1)))
    groups: list[tuple[str, list[str]]] = []
    for prefix, digits in parts:
        if digits and groups and groups[-1][0] == prefix and groups[-1][1]:
            groups[-1][1].append(digits)
        else:
            groups.append((prefix, [digits] if digits else []))
    return ",".join(f"{prefix}{_ranges(numbers)}" for prefix, numbers in groups)


def _split(name: str) -> tuple[str, str]:
    match = re.fullmatch(r"(.*?)(\d*)", name)
    return (match.group(1), match.group(2)) if match else (name, "")


def _ranges(numbers: list[str]) -> str:
    """``["1", "2", "3", "05"]`` -> ``[1-3,05]``; one number needs no bracket."""
    if len(numbers) < 2:
        return "".join(numbers)
    runs = [[numbers[0], numbers[0]]]
    for text in numbers[1:]:
        last = runs[-1][1]
        follows = int(text) == int(last) + 1
        padded = text.startswith("0") or last.startswith("0")
        if follows and (len(text) == len(last) or not padded):
            runs[-1][1] = text
        else:
            runs.append([text, text])
    return "[" + ",".join(low if low == high else f"{low}-{high}" for low, high in runs) + "]"
