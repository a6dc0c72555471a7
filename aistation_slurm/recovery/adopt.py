"""Attempts that the journal does not know: their event was lost, or another controller's watchdog had it. Pure.

Only what Slurm itself shows and users cannot write is evidence: a refusal in the Comment of a node, the fault that an agent
noted in the job's AdminComment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from aistation_slurm.recovery.attribution import Attempt
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import Job, Node

__all__ = ["unknown_attempt"]

SAME_START_S = 15
"""Refusals of one job this close together were of one start: its nodes run their prologs side by side."""
OLD_S = 7 * 86400
"""A refusal this old is of another job that had the same id."""


def unknown_attempt(job: Job, nodes: Mapping[str, Node], now: float, known_until: float) -> Optional[Attempt]:
    """The attempt that explains why this job is in the queue, or None.

    known_until: unix time of the newest attempt that is known (0: none); what was acted on stands in the tag as ``did``.
    """
    if job.state != "PENDING" or job.completing:
        return None
    did = tags.read_tag(job.admin_comment).get("did", "")
    after = max(known_until, float(did) if did.isdigit() else 0.0, now - OLD_S)
    if job.held_by_failed_launch:
        refused = [
            (time, node.name)
            for node in nodes.values()
            for job_id, time in tags.refusals_of(node.comment)
            if job_id == job.job_id and time > after  # by the node's clock: this one may be behind
        ]
        if not refused:
            return None
        latest = max(time for time, _ in refused)
        names = tuple(sorted({name for time, name in refused if time > latest - SAME_START_S}))
        return Attempt(job.job_id, latest, names, ended=float(latest), seen=False)
    node, _, start = tags.fault_of(job.admin_comment)
    waits = job.eligible_time is not None and job.eligible_time > now
    if node and after < start <= now and waits and job.priority and job.restart_cnt:
        return Attempt(job.job_id, start, (node,), ended=now)
    return None
