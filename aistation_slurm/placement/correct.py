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
    """added, lifted: the nodes; switches: the new limit, None where it stays; fields: what to set, in one request."""

    job: Job
    added: tuple[str, ...]
    lifted: tuple[str, ...]
    switches: Optional[int]
    fields: dict[str, str]

    @property
    def text(self) -> str:
        words = [f"keeps off {hostlist.fold(self.added)}"] if self.added else []
        words += [f"may use {hostlist.fold(self.lifted)} again"] if self.lifted else []
        words += [f"may span {self.switches or 'any number of'} leaf switches"] if self.switches is not None else []
        return ", ".join(words) or "its note is put right"


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
    if note is None or job.state != "PENDING" or job.completing:
        return None
    if job.restart_cnt and now - (job.submit_time or 0) < SETTLED_S:
        return None
    rows = [partitions.get(name) for name in job.partition.split(",")]
    known = [row for row in rows if row is not None]
    if len(known) != len(rows):
        return None
    wanted = _wanted(job, note, known) if note.ours else None
    limit = _limit(job, note, known, now)
    fields: dict[str, str] = {}
    before = set(job.excluded_nodes)
    excluded = before
    if wanted is not None:
        excluded = (before - set(note.excluded)) | (before & set(kept)) | wanted
        if excluded != before:
            fields["ExcNodeList"] = hostlist.fold(sorted(excluded))
    if limit is not None:
        fields["Switches"] = f"{limit[0]}@{limit[1] // 3600}:{limit[1] // 60 % 60:02}:00"
    noted = admin_comment_with(job.admin_comment, None if wanted is None else sorted(wanted), limit)
    if not fields and (wanted is None or wanted == set(note.excluded)):
        return None
    fields["AdminComment"] = noted
    added, lifted = sorted(excluded - before), sorted(before - excluded)
    return Correction(job, tuple(added), tuple(lifted), limit[0] if limit is not None else None, fields)


def _size(job: Job, note: Note) -> tuple[int, int]:
    """The fewest nodes of the job, and the size that it was looked up by."""
    # where Slurm does not tell the fewest (text of 22.05), its own count of nodes is the nearest
    fewest = job.min_nodes or job.node_count
    return fewest, max(note.nodes, fewest)


def _wanted(job: Job, note: Note, partitions: Sequence[PartitionRow]) -> set[str]:
    """Nodes that the job should keep off."""
    fewest, size = _size(job, note)
    if job.required_nodes or job.reservation or any(fewest > row.clean for row in partitions):
        return set()
    wanted: set[str] = set()
    for partition in partitions:
        row = partition.row(size)
        wanted.update(partition.avoid if size > 1 else (), row.excluded if row is not None else ())
    return wanted


def _limit(job: Job, note: Note, partitions: Sequence[PartitionRow], now: float) -> Optional[tuple[int, int]]:
    """Leaf switches (0: any number) and wait in s that the job should have instead; None: as it is.

    Slurm counts a job's wait from its first test of it, whatever is changed later, so a new wait has what is over added to it;
    ``scontrol update`` takes whole minutes.
    """
    if note.switches is None or job.reservation or job.required_nodes or not all(row.rows for row in partitions):
        return None
    size = _size(job, note)[1]
    rows = [row for row in (partition.row(size) for partition in partitions) if row is not None]
    switches = max(row.switches(size) for row in rows) if len(rows) == len(partitions) else 0
    if switches == note.switches:
        return None
    waited = max(0.0, now - (job.eligible_time or job.submit_time or now))
    wait_s = round(waited) + min((row.wait_s for row in rows), default=0)
    return switches, -(-wait_s // 60) * 60 if switches else 0
