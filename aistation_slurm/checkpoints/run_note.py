"""The segment ``[ais-run a=2 s=1200 v=ok]`` of a job's Comment: what the start-up helper decided, said to the watchdog.

The field is the user's, so that its text may only stop retries, never cause an action. Standard library only: the
start of a job pays for every import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

__all__ = ["VERDICTS", "read_run", "run_note", "with_run"]

VERDICTS = ("ok", "fresh", "back", "unusable", "busy")
"""ok: resumed. fresh: nothing to resume. back: rolled back past a checkpoint that failed twice. unusable, busy: not started,
since no checkpoint can be used, or since another writer may be at work in the directory."""

MAX_BYTES = 256
_SEGMENT = re.compile(r"\s*\[ais-run [^\]]*\]")
_VALUE = re.compile(r"[\x21-\x5a\x5c\x5e-\x7e]+")  # printable ASCII without blanks and brackets


def run_note(attempt: int, step: Optional[int], verdict: str, more: Optional[Mapping[str, str]] = None) -> str:
    """The segment. more: further keys, each left out where its value does not fit (blanks, brackets, length)."""
    text = f"[ais-run a={attempt} s={'-' if step is None else step} v={verdict}"
    for key, value in (more or {}).items():
        if _VALUE.fullmatch(value) and len(text) + len(key) + len(value) + 3 <= MAX_BYTES:
            text += f" {key}={value}"
    return text + "]"


def with_run(comment: str, note: str) -> str:
    """The Comment with our segment in place of the former one; all other text stays as it is."""
    rest = _SEGMENT.sub("", comment).strip()
    return f"{rest} {note}" if rest else note


def read_run(comment: str) -> dict[str, str]:
    """Keys and values of the segment; empty where there is none. Untrusted: the job's user can write it."""
    match = _SEGMENT.search(comment or "")
    if match is None:
        return {}
    words = match.group().strip()[len("[ais-run ") : -1].split()
    return dict(word.partition("=")[::2] for word in words if "=" in word)
