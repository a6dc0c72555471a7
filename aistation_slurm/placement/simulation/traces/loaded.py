"""What every reader makes: jobs by the time of their submission, and what was left out and why."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Optional

from aistation_slurm.errors import AistationError
from aistation_slurm.placement.simulation.engine import TraceJob

__all__ = ["Collector", "Loaded", "Row", "TraceError", "rows", "whole_nodes"]

UNKNOWN = frozenset({"", "Unknown", "None", "N/A", "NaT", "nan", "NaN"})
UNKNOWN_LIMIT = 2.0
"""Time limits are not in most public traces: this times the run time, up to whole minutes, is taken."""


class TraceError(AistationError):
    """A trace that cannot be read: which line, what was found and what is wanted."""


@dataclass(frozen=True)
class Loaded:
    """jobs: submit_s counts from the first one; left_out: why -> how many."""

    jobs: tuple[TraceJob, ...]
    left_out: Mapping[str, int]
    source: str


@dataclass
class Collector:
    """Takes jobs in any order."""

    source: str
    found: list[tuple[float, int, float, float]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, submit: float, nodes: int, run_s: float, limit_s: float = 0.0) -> None:
        """limit_s: 0 where it is not known. Jobs that did not run are left out."""
        if run_s < 1:
            self.left_out["that did not run"] += 1
            return
        limit = limit_s if limit_s > 0 else math.ceil(run_s * UNKNOWN_LIMIT / 60) * 60
        self.found.append((submit, nodes, run_s, max(limit, run_s)))

    def loaded(self) -> Loaded:
        ordered = sorted(self.found)
        first = ordered[0][0] if ordered else 0.0
        jobs = tuple(TraceJob(n, row[0] - first, *row[1:]) for n, row in enumerate(ordered, start=1))
        return Loaded(jobs, dict(self.left_out), self.source)


@dataclass(frozen=True)
class Row:
    """One line of a table, with errors that say where."""

    place: str
    values: Mapping[str, Optional[str]]

    def text(self, name: str) -> str:
        return (self.values.get(name) or "").strip()

    def known(self, *names: str) -> bool:
        """False where one of them is empty or says that it is not known."""
        return all(self.text(name) not in UNKNOWN for name in names)

    def number(self, name: str) -> float:
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            raise self.error(name, "a number") from None
        if not math.isfinite(value) or value < 0:
            raise self.error(name, "a number from 0 on")
        return value

    def time(self, name: str) -> Optional[float]:
        """Unix seconds of ``2020-06-09 18:41:01``, with ``T`` or an offset too (else UTC); None where it is empty or unknown."""
        text = self.text(name)
        if text in UNKNOWN:
            return None
        try:
            found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            raise self.error(name, "a time such as 2020-06-09 18:41:01") from None
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()

    def error(self, name: str, wanted: str) -> TraceError:
        return TraceError(f"{self.place}: {name} is {self.text(name)!r}, expected {wanted}")


def rows(
    text: str, source: str, needed: Sequence[str], delimiter: str = ",", header: Sequence[str] = ()
) -> Iterator[Row]:
    """Lines of a table whose first line names the columns, or ``header`` where it has none.

    Raises TraceError where a needed column is not there, or a line has another number of fields.
    """
    lines = io.StringIO(text.lstrip("\ufeff"), newline="")
    reader = csv.reader(lines, delimiter=delimiter)
    names = [name.strip() for name in header] or [name.strip() for name in next(reader, [])]
    missing = [name for name in needed if name not in names]
    if missing:
        raise TraceError(f"{source}:1: no column {', '.join(missing)}; there are: {', '.join(names)[:200]}")
    try:
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(names):
                raise TraceError(f"{source}:{reader.line_num}: {len(fields)} fields, expected {len(names)}")
            yield Row(f"{source}:{reader.line_num}", dict(zip(names, fields)))
    except csv.Error as exc:
        raise TraceError(f"{source}:{reader.line_num}: not a table: {exc}") from exc


def whole_nodes(gpus: float, nodes: float, gpus_per_node: int) -> int:
    """Nodes of a job that takes whole ones; 0 for one that takes a part of a node, or no GPU."""
    if gpus < gpus_per_node:
        return 0
    return max(int(nodes), math.ceil(gpus / gpus_per_node))
