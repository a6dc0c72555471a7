"""What this node's gate refused: ``<state_dir>/refusals/<job id>``, one line a job, 0600 root in a 0700 folder.

Written before Slurm is told and closed when it was. One that stayed open (the controller was silent, the gate was killed)
is settled by the agent or by cron (node/adopt.py), so that neither the cause nor the job is lost::

    42 1796098907 5f0c...boot-id open 0<TAB>gpu.lost<TAB>GPU3 0000:8f:00<TAB>ais:gpu.lost GPU3 0000:8f:00 gone [a1b2c3]

job id, unix time, boot id, progress, unix time of that progress. One file a job, since gates of one node run at once.
"""

from __future__ import annotations

import os

from aistation_slurm.node.state import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Optional

__all__ = ["CLOSED", "OPEN", "TOLD", "Refusal", "comment_field", "forget", "keep", "read_all"]

OPEN = "open"
"""Slurm may not know of it."""
TOLD = "told"
"""The node's Comment names the job; Slurm's own drain for the failed prolog may still come."""
CLOSED = "closed"

KEPT = 32
COMMENT_MAX = 16384
"""Bytes of a node's Comment up to which we add to it: a longer one might not fit into one argument of scontrol."""


class Refusal:
    """``time``, ``since``: unix seconds; ``since`` is when ``progress`` was made."""

    __slots__ = ("boot", "check", "job_id", "progress", "reason", "since", "subject", "time")

    def __init__(
        self,
        job_id: int,
        time: int,
        boot: str,
        check: str,
        subject: str,
        reason: str,
        progress: str = OPEN,
        since: int = 0,
    ) -> None:
        self.job_id = job_id
        self.time = time
        self.boot = boot
        self.check = check
        self.subject = subject
        self.reason = reason
        self.progress = progress
        self.since = since


def keep(state_dir: str, refusal: Refusal) -> None:
    """Write the record of this job in place of an older one. Raises OSError."""
    folder = f"{state_dir}/refusals"
    if not os.path.isdir(folder):
        os.makedirs(state_dir, mode=0o755, exist_ok=True)
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
    head = f"{refusal.job_id} {refusal.time} {refusal.boot or '-'} {refusal.progress} {refusal.since}"
    texts = (text.replace("\t", " ").replace("\n", " ") for text in (refusal.check, refusal.subject, refusal.reason))
    line = "\t".join([head, *texts]) + "\n"
    write_file(f"{folder}/{refusal.job_id}", line.encode("utf-8", "replace"), 0o600)
    for old in _read_folder(folder)[:-KEPT]:
        try:
            os.unlink(f"{folder}/{old.job_id}")
        except OSError:
            pass


def forget(state_dir: str, job_id: int) -> None:
    """The job passes after all."""
    try:
        os.unlink(f"{state_dir}/refusals/{job_id}")
    except OSError:
        pass


def read_all(state_dir: str, boot: str) -> list[Refusal]:
    """Every readable record of this boot, the newest last."""
    return [refusal for refusal in _read_folder(f"{state_dir}/refusals") if refusal.boot == (boot or "-")]


def _read_folder(folder: str) -> list[Refusal]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = (_read(f"{folder}/{name}") for name in names if name.isdigit())
    return sorted((refusal for refusal in found if refusal is not None), key=lambda r: (r.time, r.job_id))


def _read(path: str) -> Optional[Refusal]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
        head, check, subject, reason = text.rstrip("\n").split("\t")
        job_id, time, boot, progress, since = head.split()
        if progress not in (OPEN, TOLD, CLOSED) or not text.endswith("\n"):
            return None
        return Refusal(int(job_id), int(time), boot, check, subject, reason, progress, int(since))
    except (OSError, ValueError):
        return None


def comment_field(comment: str, refused: Iterable[tuple[int, int]]) -> Optional[str]:
    """The node's Comment with these (job id, unix time) in it; None where it has them, or cannot be written back as it was."""
    from aistation_slurm.slurm import tags

    fresh = comment
    for job_id, time in refused:
        if job_id > 0 and (job_id, time) not in tags.refusals_of(fresh):
            fresh = tags.comment_with_refusal(fresh, job_id, time)
    if (
        fresh == comment
        or "\ufffd" in comment
        or "\0" in comment
        or len(fresh.encode("utf-8", "replace")) > COMMENT_MAX
    ):
        return None
    return fresh
