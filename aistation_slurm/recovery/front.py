"""A restarted job on a full cluster is the next to start, on the healthy nodes that it held and the first that gets free.

Two means, both undone when the job runs or its time is up. Facts from live 22.05.8 and its source:

- A reservation ``ais-<job id>`` for the owner, with the job's ReservationName set to it. FLEX lets the job take nodes inside
  and outside. Its own short Duration and PURGE_COMP end it where nobody does, and NO_HOLD_JOBS_AFTER_END lets the job go on then.
- Backlog takes a freed node within 30 ms of the requeue. So whoever requeues reserves the healthy nodes before
  (``keep_nodes``); the watchdog puts the job in (``apply_front``) once it is COMPLETING or PENDING.
- The main scheduler passes over a job whose reservation has fewer nodes than the job asks for, FLEX or not
  (``_job_runnable_test3``), and starts backlog. So the reservation takes in busy nodes as well (IGNORE_JOBS), those first
  that are free soonest, and no more than ``front.share`` of the partition unless the job needs more by itself: the others
  go on taking jobs. Few of them ever idle for it: the job starts with the first that it lacks, inside or outside.
- A reservation is of whole nodes: a job that held a part of a node gets none, only its Nice.
- A lower Nice, by just so much that the job passes all others of its partition: priority/basic adds it up in 32 bits, and
  an overflow would put the job last. A held job's Nice is never changed: that would release it.

Old and new Nice and the time are kept in AdminComment (``nice=0:-50@1796091300``), in the same request that sets them, so
that any later watchdog undoes exactly this. A Nice that somebody has changed meanwhile is theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from aistation_slurm.config import Front
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.recovery.fitting import RESERVED, share_partition
from aistation_slurm.recovery.front_nodes import choose_nodes, has_neighbours, shares_nodes
from aistation_slurm.slurm import hostlist, tags
from aistation_slurm.slurm.client import Job, Node, Reservation, SlurmClient
from aistation_slurm.slurm.gres import gpu_count

__all__ = [
    "FrontPlan",
    "apply_front",
    "clear_leftovers",
    "keep_nodes",
    "leftovers",
    "look_s",
    "plan_front",
    "reservation_name",
    "undo_due",
    "undo_front",
]

LOOK_S, LOOK_MAX_S = 1.0, 5.0
FLAGS = "IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER_END,PURGE_COMP=00:01:00"
MARGIN = 1000
"""Ahead of the best by this much: priorities of waiting jobs grow with their age."""
PRIORITY_MAX = 2**32 - 2
NICE_MIN = -(2**31 - 10)
GRACE_S = 30
"""A reservation this young may be one that keeps nodes for a requeue about to be sent."""
_NAME = re.compile(r"ais-([1-9][0-9]{0,9})")
_NICE = re.compile(r"(-?[0-9]{1,10}):(-?[0-9]{1,10})@([0-9]{1,12})")


class Raised(NamedTuple):
    """The tag's ``nice=old:new@until``. until: unix time at which it is undone at the latest."""

    old: int
    new: int
    until: int


@dataclass(frozen=True)
class FrontPlan:
    """nodes: the reservation's, empty for none; kept: those of them that the job held. new_nice == old_nice: it stays."""

    job_id: int
    nodes: tuple[str, ...]
    kept: tuple[str, ...]
    old_nice: int
    new_nice: int
    until: int
    minutes: int


def reservation_name(job_id: int) -> str:
    """``ais-1234``; no other reservation is ever touched."""
    return f"ais-{job_id}"


def raised(job: Job) -> Optional[Raised]:
    """What the job's tag says was done to its Nice; None where the job is not in front."""
    match = _NICE.fullmatch(tags.read_tag(job.admin_comment).get("nice", ""))
    return Raised(int(match[1]), int(match[2]), int(match[3])) if match else None


def in_front(job: Job) -> bool:
    """True while the job has a reservation of ours or a Nice of ours."""
    return job.reservation == reservation_name(job.job_id) or raised(job) is not None


# ---- before the requeue


def keep_nodes(client: SlurmClient, job: Job, bad: Sequence[str], config: Front, jobs: Sequence[Job] = ()) -> str:
    """Reserve the healthy nodes of a running job that is about to be requeued; "" where nothing is to be kept.

    Three RPCs; for the node's agent and the watchdog. jobs: all, where the caller has them: without competition nothing is
    kept. For at most ``front.most`` jobs at once, also before they are in front. Never an obstacle to the requeue: a refusal
    is only told. Raises SlurmUnavailable.
    """
    healthy = [name for name in job.nodes if name not in bad]
    if config.keep_nodes_s <= 0 or not healthy or job.state != "RUNNING" or job.completing:
        return ""
    if not job.batch or job.het_job_id is not None or job.reservation or job.requeue is False:
        return ""
    if jobs and not _rivals(job, jobs, None):
        return ""
    try:
        if len(_in_front(jobs, client.reservations()) - {job.job_id}) >= config.most:
            return ""
        held = {node.name: node for node in client.nodes(job.nodes)}
        if shares_nodes(job.nodes, job.gres_detail, held, bad) or has_neighbours(job, healthy, jobs, None):
            return ""
        if any(gpu_count(node.gres) == 0 and node.state == "MIXED" for name, node in held.items() if name in healthy):
            return ""
        _create(client, job, healthy, config)
    except SlurmRefused as exc:
        return f"its healthy nodes could not be kept: {exc}"
    return f"kept {hostlist.fold(healthy)} for it"


def _in_front(jobs: Sequence[Job], reservations: Sequence[Reservation]) -> set[int]:
    """Jobs in front, and those whose nodes are kept for a requeue that is about to come."""
    found = {job.job_id for job in jobs if in_front(job) and not job.finished}
    return found | {int(match[1]) for one in reservations for match in [_NAME.fullmatch(one.name)] if match}


def _create(client: SlurmClient, job: Job, nodes: Sequence[str], config: Front) -> None:
    client.create_reservation(
        reservation_name(job.job_id),
        Nodes=hostlist.fold(nodes),
        Duration=str(_minutes(config)),
        Users=job.user_name or str(job.user_id),
        Flags=FLAGS,
    )


def _minutes(config: Front) -> int:
    return max(math.ceil(config.keep_nodes_s / 60), 1)


# ---- the plan


def plan_front(
    job: Job,
    ran_on: Sequence[str],
    bad: Sequence[str],
    nodes: Mapping[str, Node],
    jobs: Sequence[Job],
    config: Front,
    now: float,
    spares: int = 0,
    gres: Sequence[str] = (),
    ended: Optional[float] = None,
) -> Optional[FrontPlan]:
    """How to put a requeued job in front; None where it is not to be.

    ran_on, bad: nodes of its last attempt, and those to keep away from; jobs: all; spares: idle ones that it may still get.
    gres, ended: of that attempt, where known.
    Asked once the requeue is seen (COMPLETING or PENDING), so that a job that just ends is not asked for.
    """
    if config.keep_nodes_s <= 0 or not _may(job) or tags.read_tag(job.admin_comment).get("front") == _off(job):
        return None
    others = [other for other in jobs if other.job_id != job.job_id]
    if sum(in_front(other) and not other.finished for other in others) >= config.most:
        return None
    rivals = _rivals(job, others, now)
    held = [name for name in ran_on if name not in bad and name in nodes]
    already_kept = any(nodes[name].flags & RESERVED for name in held)
    if not rivals and not already_kept:
        return None
    old, new = job.nice, _nice_for(job, rivals)
    crowd = any(in_front(other) and not other.finished for other in others)
    chosen, kept = choose_nodes(job, ran_on, bad, nodes, others, spares, config.share, crowd=crowd)
    if shares_nodes(ran_on, gres, nodes, bad) or (ended is not None and has_neighbours(job, held, others, ended)):
        chosen, kept = (), ()
    if not chosen and new == old:
        return None
    until = int(now + config.keep_nodes_s)
    return FrontPlan(job.job_id, chosen, kept, old, new, until, _minutes(config))


def _may(job: Job) -> bool:
    """Back in the queue, not held, and neither in somebody's reservation nor in front already."""
    if not (job.state == "PENDING" or job.completing) or job.priority == 0 or not job.batch:
        return False
    own = reservation_name(job.job_id)
    return job.het_job_id is None and job.reservation in ("", own) and raised(job) is None


def _off(job: Job) -> str:
    """Value of ``front`` once the time was up in this wait: not again before the next restart."""
    return f"off@{job.restart_cnt}"


def _rivals(job: Job, jobs: Sequence[Job], now: Optional[float]) -> list[Job]:
    """Jobs that wait in the same partition and may start any moment."""
    return [
        other
        for other in jobs
        if other.state == "PENDING"
        and not other.completing
        and other.job_id != job.job_id
        and other.priority != 0
        and other.reason not in ("BeginTime", "Dependency", "DependencyNeverSatisfied")
        and (now is None or other.eligible_time is None or other.eligible_time <= now + 60)
        and share_partition(job.partition, [p for p in other.partition.split(",") if p])
    ]


def _nice_for(job: Job, rivals: Sequence[Job]) -> int:
    """The Nice that passes the best rival; the present one where the job is ahead, or its priority is not told."""
    best = max((other.priority for other in rivals if raised(other) is None), default=0)
    if job.priority <= 0 or job.priority > best:
        return job.nice
    boost = min(best + MARGIN, PRIORITY_MAX) - job.priority
    return max(job.nice - boost, NICE_MIN)


# ---- doing and undoing


def apply_front(client: SlurmClient, plan: FrontPlan, config: Front) -> str:
    """Carry the plan out, after a fresh look; what was done, in words. Three RPCs, up to three more where Slurm refuses.

    Raises SlurmUnavailable; whatever was done by then is undone by ``undo_front`` or ends by itself.
    """
    fresh = client.job(plan.job_id)
    if fresh is None or not _may(fresh):
        return "late: the job has moved on"
    if fresh.nice != plan.old_nice:
        return "late: its Nice has changed"
    nodes, note = _reserve(client, fresh, plan, config)
    name = reservation_name(plan.job_id)
    value = f"{plan.old_nice}:{plan.new_nice}@{plan.until}"
    fields = {"AdminComment": tags.tag_with(fresh.admin_comment, {"nice": value})}
    if plan.new_nice != plan.old_nice:
        fields["Nice"] = str(plan.new_nice)
    if nodes:
        fields["ReservationName"] = name
    try:
        client.update_job(fresh, **fields)
    except SlurmRefused as exc:
        if nodes:
            _delete(client, name)
        return f"refused: {exc}"
    done = [f"keeps {hostlist.fold(nodes)}"] if nodes else []
    done += [f"Nice {plan.old_nice} -> {plan.new_nice}"] if plan.new_nice != plan.old_nice else []
    return "in front: " + ", ".join(done + ([note] if note else []))


def _reserve(client: SlurmClient, job: Job, plan: FrontPlan, config: Front) -> tuple[tuple[str, ...], str]:
    """The nodes that could be reserved, and what Slurm said against more."""
    if not plan.nodes:
        return (), ""
    name = reservation_name(plan.job_id)
    said = ""
    for nodes in dict.fromkeys((plan.nodes, plan.kept)):
        if not nodes:
            continue
        try:
            _create(client, job, nodes, config)
            return nodes, said
        except SlurmRefused as exc:
            said = str(exc)
        try:
            # made before the requeue by keep_nodes
            client.update_reservation(name, Nodes=hostlist.fold(nodes), Duration=str(plan.minutes + 1))
            return nodes, ""
        except SlurmRefused:
            pass
    return (), f"no nodes kept: {said}"


def look_s(job: Job, now: float, config: Front) -> Optional[float]:
    """Seconds to the next look at a job in front, None for others: nodes stay idle from its start until it is seen."""
    tag = raised(job)
    if tag is None or job.state != "PENDING":
        return None
    waited = max(now - (tag.until - config.keep_nodes_s), 0.0)
    return min(max(waited / 30, LOOK_S), LOOK_MAX_S)


def undo_due(job: Job, now: float) -> str:
    """Why the job's place in front is to be given up now; "" where it is not, or where it has none."""
    own = job.reservation == reservation_name(job.job_id)
    tag = raised(job)
    if (not own and tag is None) or job.completing:
        return ""
    if job.finished:
        return "the job has ended" if own else ""
    if job.state in ("RUNNING", "SUSPENDED"):
        return "the job runs"
    if job.state != "PENDING":
        return ""
    if job.priority == 0:
        return "the job is held" if own else ""
    return "its time is up" if tag is None or now >= tag.until else ""


def undo_front(client: SlurmClient, job: Job, now: float) -> str:
    """Give the place up, after a fresh look; what was done, in words, "" for nothing. Three RPCs. Raises SlurmUnavailable."""
    fresh = client.job(job.job_id)
    name = reservation_name(job.job_id)
    if fresh is None:
        _delete(client, name)
        return "the job is gone"
    why = undo_due(fresh, now)
    if not why:
        return ""
    fields = _undone(fresh) if not fresh.finished else {}
    note = ""
    try:
        if fields:
            client.update_job(fresh, **fields)
    except SlurmRefused as exc:
        note = f"; {exc}"
    _delete(client, name)
    return f"no longer in front: {why}{note}"


def _undone(job: Job) -> dict[str, str]:
    """Fields that undo it, in one request."""
    fields = {}
    if job.reservation == reservation_name(job.job_id):
        fields["ReservationName"] = ""
    tag = raised(job)
    if tag is None or job.priority == 0:
        return fields
    if tag.new != tag.old and job.nice == tag.new:
        fields["Nice"] = str(tag.old)
    fields["AdminComment"] = tags.tag_without(job.admin_comment, "nice", "front")
    if job.state == "PENDING":
        fields["AdminComment"] = tags.tag_with(fields["AdminComment"], {"front": _off(job)})
    return fields


def _delete(client: SlurmClient, name: str) -> None:
    try:
        client.delete_reservation(name)
    except SlurmRefused:
        pass  # gone by itself, or in use: then it ends with its Duration


# ---- what a killed watchdog, or a requeue that was not sent, left


def leftovers(reservations: Sequence[Reservation], jobs: Sequence[Job], now: float) -> list[str]:
    """Names of our reservations that serve no job."""
    by_id = {job.job_id: job for job in jobs}
    found = []
    for reservation in reservations:
        match = _NAME.fullmatch(reservation.name)
        purged = any(flag.startswith("PURGE_COMP") for flag in reservation.flags)
        if match and "FLEX" in reservation.flags and purged and _unused(reservation, by_id.get(int(match[1])), now):
            found.append(reservation.name)
    return found


def _unused(reservation: Reservation, job: Optional[Job], now: float) -> bool:
    if job is None or job.finished:
        return True
    if job.completing or job.reservation == reservation.name:
        return False
    young = reservation.start_time is None or now < reservation.start_time + GRACE_S
    used = job.state == "RUNNING" and (reservation.start_time or 0) < (job.start_time or 0)
    return used or not young


def clear_leftovers(client: SlurmClient, jobs: Sequence[Job], now: float) -> list[str]:
    """Delete them; the names. One RPC, and one for each. For the watchdog's start, and while restarts are under way."""
    names = leftovers(client.reservations(), jobs, now)
    for name in names:
        _delete(client, name)
    return names
