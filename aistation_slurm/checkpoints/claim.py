"""Before a start: may this attempt write to its checkpoint directory? Asks Slurm and the directory, then judges (lease.py)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Optional

from aistation_slurm.checkpoints import lease
from aistation_slurm.checkpoints.lease import LEASE, Busy, Found, Holder, Lease, Step, take
from aistation_slurm.checkpoints.slurm_view import SlurmView

__all__ = ["OPEN", "Lease", "claim", "take"]

OPEN = "nothing keeps a second job out of it"
WATCH_S = 4.0
"""Longer than NFS's attribute cache hides that a file grew (3 s), and no longer than a restart can bear."""

_RUNNING = frozenset(("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "CONFIGURING"))
_ENDING = frozenset(("COMPLETING", "STAGE_OUT"))


class Claimed(NamedTuple):
    """before: the lease that may be replaced by ours (lease.take), None where there is none. lost: nodes of this job's attempt
    before were lost to Slurm, so that it ended for a fault of the machines.
    """

    before: Optional[Found]
    lost: bool = False


def claim(
    directory: Path, mine: Lease, known: Mapping[str, str], digest: str, slurm: SlurmView, notes: list[str]
) -> Claimed:
    """Whether the directory may be written to. Adds what the user should know to notes.

    known: what the start-up noted in the job's Comment the last time, for an attempt that had no lease yet. digest: of the
    directory, as other jobs of the user note it. Raises Busy where another writer may be at work.
    """
    found = lease.read(directory)
    step = _judge(found.lease, found.owner, mine, slurm) if found else _without_lease(mine, known, digest, slurm)
    if step.what == "busy":
        raise Busy(
            f"{directory} is in use: {step.why}. Two writers would spoil the checkpoints: wait for it to end, end it, or give this "
            "job a directory of its own"
        )
    if step.what == "watch":
        _watch(directory, step, slurm, notes)
    elif step.why:
        notes.append(step.why)
    ours = found is None or _same_job(found.lease, mine)
    return Claimed(found, ours and step.what == "watch")


def _same_job(held: Lease, mine: Lease) -> bool:
    return held.job == mine.job and (held.cluster == mine.cluster or not held.cluster or not mine.cluster)


def _judge(held: Lease, owner: int, mine: Lease, slurm: SlurmView) -> Step:
    holder = _holder(held, owner, mine, slurm)
    if holder in (Holder.RUNNING, Holder.ENDING, Holder.ELSEWHERE, Holder.HIDDEN):
        return lease.judge(held, holder, [])
    # on nodes that are ours now slurmd answers, and it has ended what ran there before
    silent = [] if held.nodes == mine.nodes else slurm.silent_nodes(held.nodes, held.time)
    return lease.judge(held, holder, silent)


def _holder(held: Lease, owner: int, mine: Lease, slurm: SlurmView) -> str:
    if _same_job(held, mine):
        return Holder.OURS
    if held.cluster != mine.cluster and held.cluster and mine.cluster:
        return Holder.ELSEWHERE
    record = slurm.job(held.job)
    if record is None:
        return Holder.UNKNOWN
    if record.states & _RUNNING:
        return Holder.RUNNING
    if record.states & _ENDING:
        return Holder.ENDING
    return Holder.HIDDEN if not record.states and owner != os.geteuid() else Holder.GONE


def _without_lease(mine: Lease, known: Mapping[str, str], digest: str, slurm: SlurmView) -> Step:
    """An empty directory gets no lease, so that its first holder is only to be found in Slurm's own fields."""
    others = slurm.jobs_of_directory(digest, mine.job)
    if others:
        return lease.judge(Lease(others[0], mine.cluster, 0, "its first start", {}, 0), Holder.RUNNING, [])
    when, attempt = known.get("t", ""), known.get("a", "")
    if known.get("d") != digest or not (when.isdecimal() and attempt.isdecimal()) or len(when + attempt) > 20:
        return Step("take")
    nodes = known.get("n", "").replace("{", "[").replace("}", "]")
    return _judge(Lease(mine.job, mine.cluster, int(attempt), nodes, {}, float(when)), os.geteuid(), mine, slurm)


def _watch(directory: Path, step: Step, slurm: SlurmView, notes: list[str]) -> None:
    seconds = slurm.deadline.left(WATCH_S)
    changed = lease.watch(directory, seconds)
    if changed:
        raise Busy(
            f"{directory}: {step.why}, and {os.path.relpath(changed, directory)} changed in these last {seconds:.0f} s: somebody "
            f"still writes to it. End those processes; or, if you wrote that yourself: rm {directory / LEASE}"
        )
    notes.append(f"{step.why}; nothing was written to {directory} for {seconds:.0f} s, so it is taken over")
