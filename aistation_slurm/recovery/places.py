"""Where a restarted job gets its nodes from: its place in front of the queue, a spare, another size within its range.

Puts front.py, spares.py and elastic.py (plans, pure) to work at the moments that the watchdog's loop offers. None of it may
stand in the way of a restart: what Slurm refuses is journaled, and the job starts as it would have without.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.recovery import elastic, front, spares
from aistation_slurm.recovery.clock import Clock
from aistation_slurm.recovery.journal import Journal, Record
from aistation_slurm.slurm.client import Job, Node, SlurmClient

__all__ = ["Places"]

log = logging.getLogger(__name__)

SEEN_S = 2.0
"""When many jobs come back at once, one look at the whole cluster serves those of this long."""
Key = tuple[int, int]
"""Job id and start time of an attempt."""


class Places:
    """One watchdog's. Every method raises SlurmUnavailable; what was begun then is found in Slurm's own fields."""

    def __init__(self, config: Config, client: SlurmClient, journal: Journal, clock: Clock, *, act: bool) -> None:
        self._front, self._spares, self._elastic = config.front, config.spares, config.elastic
        self._client, self._journal, self._clock = client, journal, clock
        self._act = act
        self._placed: set[Key] = set()
        self._cleared = False
        self._over: set[int] = set()
        """Ended jobs whose reservation is gone: Slurm goes on naming it with them."""
        self._seen: Optional[tuple[float, list[Job], dict[str, Node]]] = None

    def requeued(self, job: Job, record: Record, bad: Sequence[str]) -> None:
        """The job is back in the queue and will be restarted: put it in front, once for each attempt."""
        attempt = record.attempt
        key = (job.job_id, attempt.start_time)
        if not self._act or key in self._placed:
            return
        self._placed.add(key)
        jobs, nodes = self._everything()
        now = self._clock.now()
        grown = elastic.plan_growth(job, attempt.nodes, bad, nodes, self._elastic)
        if grown is not None:
            self._note(job, "resized", self._size(grown))
        idle = [name for name in spares.configured(self._spares, nodes) if nodes[name].state == "IDLE"]
        plan = front.plan_front(
            job, attempt.nodes, bad, nodes, jobs, self._front, now, len(idle), attempt.gres, attempt.ended
        )
        if plan is not None:
            self._note(job, "front", front.apply_front(self._client, plan, self._front))
            self._seen = None  # one more is in front, and nodes are taken

    def _everything(self) -> tuple[list[Job], dict[str, Node]]:
        now = self._clock.monotonic()
        if self._seen is None or now - self._seen[0] > SEEN_S:
            jobs, nodes = self._client.jobs(), {node.name: node for node in self._client.nodes()}
            self._seen = (self._clock.monotonic(), jobs, nodes)
        return self._seen[1], self._seen[2]

    def look(self, job: Job) -> Optional[float]:
        """At every look at a managed job: give its place up when it is due. Seconds to the next look, None for no hurry."""
        now = self._clock.now()
        if self._act and job.job_id not in self._over and front.undo_due(job, now):
            if job.finished:
                self._over.add(job.job_id)
            self._note(job, "front", front.undo_front(self._client, job, now))
            return None
        return front.look_s(job, now, self._front)

    def poll(self, jobs: Sequence[Job], nodes: Mapping[str, Node], waiting: Sequence[tuple[Job, Record]]) -> None:
        """At each look at everything. waiting: restarted jobs that have not started yet, with their last attempt."""
        if not self._act:
            return
        if waiting or not self._cleared:
            for name in front.clear_leftovers(self._client, jobs, self._clock.now()):
                log.info("reservation %s served no job any more and is deleted", name)
            self._cleared = True
        now = self._clock.now()
        for job, record in waiting:
            since = float(job.eligible_time or now)
            shrunk = elastic.plan_shrink(job, record.attempt.nodes, record.bad, nodes, self._elastic, now, since)
            if shrunk is not None:
                self._note(job, "resized", self._size(shrunk))
        if self._spares.nodes:
            self._lend(jobs, nodes, waiting, now)
        present = {job.job_id for job in jobs}
        self._placed = {key for key in self._placed if key[0] in present}
        self._over &= {job.job_id for job in jobs if job.finished}
        self._seen = None  # nothing of this size is kept while nothing happens

    def _lend(
        self, jobs: Sequence[Job], nodes: Mapping[str, Node], waiting: Sequence[tuple[Job, Record]], now: float
    ) -> None:
        there = self._client.reservations()
        whole = spares.plan_standby(nodes, jobs, there, self._spares)
        if whole is not None:
            exists = any(one.name == self._spares.reservation for one in there)
            try:
                log.info("%s", spares.apply_standby(self._client, whole, exists, self._spares))
            except SlurmRefused as exc:
                log.warning("the spare nodes could not be put on standby: %s", exc)
        for job, record in waiting:
            since = float(job.eligible_time or now)
            plan = spares.plan_lend(
                job, record.attempt.nodes, record.bad, nodes, there, self._spares, now, min(since, now)
            )
            if plan is not None:
                try:
                    said = spares.apply_lend(self._client, plan, self._spares)
                except SlurmRefused as exc:
                    said = f"no spare could be lent: {exc}"
                self._note(job, "spare", said)
                there = self._client.reservations()

    def _size(self, plan: elastic.Size) -> str:
        try:
            return elastic.apply_size(self._client, plan)
        except SlurmRefused as exc:
            return f"could not be resized: {exc}"

    def _note(self, job: Job, kind: str, text: str) -> None:
        if text:
            log.info("job %s: %s", job.argument, text)
            self._journal.note(self._clock.now(), kind, text, job_id=job.job_id)
