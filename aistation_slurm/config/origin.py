"""Every value in force and where it comes from: a line of the file, or the default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from aistation_slurm.config.errors import line_of
from aistation_slurm.config.keys import toml_text
from aistation_slurm.config.model import Config

__all__ = ["Value", "values"]


@dataclass(frozen=True)
class Value:
    """key: with its section. value: as TOML; ``plain`` as JSON has it. line: of the file; 0 for a default."""

    section: str
    key: str
    value: str
    plain: Any
    line: int


def values(config: Config, raw: dict[str, Any], text: str) -> list[Value]:
    """raw: the file's tables as parsed; text: the file, for the numbers of lines."""
    return list(_values(config, raw, text, []))


def _values(struct: msgspec.Struct, raw: Any, text: str, path: list[str]) -> Iterator[Value]:
    inner: list[tuple[str, Any]] = []
    for field in msgspec.structs.fields(struct):
        value, name = getattr(struct, field.name), field.encode_name
        if _is_table(value):
            inner.append((name, value))
            continue
        given = isinstance(raw, dict) and name in raw
        line = line_of(text, path, name) if given else 0
        yield Value(".".join(path), name, toml_text(value), msgspec.to_builtins(value), line)
    for name, value in inner:
        below = raw.get(name, {}) if isinstance(raw, dict) else {}
        if isinstance(value, msgspec.Struct):
            yield from _values(value, below, text, [*path, name])
        elif isinstance(value, dict):
            for label, one in value.items():
                yield from _values(one, below.get(label, {}), text, [*path, name, f'"{label}"'])
        else:
            for i, one in enumerate(value):
                yield from _values(one, below[i], text, [*path, f"{name}[{i}]"])


def _is_table(value: Any) -> bool:
    """A struct, or tables of structs. An empty dict or list has nothing to show but itself."""
    if isinstance(value, msgspec.Struct):
        return True
    items = list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else []
    return bool(items) and isinstance(items[0], msgspec.Struct)
