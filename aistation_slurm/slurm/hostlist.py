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
    for piece in _pieces(re.sub(r"\s*[\r\n]\s*", ",", text)):
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
    """``r[1-2]n[1-2]`` -> r1n1, r1n2, r2n1, r2n2. Slurm takes no text after the last bracket."""
    names = [""]
    rest = piece
    while "[" in rest:
        head, _, rest = rest.partition("[")
        inside, _, rest = rest.partition("]")
        numbers = [number for item in inside.split(",") for number in _range(item, whole)]
        if len(names) * len(numbers) > MAX_HOSTS:
            raise HostlistError(f"{whole[:60]!r} has more than {MAX_HOSTS} names")
        names = [f"{name}{head}{number}" for name in names for number in numbers]
        if rest and "[" not in rest:
            raise HostlistError(f"{whole!r}: {rest!r} after the last bracket; Slurm takes no such hostlist")
    if "[" not in piece:
        names = [piece]
    for name in names[:1]:
        if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name, re.ASCII):
            raise HostlistError(f"{whole!r}: {name!r} is not a node name")
    return names


def _range(item: str, whole: str) -> list[str]:
    """``08-10`` -> 08, 09, 10: the lower bound's width holds."""
    bounds = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", item.strip())
    if bounds is None:
        raise HostlistError(f"{whole!r}: {item!r} inside brackets is neither a number nor a range like 1-8")
    low, high = bounds.group(1), bounds.group(2) or bounds.group(1)
    if int(high) < int(low):
        raise HostlistError(f"{whole!r}: range {item!r} runs backward")
    if int(high) - int(low) >= MAX_HOSTS:
        raise HostlistError(f"{whole!r}: range {item!r} has more than {MAX_HOSTS} names")
    return [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]


def fold(names: Iterable[str]) -> str:
    """Names as one hostlist, each once: ``["gpu2", "gpu1", "gpu07"]`` -> ``gpu[1-2,07]``.

    Numbers are sorted within a prefix and a width; prefixes and widths keep the order in which they first appear. Names of
    different width never share a range: 1 and 01 are different hosts.
    """
    parts = [_split(name) for name in dict.fromkeys(names)]
    padded = {(prefix, len(digits)) for prefix, digits in parts if digits.startswith("0") and len(digits) > 1}
    groups: dict[str, dict[int, list[str]]] = {}
    for prefix, digits in parts:
        # an unpadded number belongs to the padded series of its width, where there is one: 09, 10
        width = len(digits) if (prefix, len(digits)) in padded else 0
        groups.setdefault(prefix, {}).setdefault(width if digits else -1, []).append(digits)
    found = []
    for prefix, series in groups.items():
        if -1 in series:
            found.append(prefix)
        runs = [run for width, numbers in series.items() if width >= 0 for run in _runs(sorted(numbers, key=int))]
        if runs:
            single = len(runs) == 1 and "-" not in runs[0]
            found.append(f"{prefix}{runs[0]}" if single else f"{prefix}[{','.join(runs)}]")
    return ",".join(found)


def _split(name: str) -> tuple[str, str]:
    """A name's prefix and its last number: ``r1n02`` -> ("r1n", "02")."""
    match = re.fullmatch(r"(.*?)([0-9]{0,18})", name, re.DOTALL)
    assert match is not None
    return match.group(1), match.group(2)


def _runs(numbers: list[str]) -> list[str]:
    """Sorted numbers of one series: ``["1", "2", "3", "7"]`` -> ["1-3", "7"]."""
    runs: list[list[str]] = []
    for text in numbers:
        if runs and int(text) == int(runs[-1][1]) + 1:
            runs[-1][1] = text
        else:
            runs.append([text, text])
    return [low if low == high else f"{low}-{high}" for low, high in runs]
