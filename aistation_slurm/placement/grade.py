"""A node's grade for placement: a segment of its Comment, set by its own agent or by an administrator.

``[ais-fabric degraded fabric.errors@mlx5_3/1]``: the links of this node are worse than they should be, but not so that a job
on it alone would suffer. Jobs of several nodes keep off it; jobs of one node may use it. Only root and SlurmUser can write it.
"""

from __future__ import annotations

import re
from typing import Optional

__all__ = ["ADMIN", "comment_with_grade", "degraded"]

_SEGMENT = re.compile(r"\s*\[ais-fabric degraded(?: ([^\]]*))?\]")
WHY_MAX = 120
ADMIN = "admin:"
"""Begins the reason of a grade that a person set, which agents leave alone."""


def degraded(comment: str) -> Optional[str]:
    """Why the node's fabric counts as degraded ("" where no reason stands there); None where it does not."""
    match = _SEGMENT.search(comment or "")
    if match is None:
        return None
    return "".join(c if c.isprintable() else "?" for c in match.group(1) or "")


def comment_with_grade(comment: str, why: Optional[str]) -> str:
    """The node's Comment with this grade; why None: no longer degraded. All other text stays."""
    rest = _SEGMENT.sub("", comment or "").strip()
    if why is None:
        return rest
    clean = "".join(c if " " <= c <= "~" and c not in "[]\"'`\\" else "_" for c in why)[:WHY_MAX].strip()
    segment = f"[ais-fabric degraded {clean}]" if clean else "[ais-fabric degraded]"
    return f"{rest} {segment}" if rest else segment
