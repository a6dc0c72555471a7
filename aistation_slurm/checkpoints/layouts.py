"""A site's own checkpoint layouts, ``[[checkpoints.layout]]`` in aistation.toml: what they may say, and how a start reads them.

Standard library only, since a start of a job runs without site-packages (startup.py); config has the same rules through
``Layout.problem``.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["KNOWN", "Layout", "LayoutError", "read_layouts"]

KNOWN = ("dcp", "deepspeed", "hf", "lightning", "megatron", "nemo")
"""Names of the readers that come with AIStation. (readers/__init__.py has the modules; a test compares the two.)"""

_RESERVED = ("auto", "none", *KNOWN)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_LIMIT = 1 << 20
_SECTION = b"checkpoints"


class LayoutError(ValueError):
    """A layout that cannot be used; the text begins with the key."""


@dataclass(frozen=True)
class Layout:
    """One ``[[checkpoints.layout]]``.

    name: value of ``--framework``. glob: shell pattern of a checkpoint's own name, with ``{step}`` for its digits. marker: file
    that says that saving ended. require: shell patterns, below the checkpoint, of files that must be there with content. shards:
    pattern with ``{i}`` and, where the names say how many belong, ``{n}``. resume_args: template (choose.py).
    """

    name: str
    glob: str
    resume_args: str
    marker: str = ""
    require: tuple[str, ...] = ()
    shards: str = ""

    def __post_init__(self) -> None:
        """Raises LayoutError."""
        if not _NAME.fullmatch(self.name):
            raise LayoutError(f"name: {self.name!r} is no name; use a-z, 0-9, - and _, at most 32, a letter first")
        if self.name in _RESERVED:
            raise LayoutError(f"name: {self.name!r} is the name of a layout that AIStation knows; choose another")
        _check("glob", self.glob, {"step"}, needs="step")
        _check("marker", self.marker or "x", {"step", "name"})
        for pattern in self.require:
            _check("require", pattern, {"step"}, deep=True)
        if self.shards:
            _check("shards", self.shards, {"i", "n"}, needs="i", deep=True)
        if not self.resume_args.strip():
            raise LayoutError("resume_args: is empty; say how the training program is told, e.g. '--restore {path}'")

    @cached_property
    def names(self) -> re.Pattern[str]:
        """Matches a checkpoint's name; its group ``step`` has the digits."""
        return re.compile(as_regex(self.glob, {"step": r"(?P<step>[0-9]{1,18})"}))


def _check(key: str, pattern: str, placeholders: set[str], needs: str = "", deep: bool = False) -> None:
    """Raises LayoutError for a pattern that can match nothing, or outside of where it is looked for."""
    parts = pattern.split("/")
    if "/" in pattern and not deep:
        raise LayoutError(f"{key}: {pattern!r} has a '/'; it is matched against names within one folder")
    if any(part in ("", ".", "..") for part in parts):
        raise LayoutError(f"{key}: {pattern!r} must be a relative pattern without empty parts, '.' and '..'")
    if not pattern.isprintable() or len(pattern) > 255:
        raise LayoutError(f"{key}: {pattern!r} must be printable and at most 255 characters long")
    found = _PLACEHOLDER.findall(pattern)
    unknown = [name for name in found if name not in placeholders]
    if unknown or "{" in _PLACEHOLDER.sub("", pattern):
        known = " ".join(sorted(f"{{{name}}}" for name in placeholders))
        what = f"unknown placeholder {{{unknown[0]}}}" if unknown else "a '{' that is not closed"
        raise LayoutError(f"{key}: {pattern!r} has {what}; known: {known}")
    if needs and found.count(needs) != 1:
        raise LayoutError(f"{key}: {pattern!r} must have {{{needs}}} exactly once")
    if len(found) != len(set(found)):
        raise LayoutError(f"{key}: {pattern!r} has a placeholder twice")


def as_regex(pattern: str, values: Mapping[str, str]) -> str:
    """A shell pattern as a regular expression; ``values``: expression of each placeholder. Leading dots are matched as written."""
    out = []
    for token in re.findall(r"\{[^{}]*\}|\*|\?|\[!?\]?[^\]]*\]|.", pattern, re.DOTALL):
        if token[0] == "{" and len(token) > 1:
            out.append(values[token[1:-1]])
        elif token == "*":
            out.append(".*")
        elif token == "?":
            out.append(".")
        elif token[0] == "[" and len(token) > 2:
            inside = token[1:-1].replace("\\", "\\\\").replace("[", "\\[").replace("&", "\\&").replace("~", "\\~")
            negated = inside.startswith("!")
            out.append(f"[{'^' if negated else ''}{_class(inside[negated:])}]")
        else:
            out.append(re.escape(token))
    hidden = "" if pattern.startswith((".", "[", "{")) else r"(?!\.)"
    return hidden + "".join(out)


def _class(inside: str) -> str:
    escaped = inside.replace("]", "\\]")
    return "\\^" + escaped[1:] if escaped.startswith("^") else escaped


def from_table(table: object) -> Layout:
    """One decoded ``[[checkpoints.layout]]``. Raises LayoutError."""
    if not isinstance(table, dict):
        raise LayoutError(f"layout: expected a table, found {type(table).__name__}")
    known = {field.name for field in fields(Layout)}
    for key in table:
        if key not in known:
            raise LayoutError(f"{key}: unknown key; allowed: {', '.join(sorted(known))}")
    for key in ("name", "glob", "resume_args"):
        if key not in table:
            raise LayoutError(f"{key}: is missing")
    values: dict[str, Any] = dict(table)
    for key, value in values.items():
        if key == "require":
            if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
                raise LayoutError("require: expected a list of strings")
            values[key] = tuple(value)
        elif not isinstance(value, str):
            raise LayoutError(f"{key}: expected a string, found {type(value).__name__}")
    return Layout(**values)


def read_layouts(path: Path) -> tuple[list[Layout], list[str]]:
    """The layouts of a configuration file, for the start of a job as its user: (layouts, warnings). Never raises.

    Nothing but this section is looked at, and nothing is parsed where the file does not have it. A file that the user can
    write is not used: it is not the site's. A layout that is wrong is left out with a warning.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(_LIMIT)
            owner = os.fstat(file.fileno()).st_uid
    except OSError:
        return [], []  # a missing file is every default, and one that only root may read tells a user nothing
    if _SECTION not in raw:
        return [], []
    me = os.geteuid()
    if me != 0 and (owner == me or os.access(path, os.W_OK)):
        return [], [f"{path} is writable by you: its checkpoint layouts are not used"]
    try:
        tables = _decode(raw).get("checkpoints", {}).get("layout", [])
        entries = list(tables) if isinstance(tables, list) else [tables]
    except (ValueError, AttributeError, RecursionError, ImportError) as exc:
        return [], [f"{path}: its checkpoint layouts cannot be read: {exc}"]
    layouts: list[Layout] = []
    warnings: list[str] = []
    for number, table in enumerate(entries, start=1):
        try:
            layouts.append(from_table(table))
        except LayoutError as exc:
            warnings.append(f"{path}: checkpoints.layout number {number} is not used: {exc}")
    return unique(layouts, warnings), warnings


def unique(layouts: Sequence[Layout], warnings: list[str]) -> list[Layout]:
    """The first of each name; ``warnings`` gets the others."""
    by_name: dict[str, Layout] = {}
    for layout in layouts:
        if layout.name in by_name:
            warnings.append(f"checkpoints.layout: name: {layout.name!r} is given twice; the first is used")
        by_name.setdefault(layout.name, layout)
    return list(by_name.values())


def _decode(raw: bytes) -> dict[str, Any]:
    """Raises ValueError (not TOML) and ImportError (Python before 3.11 without tomli)."""
    text = raw.decode("utf-8")
    try:
        toml = importlib.import_module("tomllib")
    except ImportError:  # before 3.11; a start runs with -S: the installation's own site-packages are not on the path
        python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        prefix = os.path.dirname(os.path.dirname(sys.executable))
        sys.path.append(os.path.join(prefix, "lib", python, "site-packages"))
        toml = importlib.import_module("tomli")
    decoded: dict[str, Any] = toml.loads(text)
    return decoded
