"""Slurm's configuration files as settings and records that know their file and line (slurm.conf(5), gres.conf(5)).

The rules of lines are those of topology/readers/conf_lines.py. A line that begins with one of ``RECORDS`` is one record with
its further keys; on any other line each ``key=value`` is a setting by itself, and the last one counts, as in Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import ConfigError, TopologyError
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.readers.conf_lines import Line, join_lines, pair, read_text

__all__ = ["ConfFile", "Fault", "Record", "Setting", "names_of", "read_conf", "read_records"]

RECORDS = frozenset({"nodename", "partitionname", "nodeset", "downnodes", "frontendname", "switchname"})
MAX_DEPTH = 16
_INCLUDE = re.compile(r"include\s+(\S+)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Setting:
    """``key=value`` with its place. key: as written."""

    key: str
    value: str
    file: str
    line: int


@dataclass(frozen=True)
class Record:
    """A line of several keys. keys: lower-case key -> value; ``kind`` is the first key in lower case."""

    kind: str
    keys: dict[str, str]
    file: str
    line: int

    @property
    def name(self) -> str:
        return self.keys[self.kind]


@dataclass(frozen=True)
class Fault:
    """What Slurm would not read."""

    message: str
    file: str
    line: int


@dataclass(frozen=True)
class ConfFile:
    """One file with its includes. settings: lower-case key -> all its settings, in the order of lines."""

    path: str
    settings: dict[str, tuple[Setting, ...]]
    records: tuple[Record, ...]
    faults: tuple[Fault, ...]
    files: tuple[str, ...]
    """All files that were read, this one first."""

    def get(self, key: str) -> Optional[Setting]:
        """The setting that counts."""
        found = self.settings.get(key.lower())
        return found[-1] if found else None

    def of_kind(self, kind: str) -> tuple[Record, ...]:
        """Records such as ``nodename``, without their DEFAULT lines, whose keys are filled in where a record has none."""
        defaults: dict[str, str] = {}
        found = []
        for record in self.records:
            if record.kind != kind:
                continue
            if record.name.upper() == "DEFAULT":
                defaults.update({key: value for key, value in record.keys.items() if key != kind})
            else:
                found.append(Record(kind, {**defaults, **record.keys}, record.file, record.line))
        return tuple(found)

    def nodes(self) -> tuple[str, ...]:
        """Names of all NodeName lines, in order; what is no hostlist is left out (it is among the faults)."""
        return tuple(dict.fromkeys(name for record in self.of_kind("nodename") for name in names_of(record.name)))


def names_of(text: str) -> tuple[str, ...]:
    """A hostlist's names; () where it is none."""
    try:
        return tuple(hostlist.expand(text))
    except hostlist.HostlistError:
        return ()


def read_conf(path: Path) -> ConfFile:
    """slurm.conf, cgroup.conf. Raises ConfigError where the file itself cannot be read."""
    reader = _Reader(path)
    settings: dict[str, list[Setting]] = {}
    records: list[Record] = []
    for line in reader.lines:
        pairs = list(reader.pairs(line))
        if pairs and pairs[0][0].lower() in RECORDS:
            records.append(_record(line, pairs))
            continue
        for key, value in pairs:
            settings.setdefault(key.lower(), []).append(Setting(key, value, line.file, line.number))
    made = {key: tuple(values) for key, values in settings.items()}
    return ConfFile(str(path), made, tuple(records), tuple(reader.faults), tuple(reader.files))


def read_records(path: Path) -> ConfFile:
    """gres.conf: every line is a record. Raises ConfigError where the file itself cannot be read."""
    reader = _Reader(path)
    records = [_record(line, pairs) for line in reader.lines if (pairs := list(reader.pairs(line)))]
    return ConfFile(str(path), {}, tuple(records), tuple(reader.faults), tuple(reader.files))


def _record(line: Line, pairs: Sequence[tuple[str, str]]) -> Record:
    keys = {key.lower(): value for key, value in pairs}
    return Record(pairs[0][0].lower(), keys, line.file, line.number)


class _Reader:
    """Logical lines of a file and of what it includes. Included names that are not absolute lie beside the first file."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self.files = [str(path)]
        self.faults: list[Fault] = []
        self.cluster = ""
        try:
            text = read_text(path)
        except TopologyError as exc:
            raise ConfigError(str(exc)) from exc
        self.lines = list(self._read(text, str(path), 0))

    def _read(self, text: str, file: str, depth: int) -> Iterator[Line]:
        for line in join_lines(text, file):
            if not line.text.lower().startswith("include"):
                if not line.blank:
                    first = pair(line.text)
                    if first is not None and first.key.lower() == "clustername":
                        self.cluster = first.value
                    yield line
                continue
            found = _INCLUDE.match(line.text)
            if found is None:
                self._fault(line, f"{line.text.strip()!r} is not `Include FILE`, on which Slurm ends")
                continue
            yield from self._include(line, found.group(1), depth)

    def _include(self, line: Line, name: str, depth: int) -> Iterator[Line]:
        # %c is the cluster's name in lower case, where ClusterName came before
        path = Path(self.folder, re.sub("%c", lambda _: self.cluster.lower(), name))
        if "*" in name:
            return self._fault(
                line, f"Include {name}: Slurm takes no patterns here; name each file on a line of its own"
            )
        if depth >= MAX_DEPTH:
            return self._fault(line, f"Include {name}: more than {MAX_DEPTH} files deep; it includes itself")
        try:
            text = read_text(path)
        except TopologyError as exc:
            return self._fault(line, f"Include failed, on which Slurm ends: {exc}")
        self.files.append(str(path))
        yield from self._read(text, str(path), depth + 1)

    def pairs(self, line: Line) -> Iterator[tuple[str, str]]:
        rest = line.text
        while rest.strip():
            found = pair(rest)
            if found is None:
                return self._fault(line, f"{rest.strip()[:60]!r} is not key=value")
            if found.key.lower() in ("nodename", "nodes") and "[" in found.value and not names_of(found.value):
                self._fault(line, f"{found.key}={found.value[:60]} is no hostlist")
            yield found.key, found.value
            rest = found.rest
        return None

    def _fault(self, line: Line, message: str) -> None:
        self.faults.append(Fault(message, line.file, line.number))
