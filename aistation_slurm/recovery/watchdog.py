"""The recovery loop: events and a slow poll in, one journaled step per job and cycle out.

It holds nothing in memory that matters: kill it at any instant, and the next run finds in the journal and in Slurm what was
done. A requeue is keyed by job and start time of the attempt; it is sent only after a fresh look at that very attempt.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.recovery import events
from aistation_slurm.recovery.attribution import Attempt, Cause, Verdict, attribute
from aistation_slurm.recovery.clock import Clock
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.recovery.policy import Limits, Step, StepKind, decide
from aistation_slurm.slurm import hostlist, tags
from aistation_slurm.slurm.client import FINISHED, Job, Node, SlurmClient

__all__ = ["Watchdog"]

log = logging.getLogger(__name__)

SPOOL_LOOK_S = 0.2
BUSY_POLL_S = 0.4
"""While a recovery is under way: each look is one job and one node request."""
STALE_REQUEUE_S = 3.0
"""A requeue is not sent when this much time went by since the look that allowed it."""
_ALREADY = ("pending", "already")


class Watchdog:
    """One controller's watchdog. ``cycle()`` is one look; ``run()`` loops until told to stop."""

    def __init__(self, config: Config, client: SlurmClient, journal: Journal, clock: Clock) -> None:
        self._config = config.watchdog
        self._enforce = config.enforcing(config.watchdog)
        self._client, self._journal, self._clock = client, journal, clock
        self._next_poll = 0.0
        self._told: set[tuple[int, int, str]] = set()
        self._slurm_down = False
        self.stopping = False

    def run(self) -> None:
        """Loop until ``stopping`` is set. Slurm being away is waited for; a journal that cannot be written ends it."""
        while not self.stopping:
            self.cycle()
            self._clock.sleep(SPOOL_LOOK_S)

    def cycle(self) -> bool:
        """Take in events, and look at Slurm where that is due. True when a look was made."""
        fresh = self._take_events()
        now = self._clock.now()
        if not fresh and now < self._next_poll:
            return False
        try:
            busy = self._look()
        except SlurmUnavailable as exc:
            if not self._slurm_down:
                log.warning("Slurm cannot be asked, waiting: %s", exc)
            self._slurm_down = True
            self._next_poll = self._clock.now() + min(5.0, self._config.poll_s)
            return True
        if self._slurm_down:
            log.info("Slurm answers again")
        self._slurm_down = False
        self._next_poll = self._clock.now() + (BUSY_POLL_S if busy else self._config.poll_s)
        return True

    def _take_events(self) -> bool:
        """Journal the spool's events, then remove them."""
        found = False
        for event in events.read_spool(Path(self._config.spool_dir)):
            how = f"signal {event.exit_signal}" if event.exit_signal else f"exit code {event.exit_code}"
            self._journal.end_attempt(event.job_id, event.nodes, event.time, how, event.user_id or -1)
            self._journal.note(
                event.time,
                "attempt_ended",
                f"attempt ended on {hostlist.fold(event.nodes)}: {how}",
                job_id=event.job_id,
            )
            events.remove(event)
            found = True
        return found

    def _look(self) -> bool:
        """One look at all jobs and nodes; True where a recovery is under way."""
        jobs = self._client.jobs()
        known = self._journal.known_jobs()
        managed = [job for job in jobs if self._manages(job) or job.job_id in known]
        for job in managed:
            self._note_running(job)
        nodes: Optional[dict[str, Node]] = None
        busy = False
        for job in managed:
            last = self._journal.last_attempt(job.job_id)
            if last is None or last[0].state in ("restarted", "done"):
                continue
            if nodes is None:
                nodes = {node.name: node for node in self._client.nodes()}
            busy |= self._handle(job, last[0], last[1], nodes)
        self._forget({job.job_id for job in jobs}, known)
        return busy

    def _manages(self, job: Job) -> bool:
        return tags.managed(job.admin_comment) or bool(set(job.partition.split(",")) & set(self._config.partitions))

    def _note_running(self, job: Job) -> None:
        if job.state not in ("RUNNING", "SUSPENDED") or job.start_time is None or not job.nodes:
            return
        attempt = Attempt(job.job_id, job.start_time, job.nodes)
        if self._journal.see_attempt(attempt, restart_cnt=job.restart_cnt, user_id=job.user_id, name=job.name):
            text = f"attempt {job.restart_cnt} runs on {hostlist.fold(job.nodes)}"
            self._journal.note(float(job.start_time), "attempt_started", text, job_id=job.job_id)

    def _forget(self, present: set[int], known: set[int]) -> None:
        """Jobs that Slurm no longer has: nothing can be done for them any more."""
        for job_id in known - present:
            last = self._journal.last_attempt(job_id)
            if last is not None:
                self._journal.mark(last[0], state="done")

    def _handle(self, job: Job, attempt: Attempt, calm_since: Optional[float], nodes: Mapping[str, Node]) -> bool:
        now = self._clock.now()
        if job.state == "RUNNING" and job.start_time != attempt.start_time:
            # the attempt ended and the job runs again without us (Slurm's own requeue, or a person)
            self._journal.mark(attempt, state="restarted", ended=attempt.ended or now)
            return False
        if job.state == "PENDING" and not job.completing and calm_since is None:
            calm_since = now
            self._journal.mark(attempt, calm_since=now, state="ended", ended=attempt.ended or now)
        verdict = attribute(job, attempt, nodes)
        if verdict.cause is Cause.REQUEUED_BY_HAND and attempt.state == "running" and not attempt.ended:
            return True
        limits = self._limits(job)
        step = decide(job, attempt, verdict, limits, now, nodes, calm_since)
        self._tell(job, attempt, verdict, step)
        if step.kind is StepKind.WAIT:
            return True
        if step.kind is StepKind.NOTHING:
            if job.state in FINISHED and job.finished:
                self._journal.mark(attempt, state="done", cause=verdict.cause.value, why=verdict.text[:500])
            return False
        if not self._enforce:
            self._observe(job, attempt, step)
            return False
        self._act(job, attempt, verdict, step)
        return True

    def _limits(self, job: Job) -> Limits:
        asked = tags.read_tag(job.admin_comment).get("max", "")
        most = min(int(asked), self._config.max_restarts_cap) if asked.isdigit() else self._config.max_restarts
        return Limits(most, self._journal.restarts(job.job_id), self._config.start_gap_s)

    def _tell(self, job: Job, attempt: Attempt, verdict: Verdict, step: Step) -> None:
        """Say each new judgement about an attempt once, in the log and in the journal."""
        key = (job.job_id, attempt.start_time, f"{verdict.cause.value} {step.kind.value}")
        if step.kind is StepKind.WAIT or verdict.cause is Cause.NONE or key in self._told:
            return
        self._told.add(key)
        self._journal.mark(attempt, cause=verdict.cause.value, why=verdict.text[:500])
        text = f"{verdict.cause.value}: {verdict.text}"
        if step.kind is StepKind.NOTHING:
            text = f"left alone ({verdict.cause.value}): {step.why}"
        log.info("job %s: %s", job.argument, text)
        node = next(iter(verdict.bad), "")
        self._journal.note(self._clock.now(), "judged", text, node=node, job_id=job.job_id)

    def _observe(self, job: Job, attempt: Attempt, step: Step) -> None:
        key = (job.job_id, attempt.start_time, f"observe {step.kind.value}")
        if key not in self._told:
            self._told.add(key)
            text = f"observe only: would {step.kind.value} ({step.why})"
            log.info("job %s: %s", job.argument, text)
            self._journal.note(self._clock.now(), "observed", text, job_id=job.job_id)

    # ---- actions

    def _act(self, job: Job, attempt: Attempt, verdict: Verdict, step: Step) -> None:
        """Intent, action, end. Refusals are journaled and end the step; no answer leaves the intent open."""
        action = self._journal.intend(attempt, step.kind.value, self._clock.now(), step.why)
        try:
            if step.kind is StepKind.REQUEUE:
                outcome = self._requeue(job, attempt)
            elif step.kind is StepKind.HOLD:
                self._client.update_job(job, Comment=tags.comment_with(job.comment, f"held: {step.why}"))
                self._client.hold(job)
                self._journal.mark(attempt, state="restarted")
                outcome = "done"
            else:
                outcome = self._start(job, attempt, verdict, step)
        except SlurmRefused as exc:
            outcome = f"refused: {exc}"
            log.warning("job %s: %s refused: %s", job.argument, step.kind.value, exc)
        now = self._clock.now()
        self._journal.done(action, now, outcome)
        self._journal.note(now, step.kind.value, f"{step.kind.value}: {outcome}; {step.why}", job_id=job.job_id)
        log.info("job %s: %s: %s", job.argument, step.kind.value, outcome)

    def _requeue(self, job: Job, attempt: Attempt) -> str:
        """Only the attempt that was judged: looked at again just before, and not sent late."""
        looked = self._clock.now()
        fresh = self._client.job(job.job_id)
        if fresh is None:
            return "gone: Slurm no longer has the job"
        if fresh.state == "PENDING" or (fresh.start_time is not None and fresh.start_time != job.start_time):
            return "done: requeued already"
        if fresh.requeue is False:
            self._journal.mark(attempt, state="done")
            return "left: the job asked for --no-requeue"
        if fresh.state in ("COMPLETED", "CANCELLED"):
            return f"left: the job is {fresh.state}"
        if self._clock.now() - looked > STALE_REQUEUE_S:
            return "late: looking again first"
        try:
            self._client.requeue(fresh)
        except SlurmRefused as exc:
            if any(word in str(exc).lower() for word in _ALREADY):
                return "done: requeued already"
            raise
        return "done"

    def _start(self, job: Job, attempt: Attempt, verdict: Verdict, step: Step) -> str:
        """Keep the job away from the bad nodes, say why, and let it start: all in one request, then the release."""
        fresh = self._client.job(job.job_id)
        if fresh is None:
            return "gone: Slurm no longer has the job"
        if fresh.state != "PENDING" or fresh.completing:
            return "late: looking again first"
        restart = self._journal.restarts(job.job_id) + 1
        bad = hostlist.fold(verdict.bad) if verdict.bad else "none"
        why = next(iter(verdict.bad.values()), verdict.text)
        away = f" away from {bad}" if verdict.bad else ""
        note = f"restart {restart}{away}: {re.sub(r' .[0-9a-f]{6}.$', '', why)}"
        check = why.split(" ", 1)[0].partition(":")[2] if why.startswith("ais:") else "node_fail"
        fields = {
            "AdminComment": tags.tag_with(
                fresh.admin_comment,
                {"attempt": str(restart), "act": step.kind.value, "why": f"{check}@{bad}"},
            ),
            "Comment": tags.comment_with(fresh.comment, note),
            "StartTime": "now",
        }
        if set(step.exclude) != set(fresh.excluded_nodes):
            fields["ExcNodeList"] = hostlist.fold(step.exclude)
        try:
            self._client.update_job(fresh, **fields)
        except SlurmRefused as exc:
            if "ExcNodeList" not in fields:
                raise
            # a job that asked for the bad node by name cannot exclude it; it waits for it instead
            fields.pop("ExcNodeList")
            self._journal.note(self._clock.now(), "not_excluded", f"exclusion refused: {exc}", job_id=job.job_id)
            self._client.update_job(fresh, **fields)
        if step.kind is StepKind.RELEASE:
            self._client.release(fresh)
        for text in step.notes:
            self._journal.note(self._clock.now(), "not_excluded", text, job_id=job.job_id)
        self._journal.mark(attempt, state="restarted")
        return "done"
