"""State names of jobs and nodes, as the different outputs spell them. Pure text."""

from __future__ import annotations

from typing import Any

__all__ = ["JOB_FLAGS", "split_state"]

_WORDS = """COMPLETING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESIZING SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED
REVOKED RECONFIG_FAIL POWER_UP_NODE LAUNCH_FAILED UPDATE_DB EXPEDITING"""
JOB_FLAGS = frozenset(_WORDS.split())
"""Words that stand beside a job's base state (slurm.h, JOB_* above JOB_STATE_BASE)."""


def split_state(value: Any, flags: Any = None, known_flags: frozenset[str] = frozenset()) -> tuple[str, frozenset[str]]:
    """Base state and flags from ``"IDLE+DRAIN"``, ``"DOWN*+DRAIN"``, ``"idle"`` with a flag list, or a list.

    The mark ``*`` after the base state is NOT_RESPONDING. A word in ``known_flags`` is never the base state, unless it is
    the only word: 22.05 shows a job that ends as ``COMPLETING`` alone, and its base state is then ``UNKNOWN``.
    """
    parts: list[str] = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        parts += str(item or "").upper().split("+")
    marks: set[str] = {str(f).upper() for f in flags or ()}
    names: list[str] = []
    for part in parts:
        name = part.rstrip("*~#!%$@^-")
        if "*" in part[len(name) :]:
            marks.add("NOT_RESPONDING")
        if name:
            names.append(name)
    base = next((n for n in names if n not in known_flags), "UNKNOWN")
    marks.update(n for n in names if n != base)
    return base, frozenset(marks)
