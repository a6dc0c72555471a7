"""The decision table as text, for job_submit.lua, and read back for ``explain``. aistation.lua says the form.

The switch limits of a partition are a few rows even at 16,384 nodes: a limit is ``ceil(nodes / per) + plus`` over a range of
sizes, so that the table is some kilobytes and a reload within slurmctld's locks costs well under a millisecond.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from aistation_slurm.errors import AistationError
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import natural

__all__ = ["BYTES_MAX", "PartitionRow", "Row", "Table", "TableError", "body", "coarser", "compact", "parse", "render"]

BYTES_MAX, ROWS_MAX = 24 * 1024, 600
"""aistation.lua refuses a larger one: a reload takes 5 ms then."""
LIST_BYTES_MAX = 8 * 1024
_HEADER = re.compile(r"aistation-decisions 2 (\d{1,12}) (\d{1,9}) (\d{1,10})\n")
_LIST = re.compile(r"list (\d{1,4}) ([\w.,\[\]-]+)", re.ASCII)
_PARTITION = re.compile(r"partition (\S+) (\d{1,6}) (\d{1,6}) (\d{1,4}) (\d{1,4})", re.ASCII)
_ROW = re.compile(r"(\d{1,6})-(\d{1,6}) (\d{1,6}) (\d{1,6}) (\d{1,6}) (\d{1,4})", re.ASCII)


class TableError(AistationError):
    """The decision table cannot be read, written or told from another file."""


class Row(NamedTuple):
    """Jobs of first..last nodes may span ``ceil(nodes / per) + plus`` leaf switches and wait ``wait_s`` for so few.

    excluded: nodes that jobs of these sizes keep off for now, besides the degraded ones.
    """

    first: int
    last: int
    per: int
    plus: int
    wait_s: int
    excluded: tuple[str, ...] = ()

    def switches(self, nodes: int) -> int:
        return -(-nodes // self.per) + self.plus


@dataclass(frozen=True)
class PartitionRow:
    """What the table says of one partition.

    clean: a job of at most so many nodes surely can start without the avoided ones; gpus: of every node, 0 where they differ.
    """

    name: str
    nodes: int
    clean: int
    gpus: int = 0
    avoid: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()

    def row(self, nodes: int) -> Optional[Row]:
        return next((row for row in self.rows if row.first <= nodes <= row.last), None)


@dataclass(frozen=True)
class Table:
    """time: unix seconds of its making; it is not used for longer than ``ttl_s`` after that."""

    time: int
    ttl_s: int
    partitions: tuple[PartitionRow, ...] = ()

    def partition(self, name: str) -> Optional[PartitionRow]:
        return next((row for row in self.partitions if row.name == name), None)


def compact(limits: Iterable[tuple[int, int, int]], per: int) -> tuple[Row, ...]:
    """Rows for (nodes, switches, wait in s), sizes rising, without loss.

    per: nodes of a usual leaf; sizes whose limit is below ``ceil(nodes / per)`` get rows of their own.
    """
    rows: list[Row] = []
    for nodes, switches, wait_s in limits:
        before = rows[-1] if rows else None
        if before and before.last == nodes - 1 and before.wait_s == wait_s and before.switches(nodes) == switches:
            rows[-1] = before._replace(last=nodes)
            continue
        plus = switches - -(-nodes // per)
        if plus >= 0:
            rows.append(Row(nodes, nodes, per, plus, wait_s))
        else:  # fewer than usual leaves: some are larger
            rows.append(Row(nodes, nodes, 999999, switches - 1, wait_s))
    return tuple(rows)


def coarser(rows: Sequence[Row], most: int) -> tuple[Row, ...]:
    """At most ``most`` rows (at least one): neighbours are joined to the looser limit and the shorter wait."""
    kept = list(rows)
    while len(kept) > max(most, 1):
        kept = [_joined(kept[i : i + 2]) for i in range(0, len(kept), 2)]
    return tuple(kept)


def _joined(rows: Sequence[Row]) -> Row:
    """No size gets fewer switches or more exclusions than before; Slurm takes what is there when a limit is loose."""
    first, last = rows[0].first, rows[-1].last
    per = min(row.per for row in rows)
    plus = max(max(0, row.switches(n) - -(-n // per)) for row in rows for n in (row.first, row.last))
    both = set.intersection(*(set(row.excluded) for row in rows))
    excluded = tuple(node for node in rows[0].excluded if node in both)
    return Row(first, last, per, plus, min(row.wait_s for row in rows), excluded)


class _Lists:
    """Node lists by number, each written once; 0 is the empty one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[str, int] = {"": 0}

    def number(self, nodes: Sequence[str], where: str) -> int:
        text = hostlist.fold(nodes)
        if len(text) > LIST_BYTES_MAX:
            raise TableError(f"{where}: a list of nodes to keep off has {len(text)} bytes")
        if text not in self._numbers:
            self._numbers[text] = len(self._numbers)
            self.lines.append(f"list {self._numbers[text]} {text}")
        return self._numbers[text]


def body(partitions: Sequence[PartitionRow]) -> str:
    """All but the first line: the same text for the same decisions. Raises TableError when it would not be taken."""
    lists = _Lists()
    lines: list[str] = []
    budget = ROWS_MAX // max(1, len(partitions))
    crowded = sum(len(partition.rows) for partition in partitions) > ROWS_MAX
    for partition in sorted(partitions, key=lambda p: natural(p.name)):
        if re.search(r"[\s,]", partition.name) or not partition.name:
            raise TableError(f"partition {partition.name!r}: a name with blanks or commas cannot be in the table")
        where = f"partition {partition.name}"
        avoid = lists.number(partition.avoid, where)
        lines.append(f"{where} {partition.nodes} {partition.clean} {partition.gpus} {avoid}")
        for row in coarser(partition.rows, budget) if crowded else partition.rows:
            excluded = lists.number(row.excluded, where)
            lines.append(f"{row.first}-{row.last} {row.per} {row.plus} {row.wait_s} {excluded}")
    text = "".join(f"{line}\n" for line in lists.lines + lines)
    if len(text) > BYTES_MAX - 64:
        raise TableError(f"the decision table would have {len(text)} bytes; aistation.lua takes {BYTES_MAX}")
    return text


def render(text: str, time: int, ttl_s: int) -> str:
    """``text`` (of :func:`body`) with its first line."""
    return f"aistation-decisions 2 {time} {ttl_s} {zlib.adler32(text.encode())}\n{text}"


def parse(text: str) -> Table:
    """The table of a text. Raises TableError as aistation.lua would refuse it."""
    header = _HEADER.match(text)
    if header is None:
        raise TableError("its first line is not `aistation-decisions 2 <unix time> <ttl s> <adler32>`")
    rest = text[header.end() :]
    if zlib.adler32(rest.encode()) != int(header.group(3)):
        raise TableError("its sum does not match: it is cut short or was changed")
    lists: dict[int, tuple[str, ...]] = {0: ()}
    found: list[tuple[re.Match[str], list[Row]]] = []
    for number, line in enumerate(rest.splitlines(), start=2):
        row, partition, names = _ROW.fullmatch(line), _PARTITION.fullmatch(line), _LIST.fullmatch(line)
        try:
            if row is not None and found:
                first, last, per, plus, wait_s, excluded = (int(value) for value in row.groups())
                found[-1][1].append(Row(first, last, per, plus, wait_s, lists[excluded]))
            elif partition is not None:
                found.append((partition, []))
            elif names is not None:
                lists[int(names[1])] = tuple(hostlist.expand(names[2]))
            else:
                raise TableError(f"line {number} is neither a list nor a partition nor a row")
        except KeyError as exc:
            raise TableError(f"line {number} names a list that is not there before it") from exc
    partitions = (
        PartitionRow(m[1], int(m[2]), int(m[3]), int(m[4]), lists.get(int(m[5]), ()), tuple(rows)) for m, rows in found
    )
    return Table(int(header.group(1)), int(header.group(2)), tuple(partitions))
