"""plugstack.conf: which SPANK plugins Slurm loads (spank(8)).

``optional|required PATH [args]``, one a line; ``include PATTERN`` with shell patterns; ``#`` begins a comment anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aistation_slurm.doctor.conf_file import Fault
from aistation_slurm.errors import ConfigError, TopologyError
from aistation_slurm.topology.readers.conf_lines import read_text

__all__ = ["Plugin", "Plugstack", "read_plugstack"]

MAX_DEPTH = 16


@dataclass(frozen=True)
class Plugin:
    """required: a failure of the plugin is one of the job. path: as written; not absolute: below PluginDir."""

    required: bool
    path: str
    args: tuple[str, ...]
    file: str
    line: int


@dataclass(frozen=True)
class Plugstack:
    path: str
    plugins: tuple[Plugin, ...]
    faults: tuple[Fault, ...]


def read_plugstack(path: Path) -> Plugstack:
    """Raises ConfigError where the file itself cannot be read."""
    plugins: list[Plugin] = []
    faults: list[Fault] = []
    try:
        _read(path, path.parent, plugins, faults, 0)
    except TopologyError as exc:
        raise ConfigError(str(exc)) from exc
    return Plugstack(str(path), tuple(plugins), tuple(faults))


def _read(path: Path, folder: Path, plugins: list[Plugin], faults: list[Fault], depth: int) -> None:
    for number, raw in enumerate(read_text(path).splitlines(), start=1):
        words = raw.partition("#")[0].split()
        if not words:
            continue
        kind = words[0].lower()
        if kind == "include" and len(words) == 2 and depth < MAX_DEPTH:
            _include(words[1], path, number, folder, plugins, faults, depth)
        elif kind in ("optional", "required") and len(words) > 1:
            plugins.append(Plugin(kind == "required", words[1], tuple(words[2:]), str(path), number))
        else:
            said = f"{' '.join(words)[:60]!r}: expected optional, required or include, and a path"
            faults.append(Fault(said, str(path), number))


def _include(
    name: str, path: Path, number: int, folder: Path, plugins: list[Plugin], faults: list[Fault], depth: int
) -> None:
    pattern = name if name.startswith("/") else str(folder / name)
    for found in sorted(Path("/").glob(pattern.lstrip("/"))):
        try:
            _read(found, folder, plugins, faults, depth + 1)
        except TopologyError as exc:
            faults.append(Fault(str(exc), str(path), number))
