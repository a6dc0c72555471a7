"""State names of jobs and nodes, as the different outputs spell them. Pure text.

Base states are known by name (slurm.h, ``enum job_states`` and ``enum node_states``); every other word is a flag. A word that
is new in some later Slurm is therefore never taken for a base state, and two base states at once are ``UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

__all__ = ["JOB_STATES", "NODE_STATES", "UNKNOWN", "job_state", "node_state"]

UNKNOWN = "UNKNOWN"
_JOB_WORDS = """PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE
OUT_OF_MEMORY"""
JOB_STATES = frozenset(_JOB_WORDS.split())
NODE_STATES = frozenset({"DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"})
_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""The character after a node's state (sinfo(1), NODE STATE CODES)."""
_SINFO = {
    "DRAINED": "DRAIN",
    "DRAINING": "DRAIN",
    "DRAIN": "DRAIN",
    "MAINT": "MAINTENANCE",
    "NO_RESPOND": "NOT_RESPONDING",
}
"""Flags under other names: sinfo's compact states, and an older spelling."""


def job_state(value: Any) -> tuple[str, frozenset[str]]:
    """Base state and flags from ``"RUNNING"`` (up to 23.02), ``["FAILED", "COMPLETING"]``, or ``{"current": ...}``.

    Up to 23.02, and in scontrol's text of every version, a flag hides the base state: a job that ends is ``COMPLETING``
    alone, whatever it ended as. Its base state is then ``UNKNOWN``.
    """
    if isinstance(value, Mapping):
        value = value.get("current")
    if isinstance(value, str):
        return _split(value, JOB_STATES)
    return _split("+".join(_words(value)), JOB_STATES)


def node_state(value: Any, flags: Any = None) -> tuple[str, frozenset[str]]:
    """Base state and flags from ``"IDLE+DRAIN"``, ``"DOWN*+DRAIN"``, ``["IDLE", "DRAIN"]``, or 22.05's ``"idle"`` and a list."""
    words = [value] if isinstance(value, str) else _words(value)
    more = flags.split("+") if isinstance(flags, str) else _words(flags)
    return _split("+".join([*words, *more]), NODE_STATES)


def _words(value: Any) -> list[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, (list, tuple)) else []


@lru_cache(maxsize=256)
def _split(text: str, bases: frozenset[str]) -> tuple[str, frozenset[str]]:
    names: list[str] = []
    for part in text.upper().replace(",", "+").split("+"):
        name = part.strip()
        if bases is NODE_STATES:
            word = name.rstrip("".join(_MARKS))
            names += [_MARKS[mark] for mark in name[len(word) :]]
            name = _SINFO.get(word, word)
        if name:
            names.append(name)
    found = {name for name in names if name in bases}
    base = found.pop() if len(found) == 1 else UNKNOWN
    return base, frozenset(name for name in names if name not in (base, UNKNOWN))
