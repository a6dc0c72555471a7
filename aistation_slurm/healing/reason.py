"""The texts of our drains as healing reads and writes them. Pure.

Slurm 22.05 appends to a node's reason on a reboot: ``" : reboot issued"``, then ``" : reboot complete"`` (nextstate=DOWN) or
``" : reboot timed out"`` (not registered within ResumeTimeout). What stands before is still ours.
"""

from __future__ import annotations

import re
from typing import Optional

from aistation_slurm.findings import REASON_MAX, is_our_reason

__all__ = [
    "asks_to_inspect",
    "check_of",
    "evidence_path",
    "ident_of",
    "inspect_reason",
    "plain",
    "tells_of",
    "without_reboot",
]

_IDENT = re.compile(r" \[([0-9a-f]{6})\]$")
_REBOOT = re.compile(r"(?: : reboot (?:requested|issued|complete|timed out))+$")
_INSPECT = "inspect: "


def ident_of(reason: str) -> Optional[str]:
    """The id of a drain of ours; None for any other text, also for one of ours that somebody wrote on."""
    match = _IDENT.search(reason)
    return match.group(1) if match and is_our_reason(reason) else None


def check_of(reason: str) -> str:
    """``gpu.lost`` of ``ais:gpu.lost GPU3 ...``."""
    return reason.partition(" ")[0].partition(":")[2]


def without_reboot(reason: str) -> str:
    """The reason without what Slurm appended."""
    return _REBOOT.sub("", reason)


def asks_to_inspect(reason: str) -> bool:
    """Healing has given up on this node, whatever is remembered of it."""
    return ident_of(reason) is not None and f" {_INSPECT}" in reason


def plain(text: str) -> str:
    """As findings.drain_reason cleans its parts: printable ASCII without quotes, on one line."""
    return " ".join("".join(c if " " <= c <= "~" and c not in "\"'`\\" else "_" for c in text).split())


def tells_of(reason: str, check: str, subject: str) -> bool:
    """Whether this drain is for that check and subject."""
    return bool(subject) and reason.startswith(f"ais:{check} {plain(subject)} ")


def inspect_reason(reason: str, subject: str, why: str) -> str:
    """``ais:gpu.xid GPU2 0000:3a:00 inspect: 2 x gpu_reset did not help; Xid 48 ... [a1b2c3]``: check, subject and id stay.

    reason: one of ours, with its id. why: printable ASCII, short. Raises ValueError for another reason.
    """
    ident = ident_of(reason)
    if ident is None:
        raise ValueError(f"not a reason of AIStation: {reason!r}")
    tail = f" [{ident}]"
    check, _, rest = reason[: -len(tail)].partition(" ")
    head = check
    if subject and (rest == subject or rest.startswith(f"{subject} ")):
        head, rest = f"{check} {subject}", rest[len(subject) :].strip()
    text = f"{head} {_INSPECT}{why}" + (f"; {rest}" if rest else "")
    return text[: REASON_MAX - len(tail)].rstrip() + tail


def evidence_path(folder: str, node: str, ident: str) -> str:
    """The same for reader and writer, so that the drain's id is enough to find it."""
    return f"{folder}/{re.sub(r'[^A-Za-z0-9._-]', '_', node)}-{ident}.tar.gz"
