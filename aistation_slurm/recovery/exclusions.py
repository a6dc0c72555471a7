"""Exclusions end: a node that AIStation put into a job's ExcNodeList may be used by that job again after a while.

Names that the user excluded are never touched: the journal knows which ones are ours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aistation_slurm.errors import SlurmRefused
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Job, SlurmClient

__all__ = ["expire"]

log = logging.getLogger(__name__)

MOST_AT_ONCE = 5
"""Requests per look: nobody waits for this."""


def expire(client: SlurmClient, journal: Journal, jobs: Iterable[Job], now: float, kept_s: float, *, act: bool) -> None:
    """Take expired exclusions of ours back from jobs that wait. A running job's end with its next restart."""
    old = journal.jobs_with_exclusions_before(now - kept_s)
    if not old or not act:
        return
    waiting = [job for job in jobs if job.job_id in old and job.state == "PENDING" and not job.completing]
    for job in waiting[:MOST_AT_ONCE]:
        mine = {node for node, since in journal.exclusions(job.job_id).items() if since < now - kept_s}
        left = sorted(set(job.excluded_nodes) - mine)
        if len(left) < len(job.excluded_nodes):
            try:
                client.update_job(job, ExcNodeList=hostlist.fold(left))
            except SlurmRefused as exc:
                log.warning("job %s: its exclusions could not be taken back: %s", job.argument, exc)
                continue
            text = f"may use {hostlist.fold(sorted(mine))} again: excluded more than {kept_s / 3600:.0f} h ago"
            journal.note(now, "readmitted", text, job_id=job.job_id)
        journal.drop_exclusions(job.job_id, mine)
