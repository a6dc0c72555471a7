"""The two texts that the suite keeps in a job's own fields.

AdminComment (users cannot write it): one segment ``[ais resume=auto max=3 attempt=1 act=requeue why=gpu.lost@gpu2]``,
begun by job_submit.lua, which marks a job as managed. Comment (the user's): one segment ``[ais: ...]`` that says to the
user what was done. Everything else in both fields belongs to others and is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Optional

__all__ = [
    "Run",
    "comment_with",
    "comment_with_refusal",
    "comment_with_said",
    "fault_of",
    "fault_text",
    "managed",
    "read_note",
    "read_run",
    "read_tag",
    "refusals_of",
    "said_of",
    "tag_with",
    "tag_without",
]

_TAG = re.compile(r"\[ais ([^\]]*)\]")
_NOTE = re.compile(r"\s*\[ais: [^\]]*\]")
_RUN = re.compile(r"\[ais-run a=(\d{1,9}) s=(\d{1,11}|-) v=([a-z]{1,12})\]")
_REFUSED = re.compile(r"\[ais refused=([0-9@,]{1,400})\]")
_SAID = re.compile(r"\s*\[ais-said ([0-9a-z@,-]{1,400})\]")
NOTE_MAX = 200
REFUSALS_MAX = 8


class Run(NamedTuple):
    """What start-up published of one start. attempt: SLURM_RESTART_COUNT; step: resumed from, None where from nothing."""

    attempt: int
    step: Optional[int]
    verdict: str


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


def tag_without(admin_comment: str, *keys: str) -> str:
    """The AdminComment without these keys of our segment."""
    left = {key: value for key, value in read_tag(admin_comment).items() if key not in keys}
    return tag_with(_TAG.sub("", admin_comment or ""), left)


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


def read_run(comment: str) -> Optional[Run]:
    """The segment ``[ais-run a=2 s=1200 v=ok]`` of a job's Comment. Users can write it: it may stop things, never cause them."""
    match = _RUN.search(comment or "")
    if match is None:
        return None
    return Run(int(match.group(1)), None if match.group(2) == "-" else int(match.group(2)), match.group(3))


def refusals_of(comment: str) -> tuple[tuple[int, int], ...]:
    """(job id, unix time) of the latest refusals by this node's gate, in a node's Comment: ``[ais refused=7@1733000000]``."""
    match = _REFUSED.search(comment or "")
    words = match.group(1).split(",") if match else []
    pairs = [word.partition("@")[::2] for word in words]
    return tuple((int(job), int(time)) for job, time in pairs if job.isdigit() and time.isdigit())


def comment_with_refusal(comment: str, job_id: int, time: int) -> str:
    """The node's Comment with this refusal as the newest of at most 8, one a job; all other text stays."""
    kept = [(job, at) for job, at in refusals_of(comment) if job != job_id]
    segment = "[ais refused=" + ",".join(f"{job}@{at}" for job, at in [*kept, (job_id, time)][-REFUSALS_MAX:]) + "]"
    match = _REFUSED.search(comment or "")
    if match is not None:
        return comment[: match.start()] + segment + comment[match.end() :]
    rest = (comment or "").rstrip()
    return f"{rest} {segment}" if rest else segment


def fault_text(check: str, node: str, start_time: int) -> str:
    """Value of the key ``fault``: which check failed under which attempt, for a node whose drain is not ours to word."""
    return f"{check}@{node}@{start_time}"


def fault_of(admin_comment: str) -> tuple[str, str, int]:
    """(node, check, start time of the attempt) that a node's agent noted last; ("", "", 0) where it noted none."""
    check, _, rest = read_tag(admin_comment).get("fault", "").partition("@")
    node, _, start = rest.partition("@")
    return (node, check, int(start)) if start.isdigit() else ("", "", 0)


def said_of(node_comment: str, job_id: int, restart_cnt: int) -> tuple[str, Optional[int]]:
    """(kind, first rank) that the job's first node read in the output of this attempt; ("", None) where it noted none.

    In the node's Comment, since a job that has ended takes no more notes: ``[ais-said 7@0@communication@3]``.
    """
    for job, count, kind, rank in _said(node_comment):
        if (job, count) == (str(job_id), str(restart_cnt)):
            return kind, int(rank) if rank.isdigit() else None
    return "", None


def comment_with_said(node_comment: str, job_id: int, restart_cnt: int, kind: str, rank: Optional[int]) -> str:
    """The node's Comment with this as the newest of at most 8 notes, one a job; all other text stays."""
    kept = [words for words in _said(node_comment) if words[0] != str(job_id)]
    new = (str(job_id), str(restart_cnt), kind, "-" if rank is None else str(rank))
    segment = "[ais-said " + ",".join("@".join(words) for words in [*kept, new][-REFUSALS_MAX:]) + "]"
    rest = _SAID.sub("", node_comment or "").strip()
    return f"{rest} {segment}" if rest else segment


def _said(node_comment: str) -> list[tuple[str, str, str, str]]:
    match = _SAID.search(node_comment or "")
    rows = [tuple(word.split("@")) for word in match.group(1).split(",")] if match else []
    return [(row[0], row[1], row[2], row[3]) for row in rows if len(row) == 4]


def _word(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-@,:+" else "_" for c in text)[:80]
