"""The line rules of Slurm's configuration files (facts of src/common/parse_config.c), for topology.conf and slurm.conf.

A physical line loses its comment first and is joined to the next one only if it *then* ends in a backslash, so a comment line
in the middle of a continued list ends the list. Keys have any case; blanks may stand around ``=``, so that an empty value takes
the next word, whatever it is; a value with blanks needs double quotes; a file is taken in by ``Include`` at the very start of a
line. Slurm reports the number of the first physical line of a joined one, and so do we.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import TopologyError
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import ERROR, Problem

__all__ = ["Line", "Pair", "expand_names", "join_lines", "pair", "read_lines", "read_text"]

SPACE = " \t\n\v\f\r"
_PAIR = re.compile(
    rf'[{SPACE}]*([A-Za-z0-9_.]+)[{SPACE}]*[-*+/]?=[{SPACE}]*(?:"([^"]*)"|([^{SPACE}]+))(?=[{SPACE}]|\Z)'
)
_INCLUDE = re.compile(rf"include[{SPACE}]+([^{SPACE}]+)", re.IGNORECASE)
MAX_BYTES = 256 << 20
MAX_DEPTH = 16
"""Files that include files: Slurm has no limit and runs out of stack where a file includes itself."""


@dataclass(frozen=True)
class Line:
    """A joined line: its text without comment and escapes, and where its first physical line is."""

    text: str
    number: int
    file: str

    @property
    def blank(self) -> bool:
        return not self.text.strip(SPACE)


@dataclass(frozen=True)
class Pair:
    """key as written; rest: what follows the value on the line."""

    key: str
    value: str
    rest: str


def pair(text: str) -> Optional[Pair]:
    """The key=value that ``text`` starts with, or None where Slurm finds none: ``Nodes=`` at the end of a line."""
    found = _PAIR.match(text)
    if found is None:
        return None
    quoted, plain = found.group(2), found.group(3)
    return Pair(found.group(1), plain if quoted is None else quoted, text[found.end() :])


def read_text(path: Path) -> str:
    """A file's text; bytes that are not UTF-8 are kept as they are. Raises TopologyError when it cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TopologyError(f"{path}: larger than {MAX_BYTES >> 20} MiB; this is not a topology")
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as exc:
        raise TopologyError(f"{path}: cannot be read: {exc.strerror or exc}; give the path of a readable file") from exc


def join_lines(text: str, file: str) -> Iterator[Line]:
    """Slurm's logical lines of one file, without following Include."""
    joined, first = "", 0
    for number, physical in enumerate(text.split("\n"), start=1):
        first = first or number
        piece = _without_comment(physical.split("\0", 1)[0])
        cut = _continuation(piece)
        joined += piece if cut is None else piece[:cut]
        if cut is None:
            yield Line(_unescaped(joined), first, file)
            joined, first = "", 0
    if first:
        yield Line(_unescaped(joined), first, file)


def _without_comment(piece: str) -> str:
    """Everything from a ``#`` that an even number of backslashes precedes is a comment."""
    if "#" not in piece:
        return piece
    found = re.match(r"(?:[^#\\]|\\.|\\\Z)*", piece, re.DOTALL)
    return found.group(0) if found else piece


def _continuation(piece: str) -> Optional[int]:
    """Where the last backslash of a continued line is: blanks may follow it, and their number must be odd."""
    stripped = piece.rstrip(SPACE)
    slashes = len(stripped) - len(stripped.rstrip("\\"))
    return len(stripped) - 1 if slashes % 2 else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.?)", r"\1", text, flags=re.DOTALL) if "\\" in text else text


def read_lines(
    text: str, file: str, problems: list[Problem], *, folder: Optional[Path] = None, depth: int = 0
) -> Iterator[Line]:
    """Logical lines with the included files in their place, blank ones left out.

    folder: where included names that are not absolute lie (slurm.conf's folder); None where there is no file system to look at.
    """
    for line in join_lines(text, file):
        found = _INCLUDE.match(line.text)
        if found is None:
            if not line.blank:
                yield line
            continue
        name, rest = found.group(1), line.text[found.end() :]
        bad = _include_fault(name, rest, folder, depth)
        if bad:
            problems.append(_fatal(line, bad[0], bad[1]))
            continue
        path = Path(folder or "", name)
        try:
            inner = read_text(path)
        except TopologyError as exc:
            problems.append(_fatal(line, f'"Include" failed: {exc}', "slurmctld waits a minute for it, then gives up"))
            continue
        yield from read_lines(inner, str(path), problems, folder=folder, depth=depth + 1)


def _include_fault(name: str, rest: str, folder: Optional[Path], depth: int) -> Optional[tuple[str, str]]:
    if "*" in name:
        return f'"Include" failed: {name}: Slurm does not support glob patterns', "name each file on a line of its own"
    if "%c" in name.lower():
        return f'"Include" failed: {name}: %c needs ClusterName, which a topology file has not', "write the name out"
    if rest.strip(SPACE):
        return f"Parse error after Include: {rest.strip(SPACE)!r}", "one file name, then the end of the line"
    if depth >= MAX_DEPTH:
        return f'"Include" failed: {name}: more than {MAX_DEPTH} files deep', "does the file include itself?"
    if folder is None and not name.startswith("/"):
        return f'"Include" failed: {name}: read from standard input, so there is no folder to look in', "give a file"
    return None


def _fatal(line: Line, message: str, hint: str) -> Problem:
    return Problem(ERROR, message, line.number, "fatal", hint, line.file)


def expand_names(text: str, complain: Callable[[str], None]) -> tuple[str, ...]:
    """A hostlist of a configuration file as names, in order; blanks (in quotes) separate as well as commas.

    ``complain`` gets the reason where it is no hostlist; the answer is then empty.
    """
    if "[" not in text and "]" not in text and "{" not in text:
        return tuple(name for name in re.split(rf"[,{SPACE}]+", text) if name)
    try:
        return tuple(hostlist.expand(re.sub(rf"[{SPACE}]+", ",", text)))
    except hostlist.HostlistError as exc:
        complain(str(exc))
        return ()
