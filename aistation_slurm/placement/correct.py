"""Pending jobs kept true to the health of nodes: what job_submit.lua excluded is only right for the moment of submission.

A node that became degraded is added to the exclusions of jobs that wait; one that is well again is taken off. Only names that
are noted as ours in the job's AdminComment are ever taken off, and jobs without such a note are left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Optional

from aistation_slurm.placement.note import Note, admin_comment_with, read_note
from aistation_slurm.placement.table import PartitionRow
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Job

__all__ = ["Correction", "correction_of", "corrections"]

SETTLED_S = 60.0
"""A restarted job is left to the recovery, which writes its AdminComment too, for this long after it came back."""


class Correction(NamedTuple):
    """added, lifted: the nodes; fields: what to set, in one request."""

    job: Job
    added: tuple[str, ...]
    lifted: tuple[str, ...]
    fields: dict[str, str]

    @property
    def text(self) -> str:
        words = [f"keeps off {hostlist.fold(self.added)}"] if self.added else []
        words += [f"may use {hostlist.fold(self.lifted)} again"] if self.lifted else []
        return ", ".join(words)


def corrections(
    jobs: Sequence[Job],
    partitions: Mapping[str, PartitionRow],
    now: float,
    kept: Mapping[int, Collection[str]] = {},
) -> list[Correction]:
    """For all pending jobs, those next to start first. kept: nodes that the recovery excluded from a job."""
    waiting = [job for job in jobs if job.state == "PENDING" and not job.completing]
    found = [correction_of(job, partitions, now, kept.get(job.job_id, ())) for job in waiting]
    return sorted((one for one in found if one is not None), key=lambda one: (-one.job.priority, one.job.job_id))


def correction_of(
    job: Job, partitions: Mapping[str, PartitionRow], now: float, kept: Collection[str] = ()
) -> Optional[Correction]:
    """None where the job is as it should be, or is not AIStation's to change."""
    note = read_note(job.admin_comment)
    if note is None or not note.ours or job.state != "PENDING" or job.completing:
        return None
    if job.restart_cnt and now - (job.submit_time or 0) < SETTLED_S:
        return None
    wanted = _wanted(job, note, partitions)
    if wanted is None:
        return None
    theirs = (set(job.excluded_nodes) - set(note.excluded)) | (set(job.excluded_nodes) & set(kept))
    excluded = theirs | set(wanted)
    if excluded == set(job.excluded_nodes) and set(wanted) == set(note.excluded):
        return None
    fields = {
        "ExcNodeList": hostlist.fold(sorted(excluded)),
        "AdminComment": admin_comment_with(job.admin_comment, sorted(wanted)),
    }
    added = tuple(sorted(excluded - set(job.excluded_nodes)))
    return Correction(job, added, tuple(sorted(set(job.excluded_nodes) - excluded)), fields)


def _wanted(job: Job, note: Note, partitions: Mapping[str, PartitionRow]) -> Optional[set[str]]:
    """Nodes that the job should keep off; None where that is not known."""
    rows = [partitions.get(name) for name in job.partition.split(",")]
    known = [row for row in rows if row is not None]
    if len(known) != len(rows):
        return None
    # where Slurm does not tell the fewest (text of 22.05), its own count of nodes is the nearest
    fewest = job.min_nodes or job.node_count
    if job.required_nodes or job.reservation or any(fewest > row.clean for row in known):
        return set()
    size = max(note.nodes, fewest)
    wanted: set[str] = set()
    for partition in known:
        row = partition.row(size)
        wanted.update(partition.avoid if size > 1 else (), row.excluded if row is not None else ())
    return wanted
