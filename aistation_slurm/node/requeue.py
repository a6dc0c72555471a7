"""The push: requeue the opted-in jobs of a node that was just drained for a fatal local fault.

Nothing else ends such a job: a rank that waits in a collective for a lost GPU waits for ever. Each attempt (job id and
start time) is requeued at most once, remembered in ``<state_dir>/requeued`` before the request is made, and never late:
the job is read again right before, and a request is not sent when that look is more than two seconds old.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.state import write_file
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import Job, SlurmClient
from aistation_slurm.slurm.gres import gpu_indices

__all__ = ["Attempt", "Reach", "RequeuedAttempts", "held_gpus", "opted_in", "requeue_attempt", "victims"]

log = logging.getLogger(__name__)

MAX_LOOK_AGE_S = 3.0
"""A look takes 2 s where the first of two controllers has no power (Slurm tries it first); an attempt never follows that soon."""
KEPT = 500
Attempt = tuple[int, int]
"""Job id and start time (unix seconds): one attempt of one job."""


@dataclass(frozen=True)
class Reach:
    """Whom a fault concerns. Every job of the node; or those with GPUs: with these gres indices, or (None) with any."""

    whole_node: bool
    gres: Optional[frozenset[int]] = None

    def concerns(self, held: Optional[frozenset[int]]) -> bool:
        """held: gres indices of a job's GPUs here; None: not known, which counts as concerned."""
        if self.whole_node or held is None:
            return True
        return bool(held if self.gres is None else held & self.gres)


def held_gpus(job: Job, record: Optional[JobRecord]) -> Optional[frozenset[int]]:
    """gres indices of the GPUs that a job holds on this node, by what its gate saw, else by Slurm; None: not known.

    Slurm lists them a node (``gpu:2(IDX:0-1)``) in its own order of nodes, so only what holds on every node is believed; a share
    of a GPU (shard, mps) is no GPU of its own and not known.
    """
    if record is not None and record.gpus:
        return record.gpus
    details = set(job.gres_detail)
    if any(word in detail for detail in details for word in ("shard", "mps")):
        return None
    if details:
        held = {frozenset(gpu_indices(detail)) for detail in details}
        named = all("gpu" not in detail or gpu_indices(detail) for detail in details)
        return held.pop() if named and len(held) == 1 else None
    return None if record is None else frozenset()


def opted_in(job: Job, record: Optional[JobRecord]) -> bool:
    """By job_submit's tag in AdminComment (users cannot set it), or by what the gate saw at this job's start here."""
    return (record is not None and record.opted_in) or tags.managed(job.admin_comment)


def _forbidden(job: Job) -> str:
    """The option by which the job asked not to be requeued for any cause; "" where it did not."""
    if job.requeue is False:
        return "--no-requeue"
    return "--ais-max-restarts=0" if tags.read_tag(job.admin_comment).get("max") == "0" else ""


def victims(jobs: list[Job], node: str, records: Mapping[int, JobRecord], reach: Reach) -> list[Job]:
    """The jobs running on ``node`` that opted in, may be requeued, and are concerned."""
    found = []
    for job in jobs:
        record = records.get(job.job_id)
        if job.state != "RUNNING" or job.completing or node not in job.nodes or not opted_in(job, record):
            continue
        if _forbidden(job) or not job.batch or job.start_time is None:
            continue
        if reach.concerns(held_gpus(job, record)):
            found.append(job)
    return found


class RequeuedAttempts:
    """The attempts that were requeued from this node in this boot, kept in a small file over restarts of the agent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[Attempt, None] = {}
        try:
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError:
            text = ""
        for line in text.splitlines():
            words = line.split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
                self._seen[int(words[0]), int(words[1])] = None

    def __contains__(self, attempt: Attempt) -> bool:
        return attempt in self._seen

    def add(self, attempt: Attempt) -> None:
        """Raises OSError where it cannot be kept; the requeue must then not be made, and may be tried again."""
        self._seen[attempt] = None
        while len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        try:
            self._write()
        except OSError:
            del self._seen[attempt]
            raise

    def discard(self, attempt: Attempt) -> None:
        """The request certainly had no effect: it may be made again."""
        self._seen.pop(attempt, None)
        self._write()

    def _write(self) -> None:
        text = "".join(f"{job_id} {start}\n" for job_id, start in self._seen)
        write_file(str(self.path), text.encode("ascii"), 0o600)


def requeue_attempt(
    client: SlurmClient,
    seen: Job,
    node: str,
    done: RequeuedAttempts,
    monotonic: Callable[[], float] = time.monotonic,
    note: str = "",
    keep: Callable[[Job], str] = lambda _: "",
) -> bool:
    """Requeue this attempt if it still runs here. True when Slurm took the request.

    note: the failed check, for the watchdog: in the job itself, since the node's drain may be someone else's, and its event may
    be lost with its controller. keep: called right before the request; what it says is logged.

    Raises SlurmUnavailable: nothing is known; call again later, which looks first. Raises OSError when the attempt cannot
    be remembered (nothing was sent).
    """
    assert seen.start_time is not None
    attempt = (seen.job_id, seen.start_time)
    if attempt in done:
        return False
    now = _running_here(client, seen, node)
    if now is None:
        return False
    if _forbidden(now):
        done.add(attempt)
        log.info("job %s asked not to be requeued (%s); left alone", seen.argument, _forbidden(now))
        return False
    leader = now
    if now.het_job_id is not None and now.het_job_id != now.job_id:
        # Slurm requeues a heterogeneous job as a whole, through its first component
        leader = client.job(now.het_job_id) or now
    kept = keep(now)
    if kept:
        log.info("job %s: %s", now.argument, kept)
    if note:
        _tell_watchdog(client, now, tags.fault_text(note, node, seen.start_time))
    # once more right before the request: those before took their time, and it must not meet the next attempt
    asked = monotonic()
    if _running_here(client, seen, node) is None:
        return False
    if monotonic() - asked > MAX_LOOK_AGE_S:
        log.warning("job %s: the controller is slow, so this look is too old to act on; looking again", seen.argument)
        return False
    done.add(attempt)
    try:
        client.requeue(leader)
    except SlurmRefused as exc:
        log.warning("job %s: Slurm refused the requeue: %s", seen.argument, exc)
        return False
    except SlurmUnavailable:
        # perhaps it was taken, perhaps not: the next call looks before it asks again
        done.discard(attempt)
        raise
    log.warning("job %s requeued (attempt started at %d)", seen.argument, seen.start_time)
    return True


def _running_here(client: SlurmClient, seen: Job, node: str) -> Optional[Job]:
    """The job as it is now, where it still runs here in the attempt that was seen."""
    now = client.job(seen.job_id)
    same = now is not None and now.start_time == seen.start_time and now.state == "RUNNING" and not now.completing
    if now is None or not same or node not in now.nodes:
        log.info("job %s no longer runs here in the attempt that met the fault; left alone", seen.argument)
        return None
    return now


def _tell_watchdog(client: SlurmClient, job: Job, fault: str) -> None:
    """Leave the fault in the job's own record. Without it the job is requeued all the same, though perhaps to here."""
    try:
        client.update_job(job, AdminComment=tags.tag_with(job.admin_comment, {"fault": fault}))
    except (SlurmRefused, SlurmUnavailable) as exc:
        log.warning("job %s: the fault could not be noted for the watchdog: %s", job.argument, exc)
