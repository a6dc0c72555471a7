"""What a node reports of itself: a segment of its Comment, which only root and SlurmUser can write.

``[ais-found 1796091300 fabric.port_state@mlx5_3/1=port state 1: DOWN; host.mounts@/home=not mounted]``: unix time at which
the node saw the first of these, then check, subject and evidence of each. Standard library only: the gate reads it.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Optional

__all__ = ["MOST", "Published", "comment_with", "moment_s", "render", "segment_of", "shown"]

MOST = 4
"""Findings in one segment: a node that is worse than that is bad enough."""
EVIDENCE_MAX = 90
WORD_MAX = 64
_SEGMENT = re.compile(r"\s*\[ais-found ([0-9]{1,12}) ([^\]]*)\]")


class Published:
    """One finding of the segment. since: unix seconds, by the node's clock."""

    __slots__ = ("check", "evidence", "since", "subject")

    def __init__(self, check: str, subject: str, evidence: str, since: int) -> None:
        self.check, self.subject, self.evidence, self.since = check, subject, evidence, since


def shown(comment: str) -> list[Published]:
    """What the node's Comment reports; nothing where there is no segment. Never raises."""
    match = _SEGMENT.search(comment or "")
    if match is None:
        return []
    found = []
    for part in match.group(2).split("; ")[:MOST]:
        name, _, evidence = part.partition("=")
        check, _, subject = name.partition("@")
        if check:
            found.append(Published(check, subject, evidence, int(match.group(1))))
    return found


def render(findings: Iterable[tuple[str, str, str]], since: int) -> str:
    """The segment; "" for no finding. findings: (check, subject, evidence), in the order of their weight."""
    parts = []
    for check, subject, evidence in list(findings)[:MOST]:
        parts.append(
            f"{_clean(check)[:WORD_MAX]}@{_clean(subject)[:WORD_MAX]}={_clean(evidence)[:EVIDENCE_MAX].strip()}"
        )
    return f"[ais-found {since} {'; '.join(parts)}]" if parts else ""


def comment_with(comment: str, segment: str) -> str:
    """The node's Comment with this segment in place of the old one. All other text stays."""
    rest = _SEGMENT.sub("", comment or "").strip()
    return f"{rest} {segment}".strip() if segment else rest


def segment_of(comment: str) -> Optional[str]:
    match = _SEGMENT.search(comment or "")
    return match.group(0).strip() if match is not None else None


def moment_s(name: str, span_s: float) -> float:
    """When in a span this node makes its request: always the same for a name, spread evenly over names."""
    import hashlib

    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:6], "big") / 2.0**48 * span_s


def _clean(text: str) -> str:
    """Printable ASCII without what the segment or scontrol's own syntax uses."""
    return " ".join("".join(c if " " <= c <= "~" and c not in "[]@=;\"'`\\" else "_" for c in text).split())
