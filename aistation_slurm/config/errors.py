"""msgspec's messages made into one line with file, line number, the nearest and the allowed keys."""

from __future__ import annotations

import difflib
import re
from typing import get_args, get_origin

import msgspec

from aistation_slurm.config.model import Config

__all__ = ["explain", "line_of"]


def explain(text: str, origin: str, message: str) -> str:
    """Turn msgspec's ``... - at `$.gate` `` into file:line, the allowed keys and the nearest one."""
    match = re.search(r" - at `\$\.?([^`]*)`$", message)
    where = re.findall(r"(?:[^.\[]|\[[^\]]*\])+", match.group(1)) if match else []
    what = message[: match.start()] if match else message
    unknown = re.search(r"unknown field `([^`]+)`", what)
    if unknown:
        key = unknown.group(1)
        allowed = _allowed_keys(where)
        near = difflib.get_close_matches(key, allowed, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else _elsewhere(key)
        section = f"[{'.'.join(where)}]" if where else "the top level"
        line = line_of(text, where, key)
        return f"{origin}:{line}: unknown key {key!r} in {section}{hint}. Allowed: {', '.join(allowed)}"
    names = [*where[:-1], *(re.sub(r"\[.*\]$", "", p) for p in where[-1:])]
    line = line_of(text, names[:-1], names[-1]) if names else 1
    if where:  # a whole table was refused: the line of the key with which the message begins
        line = max(line, line_of(text, where, what.partition(":")[0]))
    choices = "" if "enum value" not in what else f". Allowed: {', '.join(_choices(names))}"
    return f"{origin}:{line}: {'.'.join(where)}: {what[0].lower() + what[1:]}{choices}{_plain_number(names, what)}"


def _elsewhere(key: str) -> str:
    """Sections that do have this key: it stands below the wrong header."""
    from aistation_slurm.config.keys import sections  # reads sources: only where there is something to explain

    found = [section.name for section in sections() if key in (known.name for known in section.keys)]
    return f" (it belongs into {' or '.join(f'[{name}]' for name in found[:3])})" if found and found != [""] else ""


def _plain_number(names: list[str], what: str) -> str:
    """``"8 s"`` or ``"10ms"`` for a key whose name holds its unit."""
    from aistation_slurm.config.keys import unit_of

    unit = unit_of(names[-1]) if names else ""
    return f"; give a plain number, in {unit}" if unit and what.endswith("got `str`") else ""


def _field_type(where: list[str]) -> object:
    """The declared type at a key path such as ``["gate", "mode"]``."""
    current: object = Config
    for part in where:
        name, *inside = re.split(r"(?=\[)", part)
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(current)}  # type: ignore[arg-type]
        current = fields[name]
        for _ in inside:
            # the values of a table of tables, the items of a list
            current = get_args(current)[1 if get_origin(current) is dict else 0]
    return current


def _choices(where: list[str]) -> list[str]:
    """The values of a ``Literal`` key, also inside ``Optional``."""
    found: list[str] = []
    pending: list[object] = [_field_type(where)]
    while pending:
        for arg in get_args(pending.pop()):
            if isinstance(arg, str):
                found.append(arg)
            else:
                pending.append(arg)
    return found


def _allowed_keys(where: list[str]) -> list[str]:
    return sorted(f.encode_name for f in msgspec.structs.fields(_field_type(where)))  # type: ignore[arg-type]


def line_of(text: str, section: list[str], key: str) -> int:
    """Line (1-based) where ``key`` is set inside ``[section]``; 1 when it is not found (inline tables).

    ``checks[...]`` stands for any table of ``[checks."..."]``, ``mounts[0]`` for the first of ``[[expect.mounts]]``.
    """
    open_ended = bool(section) and section[-1].endswith("]")
    item = re.search(r"\[(\d+)\]$", section[-1]) if section else None
    before, found = int(item.group(1)) + 1 if item else 0, 1
    wanted, current = re.sub(r"\[[^\]]*\]", "", ".".join(section)), ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        header = re.match(r"\[\[?\s*([^\[\]]+?)\s*\]", line)
        if header:
            current = header.group(1)
            before -= current == wanted
            found = number if item and current == wanted and not before else found
            if current == (f"{wanted}.{key}" if wanted else key):
                return number
        elif (
            before <= 0
            and (current == wanted or (open_ended and current.startswith(f"{wanted}.")))
            and re.match(rf"[\"']?{re.escape(key)}[\"']?\s*[=.]", line)
        ):
            return number
    return found
