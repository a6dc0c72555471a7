"""The two texts that the suite keeps in a job's own fields.

AdminComment (users cannot write it): one segment ``[ais resume=auto max=3 attempt=1 act=requeue why=gpu.lost@gpu2]``,
begun by job_submit.lua, which marks a job as managed. Comment (the user's): one segment ``[ais: ...]`` that says to the
user what was done. Everything else in both fields belongs to others and is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["comment_with", "fault_of", "fault_text", "managed", "read_note", "read_tag", "tag_with"]

_TAG = re.compile(r"\[ais ([^\]]*)\]")
_NOTE = re.compile(r"\s*\[ais: [^\]]*\]")
NOTE_MAX = 200


def read_tag(admin_comment: str) -> dict[str, str]:
    """Keys and values of the segment; empty where the job is not managed."""
    match = _TAG.search(admin_comment or "")
    if match is None:
        return {}
    return dict(word.partition("=")[::2] for word in match.group(1).split() if "=" in word)


def managed(admin_comment: str) -> bool:
    """True where the job opted in at submission."""
    return read_tag(admin_comment).get("resume", "none") != "none"


def tag_with(admin_comment: str, changes: Mapping[str, str]) -> str:
    """The AdminComment with these keys set in our segment."""
    values = {**read_tag(admin_comment), **{k: _word(v) for k, v in changes.items()}}
    tag = "[ais " + " ".join(f"{key}={value}" for key, value in values.items()) + "]"
    rest = _TAG.sub("", admin_comment or "").strip()
    return f"{rest} {tag}" if rest else tag


def comment_with(comment: str, note: str) -> str:
    """The Comment with our note in place of the former one."""
    clean = "".join(c if " " <= c <= "~" and c not in "[]\"'`\\" else "_" for c in note)[:NOTE_MAX]
    rest = _NOTE.sub("", comment or "").strip()
    return f"{rest} [ais: {clean}]" if rest else f"[ais: {clean}]"


def read_note(comment: str) -> str:
    """Our note in a job's Comment; empty where there is none. Users can write this field: it is only ever shown."""
    match = re.search(r"\[ais: ([^\]]*)\]", comment or "")
    # printed on administrators' terminals: no control characters
    return "".join(c if c.isprintable() else "?" for c in match.group(1)) if match else ""


def fault_text(check: str, node: str, start_time: int) -> str:
    """Value of the key ``fault``: which check failed under which attempt, for a node whose drain is not ours to word."""
    return f"{check}@{node}@{start_time}"


def fault_of(admin_comment: str) -> tuple[str, str, int]:
    """(node, check, start time of the attempt) that a node's agent noted last; ("", "", 0) where it noted none."""
    check, _, rest = read_tag(admin_comment).get("fault", "").partition("@")
    node, _, start = rest.partition("@")
    return (node, check, int(start)) if start.isdigit() else ("", "", 0)


def _word(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-@,:+" else "_" for c in text)[:80]
