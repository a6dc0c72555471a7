"""Spare nodes stand by in a reservation of the watchdog's, and are lent to restarted jobs that lack a node.

A job takes its nodes from one reservation, so a spare must leave its own to join the job's other nodes. Nothing but Slurm
remembers what is lent, so that a watchdog killed at any instant loses nothing: a configured spare that is not in the
reservation is lent, and to whom says the job's tag (``spare=gpu7``), which is written first. A spare whose borrower has ended,
or runs elsewhere, goes back at once (IGNORE_JOBS): whoever got onto it meanwhile finishes, and nobody new starts there.

22.05 knows no ``Nodes-=`` and no empty reservation (an empty list makes it choose a node by itself): the whole list is sent,
and a reservation that would be empty is deleted until a spare comes back. Nodes in it that are not configured stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.config import Spares
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.recovery.fitting import RESERVED, fitting
from aistation_slurm.recovery.front import reservation_name
from aistation_slurm.slurm import hostlist, tags
from aistation_slurm.slurm.client import Job, Node, Reservation, SlurmClient

__all__ = ["Lend", "apply_lend", "apply_standby", "configured", "plan_lend", "plan_standby"]

TAG_VALUE_MAX = 80
"""Bytes of one value in AdminComment's tag."""
WAITS_FOR_NODES = ("resources", "priority", "reqnodenotavail", "nodes required for job")
"""Beginnings of a pending job's reason, in lower case with blanks, that a spare can end; so can "None" (not looked at yet)."""


@dataclass(frozen=True)
class Lend:
    """spares: the nodes that ``job_id`` gets; standby: what stays in the spares' reservation; front: all nodes of the job's
    own reservation with them, empty where it has none."""

    job_id: int
    spares: tuple[str, ...]
    standby: tuple[str, ...]
    front: tuple[str, ...]


def configured(config: Spares, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """The spare nodes that Slurm knows; the others are told once by ``doctor``."""
    names = [name for text in config.nodes for name in hostlist.expand(text)]
    return tuple(name for name in dict.fromkeys(names) if name in nodes)


def plan_lend(
    job: Job,
    ran_on: Sequence[str],
    bad: Sequence[str],
    nodes: Mapping[str, Node],
    reservations: Sequence[Reservation],
    config: Spares,
    now: float,
    waits_since: float,
) -> Optional[Lend]:
    """Spares for a restarted job that waits for as many nodes as it lost; None where it gets none.

    ran_on, bad: nodes of its last attempt, and those replaced; waits_since: unix time since which it may start. Never more
    spares than bad nodes, and none while enough other nodes are idle.
    """
    spares = configured(config, nodes)
    if not spares or not _waits(job) or now < waits_since + config.after_s:
        return None
    standby = _named(reservations, config.reservation)
    own = _named(reservations, reservation_name(job.job_id))
    there = standby.nodes if standby is not None else ()
    fit = {node.name: node for node in fitting(job, ran_on, nodes, bad)}
    lost = [name for name in bad if name in ran_on]
    mine = borrowed_by(job)
    pending = [name for name in mine if name not in there and name not in bad]
    others = {name for r in reservations if r is not own for name in r.nodes}
    ours = own.nodes if own is not None else ()
    idle = [name for name, node in fit.items() if node.state == "IDLE" and name not in others]
    idle = [name for name in idle if name in ours or not fit[name].flags & RESERVED]
    missing = min(max(job.min_nodes or job.node_count, 1) - len(idle), len(lost) - len(pending))
    ready = [name for name in spares if name in there and name in fit and fit[name].state == "IDLE"]
    ready.sort(key=lambda name: name not in mine)  # begun by a watchdog that was killed: the same ones again
    chosen = _that_fit_a_tag(ready[: max(missing, 0)])
    if not chosen:
        return None
    rest = tuple(name for name in there if name not in chosen)
    front = (*own.nodes, *chosen) if own is not None and job.reservation == own.name else ()
    return Lend(job.job_id, chosen, rest, front)


def _that_fit_a_tag(names: Sequence[str]) -> tuple[str, ...]:
    """A name that the tag does not hold would be taken back while the job waits for it."""
    chosen: list[str] = []
    for name in names:
        if len(",".join([*chosen, name])) <= TAG_VALUE_MAX:
            chosen.append(name)
    return tuple(chosen)


def _waits(job: Job) -> bool:
    """A restarted job that only lacks nodes, and is in nobody's reservation."""
    reason = job.reason.replace("_", " ").lower()
    if job.state != "PENDING" or job.completing or job.priority == 0 or job.restart_cnt == 0:
        return False
    if job.het_job_id is not None or job.reservation not in ("", reservation_name(job.job_id)):
        return False
    return reason in ("none", "") or reason.startswith(WAITS_FOR_NODES)


def _named(reservations: Sequence[Reservation], name: str) -> Optional[Reservation]:
    return next((r for r in reservations if r.name == name), None)


def borrowed_by(job: Job) -> tuple[str, ...]:
    """Spares that the job's tag names. AdminComment cannot be written by users."""
    text = tags.read_tag(job.admin_comment).get("spare", "")
    return tuple(name for name in text.split(",") if name)


def apply_lend(client: SlurmClient, plan: Lend, config: Spares) -> str:
    """First the job's tag, then the reservations; what was done, in words. Four RPCs. Raises SlurmUnavailable, SlurmRefused."""
    fresh = client.job(plan.job_id)
    if fresh is None or not _waits(fresh):
        return "late: the job has moved on"
    tag = tags.tag_with(fresh.admin_comment, {"spare": ",".join(plan.spares)})
    if tag != fresh.admin_comment:
        client.update_job(fresh, AdminComment=tag)
    if plan.standby:
        client.update_reservation(config.reservation, Nodes=hostlist.fold(plan.standby))
    else:
        client.delete_reservation(config.reservation)
    note = ""
    if plan.front:
        try:
            client.update_reservation(reservation_name(plan.job_id), Nodes=hostlist.fold(plan.front))
        except SlurmRefused as exc:
            note = f"; not kept for it: {exc}"
    return f"lent spare {hostlist.fold(plan.spares)}{note}"


def plan_standby(
    nodes: Mapping[str, Node], jobs: Sequence[Job], reservations: Sequence[Reservation], config: Spares
) -> Optional[tuple[str, ...]]:
    """The whole node list that the spares' reservation is to have, where it lacks some now; None where it is as it should be.

    A spare goes in unless a job that was lent it waits for it or runs on it, it is broken, or it is in somebody's reservation.
    """
    spares = configured(config, nodes)
    standby = _named(reservations, config.reservation)
    there = standby.nodes if standby is not None else ()
    taken = {name for job in jobs for name in borrowed_by(job) if _uses(job, name)}
    taken |= {name for r in reservations if r is not standby for name in r.nodes}
    back = [name for name in spares if name not in there and name not in taken and nodes[name].schedulable]
    # a reserved node that no listed reservation holds: this list is older than the nodes
    back = [name for name in back if not nodes[name].flags & RESERVED]
    return (*there, *back) if back else None


def _uses(job: Job, spare: str) -> bool:
    """The borrower still has a claim: it waits and is not held, or it is on the spare."""
    if job.state == "PENDING" and not job.completing:
        return job.priority != 0
    return not job.finished and spare in job.nodes


def apply_standby(client: SlurmClient, whole: Sequence[str], exists: bool, config: Spares) -> str:
    """Put spares into their reservation, or make it; one RPC. Raises SlurmUnavailable, SlurmRefused."""
    names = hostlist.fold(whole)
    if exists:
        client.update_reservation(config.reservation, Nodes=names)
    else:
        client.create_reservation(
            config.reservation, Nodes=names, Duration="UNLIMITED", Users="root", Flags="IGNORE_JOBS"
        )
    return f"on standby: {names}"
