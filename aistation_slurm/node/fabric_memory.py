"""Counters of the fabric over looks: ``<state_dir>/fabric-counters.json``, and ``fabric-captures.json`` for captured trees.

Of one boot: another boot id starts anew. Without a place to write, or as another user than root, each look is judged by what is
there, and a first look alarms nobody. A captured tree is known by its node and boot where it tells them, else by its folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import msgspec

from aistation_slurm.detectors.fabric.history import CounterHistory
from aistation_slurm.node.state import write_file
from aistation_slurm.probes.host import boot_id, captured_name, uptime_s

__all__ = ["Memory", "capture_clock", "capture_key", "load", "store"]

LIVE, CAPTURES = "fabric-counters.json", "fabric-captures.json"
_VERSION = 1
_MAX_BYTES = 8 << 20
_MOST_CAPTURES = 32
_INFINITE = float("inf")


class Memory(msgspec.Struct):
    """Of one node or tree. asked_at: when drivers were last asked, by the same clock as the histories. pfc: what they said then of
    priority flow control, by interface."""

    ports: dict[str, CounterHistory] = {}
    asked_at: float = -1.0
    pfc: dict[str, str] = {}


class _File(msgspec.Struct):
    version: int
    trees: dict[str, Memory] = {}
    """By boot id on the node itself (one entry), by :func:`capture_key` for captured trees (the newest ones)."""


def load(state_dir: str, name: str, key: str) -> Memory:
    """Empty where there is none, or none that may be trusted."""
    found = _read(os.path.join(state_dir, name))
    return found.trees.get(key, Memory()) if found is not None else Memory()


def store(state_dir: str, name: str, key: str, memory: Memory) -> bool:
    """False where it cannot be kept: the next look is then a first one again."""
    path = os.path.join(state_dir, name)
    trees: dict[str, Memory] = {}
    if name == CAPTURES:
        trees = dict((_read(path) or _File(_VERSION)).trees)
        trees.pop(key, None)
        for old in list(trees)[: max(0, len(trees) - _MOST_CAPTURES + 1)]:
            del trees[old]
    trees[key] = memory
    try:
        write_file(path, msgspec.json.encode(_File(_VERSION, trees)))
    except OSError:
        return False
    return True


def capture_key(root: Path) -> str:
    """Its node and boot, where the tree tells them and the time of that boot; else its folder, as long as it is not made anew."""
    boot = boot_id(root)
    named = any((root / path).is_file() for path in ("proc/sys/kernel/hostname", "etc/hostname"))
    if boot and named and uptime_s(root) != _INFINITE:
        return f"{captured_name(root)} {boot}"
    try:
        made = os.stat(root / "sys/class/infiniband")
    except OSError:
        return f"{root.resolve()} {boot}".rstrip()
    return f"{root.resolve()} {made.st_dev} {made.st_ino} {made.st_mtime_ns} {boot}".rstrip()


def capture_clock(root: Path, now: float) -> float:
    """Seconds: the tree's own uptime, else the time of this look."""
    uptime = uptime_s(root)
    return now if uptime == _INFINITE else uptime


def _read(path: str) -> Optional[_File]:
    """None where it cannot be read, somebody else could have written it, or it is of another version."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        facts = os.fstat(fd)
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022 or facts.st_size > _MAX_BYTES:
            return None
        with os.fdopen(os.dup(fd), "rb") as handle:
            found = msgspec.json.decode(handle.read(_MAX_BYTES), type=_File)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    finally:
        os.close(fd)
    return found if found.version == _VERSION else None
