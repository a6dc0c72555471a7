"""Every key of aistation.toml as a value: type, unit, default and why, taken from the structs and their docstrings.

The text below a field in the source is its "why"; nothing is written down twice.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

import msgspec

from aistation_slurm.config.model import Config

__all__ = ["Key", "Section", "field_texts", "sections", "toml_text", "unit_of"]

UNITS = {
    # suffix of a key -> its unit; the longest one counts
    "_per_min": "per minute",
    "_per_hour": "per hour",
    "_per_day": "per day",
    "_per_s": "per second",
    "_s": "seconds",
    "_gbps": "Gb/s",
    "_percent": "percent",
    "_mib": "MiB",
    "_gib": "GiB",
    "_days": "days",
}
Struct = type[msgspec.Struct]


@dataclass(frozen=True)
class Key:
    """name: without its section. unit: "" where it has none. default: TOML text; "" for a key that must be given."""

    name: str
    type: str
    unit: str
    default: str
    why: str


@dataclass(frozen=True)
class Section:
    """One table. name: ``watchdog.restart.hang``, ``[expect.mounts]`` for one of several, ``checks."NAME"`` for any name."""

    name: str
    why: str
    keys: tuple[Key, ...]


@cache
def field_texts(struct: Struct) -> dict[str, str]:
    """Field -> the text below it in the source, on one line."""
    tree = ast.parse(inspect.getsource(sys.modules[struct.__module__]))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == struct.__name__)
    found = {}
    for field, text in zip(body, body[1:]):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def sections() -> list[Section]:
    """All tables in the order of the structs, each before those inside it; the top level is named ""."""
    return list(_sections("", Config, Config(), "The top level."))


def _sections(name: str, struct: Struct, filled: Any, why: str) -> Iterator[Section]:
    keys: list[Key] = []
    inner: list[Section] = []
    hints, texts = get_type_hints(struct, include_extras=True), field_texts(struct)
    for field in msgspec.structs.fields(struct):
        path = f"{name}.{field.encode_name}" if name else field.encode_name
        kind, text = hints[field.name], texts.get(field.name, "")
        value = getattr(filled, field.name) if filled is not None else _default(field)
        below = _table_of(kind)
        if below is not None:
            shape, table = below
            title = {"table": path, "tables": f'{path}."NAME"', "list": f"[{path}]"}[shape]
            words = " ".join(part for part in (_first_words(table), text) if part)
            inner += _sections(title, table, value if shape == "table" else None, words)
        else:
            keys.append(Key(field.encode_name, type_text(kind), unit_of(field.encode_name), toml_text(value), text))
    yield Section(name, why, tuple(keys))
    yield from inner


def _default(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else msgspec.NODEFAULT


def _first_words(struct: Struct) -> str:
    return " ".join((struct.__doc__ or "").split())


def _table_of(kind: Any) -> Optional[tuple[str, Struct]]:
    """A struct, a dict of structs or a list of structs."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "table", kind
    args = get_args(kind)
    if get_origin(kind) is dict and isinstance(args[1], type) and issubclass(args[1], msgspec.Struct):
        return "tables", args[1]
    if get_origin(kind) is tuple and isinstance(args[0], type) and issubclass(args[0], msgspec.Struct):
        return "list", args[0]
    return None


def unit_of(name: str) -> str:
    suffix = max((suffix for suffix in UNITS if name.endswith(suffix)), key=len, default="")
    return UNITS.get(suffix, "")


def type_text(kind: Any) -> str:
    """In words: ``number > 0``, ``list of texts``, ``"warn" or "fail"``."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return " ".join(part for part in (type_text(args[0]), _bounds(args[1:])) if part)
    if origin is Literal:
        return " or ".join(f'"{word}"' for word in args)
    if origin is Union or origin is getattr(types, "UnionType", None):
        return " or ".join(type_text(arg) for arg in args if arg is not type(None))
    if origin is tuple:
        inner = type_text(args[0])
        return "list of texts" if inner == "text" else f"list of {inner}"
    if origin is dict:
        return f"table of name = {type_text(args[1])}"
    return {bool: "true or false", int: "whole number", float: "number", str: "text"}.get(kind, str(kind))


def _bounds(metas: tuple[Any, ...]) -> str:
    found = []
    for meta in metas:
        if isinstance(meta, msgspec.Meta):
            for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
                bound = getattr(meta, name)
                if bound is not None:
                    found.append(f"{sign} {bound}")
            if meta.pattern is not None:
                found.append(f"matching {meta.pattern}")
    return ", ".join(found)


def toml_text(value: Any) -> str:
    """A default as it would stand in the file; ``unset`` for None."""
    if value is msgspec.NODEFAULT:
        return ""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) or abs(value) >= 1e15 else str(int(value))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(toml_text(one) for one in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{msgspec.json.encode(k).decode()} = {toml_text(v)}" for k, v in value.items()) + "}"
    return str(value)
