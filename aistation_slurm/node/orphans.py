"""Which GPU process is an orphan of the job that just ended, and may be ended. Pure.

A process is only ended when it holds one of the job's GPUs (the caller's part), has the job's uid, and nothing ties it to
another job. Where another job of the same user may be on the node, it must also be proven to be this job's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from aistation_slurm.node.processes import ProcessFacts

__all__ = ["EndedJob", "Verdict", "judge"]


@dataclass(frozen=True)
class EndedJob:
    """others: other jobs on this node that are, or may be, of the same user. live: all other jobs on this node."""

    job_id: int
    uid: int
    others: frozenset[int] = frozenset()
    live: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Verdict:
    """``end`` with the reason in words, for the log either way."""

    end: bool
    why: str


def judge(process: ProcessFacts, job: EndedJob, protect: Sequence[str]) -> Verdict:
    """protect: shell patterns of names that are never ended."""
    if job.uid <= 0:
        return Verdict(False, "root's processes are never ended: the system's own GPU services run as root")
    if process.uid != job.uid:
        return Verdict(False, f"belongs to uid {process.uid}, not to the job's {job.uid}")
    for pattern in protect:
        if fnmatchcase(process.name, pattern) or fnmatchcase(process.program, pattern):
            return Verdict(False, f"is protected by epilog.protect ({pattern})")
    other = _first(process.cgroup_jobs, job.job_id)
    if other:
        return Verdict(False, f"is in the cgroup of job {other}")
    other = _first(process.ancestor_jobs, job.job_id)
    if other:
        return Verdict(False, f"runs below a step of job {other}")
    if job.job_id in process.cgroup_jobs or job.job_id in process.ancestor_jobs:
        return Verdict(True, "was put there by Slurm for this job")
    if process.env_job == job.job_id:
        return Verdict(True, "was started with this job's SLURM_JOB_ID")
    if process.env_job is not None and process.env_job in job.live:
        return Verdict(False, f"was started with SLURM_JOB_ID={process.env_job}, a job that is on this node")
    if job.others:
        names = ", ".join(str(i) for i in sorted(job.others))
        return Verdict(False, f"may belong to another job of the same user on this node ({names})")
    return Verdict(True, "has no other job of its user on this node")


def _first(jobs: Collection[int], own: int) -> int:
    """The smallest job id that is not ``own``; 0 where there is none."""
    return min((job for job in jobs if job != own), default=0)
