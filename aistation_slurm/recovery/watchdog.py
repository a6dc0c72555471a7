"""The recovery loop: events and a slow poll in, one journaled step per job and look out.

It holds nothing in memory that matters: kill it at any instant, and the next run finds in the journal and in Slurm what was
done. A requeue is keyed by job and start time of the attempt; it is sent only after a fresh look at that very attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.correlation.judge import Judge
from aistation_slurm.errors import JournalError, JournalLost, SlurmError, SlurmRefused, SlurmUnavailable
from aistation_slurm.healing.story import DrainStory
from aistation_slurm.placement.refresher import Refresher
from aistation_slurm.recovery import events
from aistation_slurm.recovery.acting import ActingClient
from aistation_slurm.recovery.actor import Actor
from aistation_slurm.recovery.adopt import unknown_attempt
from aistation_slurm.recovery.attribution import Attempt, Cause, Verdict, attribute, bad_nodes
from aistation_slurm.recovery.clock import Clock
from aistation_slurm.recovery.exclusions import expire
from aistation_slurm.recovery.journal import Journal, Record
from aistation_slurm.recovery.kill_time import KillTime
from aistation_slurm.recovery.past import Past, past_of, progress_of
from aistation_slurm.recovery.places import Places
from aistation_slurm.recovery.policy import Limits, Step, StepKind, decide, readmit
from aistation_slurm.recovery.primary import FRESH_S, Primary
from aistation_slurm.recovery.suspects import BlackHoles
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import Job, Node, SlurmClient

__all__ = ["Watchdog"]

log = logging.getLogger(__name__)

SPOOL_LOOK_S = 0.2
AFTER_ACTION_S = 0.3
RETRY_S = 5.0
"""Slurm or the journal's disk is away: try again after this long."""
MANY = 3
"""More jobs than this to look at are looked at together, in one request."""
REFUSALS_MAX = 5
LATE_RETRY_S = 1.0
RESTART_LOOK_S = 4.0
COMPLETING_AGAIN_S = 1.0
CLOCK_SLACK_S = 1.0
DAY_S = 86400.0
_START_UP = {
    "back": ", one further back: a newer checkpoint failed twice",
    "unusable": "? No: its checkpoints cannot be used, it was not let start",
    "busy": "? No: another writer uses its checkpoint directory, it was not let start",
}
_RESTARTED = tuple(
    c.value for c in (Cause.INFRASTRUCTURE, Cause.HANG, Cause.RESUME_FAILED, Cause.TRANSIENT, Cause.BUSY)
)


class Watchdog:
    """One controller's watchdog. ``cycle()`` does what is due; ``run()`` loops until ``stopping`` is set."""

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        journal: Journal,
        clock: Clock,
        primary: Optional[Primary] = None,
        placement: Optional[Refresher] = None,
        kill_time: Optional[KillTime] = None,
    ) -> None:
        """primary: says whether this host's watchdog acts; None where there is no backup controller.

        placement: is shown each look at everything. kill_time: how long Slurm takes to end processes, which no
        ``unkillable_s`` undercuts; None: the setting alone counts.
        """
        self._config = config.watchdog
        self._enforce = config.enforcing(config.watchdog)
        # an intent this old whose effect is not seen had none: the command and its request are over
        self._settle_s = config.slurm.timeout_s + 2.0
        if primary is not None:
            client = ActingClient(client, primary)
        self._client, self._journal, self._clock = client, journal, clock
        self._actor = Actor(client, clock, config.front, primary)
        self._primary = primary
        self._placement = placement
        self._kill_time = kill_time
        self._next_poll = 0.0
        self._due: dict[int, float] = {}
        self._nodes: dict[str, Node] = {}
        self._noted: set[tuple[int, int]] = set()
        self._told_runs: set[tuple[int, int]] = set()
        self._known_jobs: set[tuple[int, int]] = set()
        """Job ids and submit times: which of several jobs with one id this is was looked up."""
        self._completing: dict[int, float] = {}
        self._trouble = ""
        self._next_cleaning = 0.0
        self._places = Places(config, client, journal, clock, act=self._enforce)
        self._black_holes = BlackHoles(
            client, journal, config.watchdog, str(Path(config.watchdog.journal).parent), act=self._enforce
        )
        self._drains = DrainStory(config.healing.dir)
        self._correlation = Judge(config, client, journal, clock)
        self.stopping = False

    @property
    def busy(self) -> bool:
        """True while a recovery is under way."""
        return bool(self._due)

    def run(self) -> None:
        """Loop. Whatever is away, Slurm or the journal's disk, is waited for; nothing is done meanwhile.

        Raises JournalLost where the journal's file was taken away: only a new process can go on.
        """
        while not self.stopping:
            try:
                self.cycle()
            except JournalLost:
                raise
            except JournalError as exc:
                self._say(f"the journal cannot be written, nothing is done until it can: {exc}")
                self._clock.sleep(RETRY_S)
            self._clock.sleep(SPOOL_LOOK_S)

    def cycle(self, everything: bool = False) -> None:
        """Take in events; look at what is due, or at everything. Raises JournalError."""
        if self._primary is not None and not self._primary.acts():
            self._due.clear()
            self._next_poll = 0.0  # when control comes here, everything is looked at first
            return
        self._take_events()
        self._aside("what nodes report", lambda: self._correlation.step(busy=self.busy))
        now = self._clock.monotonic()
        try:
            due = [job_id for job_id, time in self._due.items() if time <= now]
            if everything or now >= self._next_poll or len(due) > MANY or (due and not self._nodes):
                self._look_at_all()
                self._next_poll = self._clock.monotonic() + self._config.poll_s
            elif due:
                self._look_at(due)
            else:
                return
        except SlurmUnavailable as exc:
            self._say(f"Slurm cannot be asked, waiting: {exc}")
            self._put_off()
        except SlurmRefused as exc:
            self._say(f"Slurm does not let the watchdog look: {exc}; it has to run as SlurmUser or root")
            self._put_off()
        else:
            self._say("")

    def _put_off(self) -> None:
        later = self._clock.monotonic() + min(RETRY_S, self._config.poll_s)
        self._next_poll = later
        self._due = dict.fromkeys(self._due, later)

    def _say(self, trouble: str) -> None:
        """Each trouble once, and its end."""
        if trouble and trouble != self._trouble:
            log.warning("%s", trouble)
        elif self._trouble and not trouble:
            log.info("works again")
        self._trouble = trouble

    # ---- looking

    def _take_events(self) -> None:
        """Journal the spool's events, then remove them; their jobs are looked at now."""
        for event in events.read_spool(Path(self._config.spool_dir)):
            if self._journal.end_attempt(event):
                self._due[event.job_id] = 0.0
            events.remove(event)

    def _look_at_all(self) -> None:
        """Two requests: all jobs, and, where any of them is managed, all nodes."""
        self._journal.require_present()
        self._keep_house()
        jobs = self._client.jobs()
        open_jobs = self._journal.open_jobs()
        managed = [job for job in jobs if self._manages(job) or job.job_id in open_jobs]
        if managed:
            self._nodes = {node.name: node for node in self._client.nodes()}
        self._due.clear()
        present = {job.job_id for job in jobs}
        self._noted = {key for key in self._noted if key[0] in present}
        self._told_runs = {key for key in self._told_runs if key[0] in present}
        self._known_jobs = {key for key in self._known_jobs if key[0] in present}
        for job in managed:
            self._step_alone(job)
        self._aside("places", lambda: self._places.poll(jobs, self._nodes, self._waiting(managed)))
        for job_id in open_jobs - present:
            self._journal.forget(job_id)
        now = self._clock.now()
        kept_s = self._config.exclusion_s
        self._aside("placement", lambda: self._offer(jobs, managed))
        self._aside("black holes", lambda: self._black_holes.look(jobs, self._nodes, now))
        self._aside("drains", lambda: self._tell_drains(now))
        self._aside("exclusions", lambda: expire(self._client, self._journal, managed, now, kept_s, act=self._enforce))

    def _tell_drains(self, now: float) -> None:
        """What became of our drains, healing's steps among it, for ``aistation incidents``."""
        for line in self._drains.look(self._nodes) if self._nodes else ():
            self._journal.note(now, line.kind, f"{line.node}: {line.text}", node=line.node)

    def _offer(self, jobs: list[Job], managed: list[Job]) -> None:
        """Returns at once: placement works in a thread of its own."""
        if self._placement is not None:
            waiting = [job.job_id for job in managed if job.state == "PENDING" and job.excluded_nodes]
            kept = {job_id: frozenset(self._journal.exclusions(job_id)) for job_id in waiting}
            self._placement.offer(jobs, list(self._nodes.values()) if managed else None, kept)

    def _waiting(self, managed: Iterable[Job]) -> list[tuple[Job, Record]]:
        """Jobs that were restarted and have not started yet."""
        pending = [job for job in managed if job.state == "PENDING" and not job.completing and job.priority]
        records = [(job, self._journal.last(job.job_id)) for job in pending if job.restart_cnt]
        return [(job, record) for job, record in records if record is not None and record.state == "restarted"]

    def _keep_house(self) -> None:
        """Once a day: what is old leaves the journal."""
        now = self._clock.monotonic()
        if now >= self._next_cleaning:
            self._next_cleaning = now + DAY_S
            self._journal.forget_before(self._clock.now() - self._config.keep_days * DAY_S)

    def _look_at(self, due: Iterable[int]) -> None:
        """Two requests a job: the job, and the nodes of its attempt."""
        for job_id in due:
            job = self._client.job(job_id)
            record = self._journal.last(job_id)
            if job is None or record is None:
                del self._due[job_id]
                if job is None:
                    self._journal.forget(job_id)
                continue
            names = [name for name in record.attempt.nodes if name in self._nodes]
            fresh = {node.name: node for node in self._client.nodes(names)} if names else {}
            self._nodes.update(fresh)
            del self._due[job_id]
            self._step_alone(job)

    def _step_alone(self, job: Job) -> None:
        """One job's step; a defect that one job brings out must not keep all the others from their recovery."""
        try:
            self._step(job, self._nodes)
        except (SlurmError, JournalError):
            raise  # concerns every job, and the loop knows what to do
        except Exception:
            log.exception("job %s: unexpected; left alone until the next look, the other jobs go on", job.argument)

    def _aside(self, what: str, work: Callable[[], None]) -> None:
        """What only improves a recovery: a defect in it must not end the watchdog."""
        try:
            work()
        except (SlurmError, JournalError):
            raise
        except Exception:
            log.exception("%s: unexpected; left out until the next look at everything", what)

    def _manages(self, job: Job) -> bool:
        return tags.managed(job.admin_comment) or bool(set(job.partition.split(",")) & set(self._config.partitions))

    def _step(self, job: Job, nodes: Mapping[str, Node]) -> None:
        """Note what is seen of the job, and take its next step where one is due."""
        submitted = (job.job_id, job.submit_time or 0)
        if submitted not in self._known_jobs:
            if self._journal.set_aside_earlier_job(job, self._clock.now()):
                log.warning("job %s: a new job has the id of an earlier one; its story begins afresh", job.argument)
            self._known_jobs.add(submitted)
        if job.completing:
            self._completing.setdefault(job.job_id, self._clock.monotonic())
        else:
            self._completing.pop(job.job_id, None)
        in_front_s = self._places.look(job)
        if in_front_s is not None:
            self._due[job.job_id] = self._clock.monotonic() + in_front_s
        self._note_running(job)
        self._note_start_up(job)
        record = self._journal.last(job.job_id)
        if record is not None and record.state == "restarted" and self._enforce:
            step = readmit(job, record.attempt)
            if step is not None:
                verdict = self._attribute(job, record.attempt, record, nodes)
                self._act(job, record.attempt, verdict, step, self._limits(job, record))
        if record is None or record.state in ("restarted", "done"):
            record = self._adopted(job, record, nodes)
            if record is None:
                return
        elif record.state == "ended" and job.held_by_failed_launch and not bad_nodes(record.attempt, nodes, runs=False):
            # an attempt that was left alone (requeued by a person), then one that was neither seen nor told
            record = self._adopted(job, record, nodes) or record
        again_s = self._judge(job, record, nodes)
        if again_s is not None:
            self._due[job.job_id] = self._clock.monotonic() + again_s

    def _adopted(self, job: Job, before: Optional[Record], nodes: Mapping[str, Node]) -> Optional[Record]:
        """An attempt whose end nobody told, from what Slurm shows of it; None where there is none."""
        now = self._clock.now()
        attempt = unknown_attempt(job, nodes, now, float(before.attempt.start_time) if before is not None else 0.0)
        if attempt is None:
            if before is None or before.state == "restarted":
                self._tell_lost(job)
            return None
        text = f"its end was not told; known from Slurm: {', '.join(attempt.nodes)}"
        self._journal.adopt(attempt, job, now, text)
        return self._journal.last(job.job_id)

    def _note_start_up(self, job: Job) -> None:
        """What start-up published of this attempt, for the story."""
        run = tags.read_run(job.comment)
        if run is None or run.attempt != job.restart_cnt or (job.job_id, run.attempt) in self._told_runs:
            return
        self._told_runs.add((job.job_id, run.attempt))
        at = "begins anew" if run.step is None else f"resumes from step {run.step}"
        said = _START_UP.get(run.verdict, "")
        self._journal.note_once(self._clock.now(), "start_up", f"attempt {run.attempt} {at}{said}", job_id=job.job_id)

    def _tell_lost(self, job: Job) -> None:
        """A launch failed in an attempt that was neither seen nor told by an event: only a person can judge the hold."""
        key = (job.job_id, -job.restart_cnt)
        if not job.held_by_failed_launch or job.completing or key in self._noted:
            return
        self._noted.add(key)
        text = "held after a failed prolog on nodes that are not known, since its event was lost"
        text = f"{text}; once the bad node is drained: scontrol release {job.argument}"
        log.warning("job %s: %s", job.argument, text)
        self._journal.note(self._clock.now(), "left", text, job_id=job.job_id)

    def _note_running(self, job: Job) -> None:
        if job.state not in ("RUNNING", "SUSPENDED") or job.completing or job.start_time is None or not job.nodes:
            return
        key = (job.job_id, job.start_time)
        if key in self._noted:
            return
        before = self._journal.last(job.job_id)
        attempt = Attempt(job.job_id, job.start_time, job.nodes, gres=job.gres_detail)
        if self._journal.see_attempt(attempt, job) and before is not None:
            again = sorted(set(job.nodes) & set(before.bad))
            if again:
                text = f"landed on {', '.join(again)} again, from where it was taken"
                log.warning("job %s: %s", job.argument, text)
                self._journal.note(self._clock.now(), "landed_again", text, node=again[0], job_id=job.job_id)
            # an action whose end was not written down (killed in between) is seen here to have had its effect
            for kind in (StepKind.REQUEUE, StepKind.START, StepKind.RELEASE):
                self._journal.close_open(before.attempt, kind.value, self._clock.now(), "done: seen in Slurm")
        self._noted.add(key)

    # ---- judging

    def _judge(self, job: Job, record: Record, nodes: Mapping[str, Node]) -> Optional[float]:
        """Seconds until the job is to be looked at again; None: at the slow poll."""
        now = self._clock.now()
        attempt, calm_since = self._end_seen(job, record, now)
        verdict = self._attribute(job, attempt, record, nodes)
        if verdict.cause is Cause.NONE:
            # 22.05 does not say how a job ended while it is COMPLETING, and its event came before: not left to the slow poll
            return COMPLETING_AGAIN_S if job.completing else None
        limits = self._limits(job, record)
        step = decide(job, attempt, verdict, limits, now, nodes, calm_since)
        if step.kind is not StepKind.WAIT:
            self._tell(job, attempt, record, verdict, step)
        if job.state == "PENDING" and not job.completing and step.kind in (StepKind.WAIT, StepKind.START):
            self._places.requeued(job, record, tuple(verdict.bad))
        if step.kind in (StepKind.WAIT, StepKind.NOTHING) or not self._enforce:
            if step.final:
                self._journal.mark(attempt, state="done")
            return step.again_s
        return self._act(job, attempt, verdict, step, limits)

    def _end_seen(self, job: Job, record: Record, now: float) -> tuple[Attempt, Optional[float]]:
        """The attempt and the time since which its job is calm, after noting what this look shows of them."""
        attempt, calm_since = record.attempt, record.calm_since
        if job.state in ("RUNNING", "SUSPENDED") and not job.completing:
            return attempt, calm_since
        if attempt.ended is None:
            ended = min(now, float(job.end_time)) if job.finished and job.end_time else now
            self._journal.mark(attempt, state="ended", ended=ended)
        if attempt.settled is None and not job.completing and (job.finished or job.state == "PENDING"):
            self._journal.mark(attempt, settled=now)
        if job.state == "PENDING" and not job.completing:
            self._journal.close_open(attempt, StepKind.REQUEUE.value, now, "done: seen in Slurm")
            # a clock that was set back must not stretch the start gap
            if calm_since is None or calm_since > now + CLOCK_SLACK_S:
                calm_since = now
                self._journal.mark(attempt, calm_since=now)
        fresh = self._journal.last(job.job_id)
        return (fresh.attempt if fresh is not None else attempt), calm_since

    def _attribute(self, job: Job, attempt: Attempt, record: Record, nodes: Mapping[str, Node]) -> Verdict:
        restarts = self._past(job).restarts if job.state == "FAILED" else 0
        again = record.cause in _RESTARTED and (
            (job.state == "PENDING" and self._journal.requeued(attempt))
            # decided, and killed before it was done: the node may have been given back since
            or (job.state == "FAILED" and record.told.startswith(f"{record.cause}/{StepKind.REQUEUE.value}"))
        )
        return attribute(
            job,
            attempt,
            nodes,
            restarts=restarts,
            quick_s=self._config.quick_s,
            requeued_for=Cause(record.cause) if again else None,
        )

    def _past(self, job: Job) -> Past:
        return past_of(self._journal.past(job.job_id), tags.read_tag(job.admin_comment), self._config.quick_s)

    def _limits(self, job: Job, record: Record) -> Limits:
        tag = tags.read_tag(job.admin_comment)
        asked = tag.get("max", "")
        wanted = int(asked) if asked.isdecimal() and len(asked) < 7 else record.max_restarts
        most = self._config.max_restarts if wanted is None else min(wanted, self._config.max_restarts_cap)
        long_ago = self._clock.now() - self._config.exclusion_s
        expired = [node for node, since in self._journal.exclusions(job.job_id).items() if since < long_ago]
        completing_s = self._clock.monotonic() - self._completing.get(job.job_id, self._clock.monotonic())
        unkillable_s = self._config.unkillable_s
        if self._kill_time is not None and completing_s > unkillable_s:
            unkillable_s = max(unkillable_s, self._kill_time.least_s())
        return Limits(
            max_own=most,
            rules=self._config.restart,
            past=self._past(job),
            progress=progress_of(tag, job.comment, job.restart_cnt),
            no_progress=self._config.no_progress_restarts,
            start_gap_s=self._config.start_gap_s,
            late_s=self._config.late_s,
            unkillable_s=unkillable_s,
            completing_s=completing_s,
            expired=frozenset(expired),
        )

    def _tell(self, job: Job, attempt: Attempt, record: Record, verdict: Verdict, step: Step) -> None:
        """Say each new judgement of an attempt once, in the log and in the journal."""
        told = f"{verdict.cause.value}/{step.kind.value}/{verdict.said}".rstrip("/") + (
            "" if self._enforce else "/observe"
        )
        if verdict.cause is Cause.NONE or told == record.told:
            return
        if step.kind is StepKind.NOTHING:
            kind, text = "left", f"left alone ({verdict.cause.value}): {step.why}"
            if verdict.cause in (Cause.FINISHED, Cause.CANCELLED):
                kind, text = verdict.cause.value, verdict.text
        elif self._enforce:
            kind, text = "judged", f"{verdict.cause.value}: {step.why}"
        else:
            kind, text = "observed", f"observe only: would {step.kind.value}: {step.why}"
        log.info("job %s: %s", attempt.job_id, text)
        now, bad = self._clock.now(), tuple(verdict.bad)
        if verdict.cause is Cause.REQUEUED and self._enforce and tags.managed(job.admin_comment):
            self._actor.mark_requeued(job, attempt)
        self._journal.tell(attempt, told, verdict.cause.value, text, time=now, kind=kind, bad=bad)

    # ---- acting

    def _act(self, job: Job, attempt: Attempt, verdict: Verdict, step: Step, limits: Limits) -> Optional[float]:
        """Intent, action, end. A refusal is journaled and tried again a few times; no answer leaves the intent open."""
        if self._primary is not None and not self._primary.acts(FRESH_S):
            return RETRY_S
        kind, now = step.kind.value, self._clock.now()
        if step.kind is StepKind.REQUEUE:
            since = self._journal.open_since(attempt, kind)
            if since is not None and 0 <= now - since < self._settle_s:
                # sent by a watchdog that was killed, or not answered: it may still have its effect
                return self._settle_s - (now - since)
        refused, last = self._journal.refusals(attempt, kind)
        if refused >= REFUSALS_MAX:
            self._journal.note(
                now, "given_up", f"{kind} was refused {refused} times; left to people", job_id=job.job_id
            )
            self._journal.mark(attempt, state="done")
            return None
        pause = 2.0**refused if refused else 0.0
        if 0 <= now - last < pause:
            return pause - (now - last)
        mine = set(step.exclude) - set(job.excluded_nodes)
        if mine:
            self._journal.exclude(job.job_id, mine, now)
        action = self._journal.intend(attempt, kind, now, step.why)
        try:
            outcome = self._actor.apply(job, attempt, verdict, step, limits)
            text, state, notes = outcome.text, outcome.state, outcome.notes
        except SlurmRefused as exc:
            text, state, notes = f"refused: {exc}", "", ()
        log.log(
            logging.WARNING if text.startswith("refused") else logging.INFO, "job %s: %s: %s", job.argument, kind, text
        )
        self._journal.done(action, attempt, self._clock.now(), text, f"{kind}: {text}; {step.why}", state)
        for note in notes:
            self._journal.note(self._clock.now(), "note", note, job_id=job.job_id)
        if state:
            # what became of the restart: its new attempt is noted, an exclusion that made it impossible is taken back
            return RESTART_LOOK_S if state == "restarted" else None
        return LATE_RETRY_S if text.startswith("late") else AFTER_ACTION_S
