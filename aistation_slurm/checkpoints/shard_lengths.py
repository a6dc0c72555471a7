"""How long the shards of a DCP checkpoint are, as its ``.metadata`` says. Its bytes are matched; nothing is unpickled.

``storage_data`` (torch/distributed/checkpoint/filesystem.py) has a ``_StorageInfo(relative_path, offset, length)`` per tensor. In
protocol 4 and 5 each is a small dictionary of known keys, so that one expression finds them. A path stands as text once and
is referred to by number later, and that number is not in the text. So a new number is taken for the last path before it that
has none, and a length is believed only where the tensors of the file then lie side by side from its first byte on.
"""

from __future__ import annotations

import re
from typing import Optional

from aistation_slurm.checkpoints.folder import open_regular

__all__ = ["Described", "describe"]

_NAMES_LIMIT = 32 << 20
_LENGTHS_LIMIT = 1 << 20  # about 6,000 pieces of tensors, 25 ms; a larger one is used for its names only
_SHARD = re.compile(rb"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_REF = rb"(?:h.|j.{4})"
_INT = rb"(K.|M..|J.{4}|\x8a\x05.{5}|\x8a\x06.{6}|\x8a\x07.{7})"
_ENTRY = re.compile(
    rb"\}\x94\((?:" + _REF + rb"|\x8c\x0drelative_path\x94)"
    rb"(?:\x8c.(?P<path>__[0-9]{1,9}_[0-9]{1,9}\.distcp)\x94|(?P<ref>" + _REF + rb"))"
    rb"(?:" + _REF + rb"|\x8c\x06offset\x94)" + _INT + rb"(?:" + _REF + rb"|\x8c\x06length\x94)" + _INT +
    rb"(?:(?:" + _REF + rb"|\x8c\x15transform_descriptors\x94)N)?ub",
    re.DOTALL,
)  # fmt: skip

Described = tuple[set[str], dict[str, int]]
"""Names of the shards; name -> bytes, for those whose length is certain."""


def describe(path: str) -> Described:
    """What a ``.metadata`` says; nothing where it cannot be read, or is of a form that is not known."""
    try:
        with open_regular(path) as file:
            raw = file.at(0, min(file.size, _NAMES_LIMIT))
            whole = len(raw) == file.size
    except OSError:
        return set(), {}
    names = {name.decode("ascii") for name in _SHARD.findall(raw)}
    body = _unframed(raw) if whole and len(raw) <= _LENGTHS_LIMIT else b""
    return names, _lengths(body)


def _unframed(raw: bytes) -> bytes:
    """The opcodes without the marks of frames (PEP 3154), which may come between any two; empty for another protocol."""
    if raw[:1] != b"\x80" or raw[1:2] not in (b"\x04", b"\x05"):
        return b""
    parts, at = [], 2
    while raw[at : at + 1] == b"\x95":
        length = int.from_bytes(raw[at + 1 : at + 9], "little")
        parts.append(raw[at + 9 : at + 9 + length])
        at += 9 + length
    return b"".join(parts) if at >= len(raw) else b""


def _lengths(body: bytes) -> dict[str, int]:
    files: list[tuple[str, list[tuple[int, int]]]] = []
    by_ref: dict[int, list[tuple[int, int]]] = {}
    free: list[int] = []
    for match in _ENTRY.finditer(body, max(0, body.find(b"_StorageInfo"))):
        piece = (_int(match[3]), _int(match[4]))
        if match["path"]:
            free.append(len(files))
            files.append((match["path"].decode("ascii"), [piece]))
            continue
        ref = int.from_bytes(match["ref"][1:], "little")
        if ref not in by_ref:
            if not free:
                return {}
            by_ref[ref] = files[free.pop()][1]
        by_ref[ref].append(piece)
    found: dict[str, int] = {}
    for name, pieces in files:
        length = _side_by_side(pieces)
        if length is not None:
            found[name] = max(length, found.get(name, 0))
    return found


def _int(token: bytes) -> int:
    return int.from_bytes(token[2:] if token[:1] == b"\x8a" else token[1:], "little")


def _side_by_side(pieces: list[tuple[int, int]]) -> Optional[int]:
    end = 0
    for offset, length in sorted(pieces):
        if offset != end:
            return None
        end += length
    return end
