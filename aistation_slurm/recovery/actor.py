"""Carries out one step on Slurm. Every change is preceded by a fresh look at the very attempt that was judged."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, replace
from typing import Optional

from aistation_slurm.config import Front
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.findings import is_our_reason
from aistation_slurm.recovery.attribution import Attempt, Cause, Verdict
from aistation_slurm.recovery.clock import Clock
from aistation_slurm.recovery.front import keep_nodes
from aistation_slurm.recovery.policy import Limits, Step, StepKind
from aistation_slurm.recovery.primary import Primary
from aistation_slurm.slurm import hostlist, tags
from aistation_slurm.slurm.client import Job, SlurmClient

__all__ = ["Actor", "Outcome"]

log = logging.getLogger(__name__)

STALE_LOOK_S = 2.0
"""A requeue is not sent when the look that allowed it took longer: it could meet the next attempt."""
_ALREADY = ("pending execution", "already")
_LAST = {
    Cause.INFRASTRUCTURE: "infra",
    Cause.HANG: "hang",
    Cause.RESUME_FAILED: "user",
    Cause.TRANSIENT: "unknown",
    Cause.BUSY: "requeued",
}
"""Tag ``last``: start-up does not hold it against a checkpoint when its attempt ended for ``infra``."""


@dataclass(frozen=True)
class Outcome:
    """text begins with done, left, gone or late. state: the attempt's new state, empty where it keeps the old one."""

    text: str
    state: str = ""
    notes: tuple[str, ...] = ()


class Actor:
    """Raises SlurmUnavailable (it is not known whether the change was made) and SlurmRefused (it was not)."""

    def __init__(self, client: SlurmClient, clock: Clock, keep: Front, primary: Optional[Primary] = None) -> None:
        """keep: how long the healthy nodes of a job are kept for it over a requeue."""
        self._client, self._clock, self._keep, self._primary = client, clock, keep, primary

    def apply(self, job: Job, attempt: Attempt, verdict: Verdict, step: Step, limits: Limits) -> Outcome:
        """``job`` as it was judged. At most one look and two changes."""
        asked = self._clock.monotonic()
        fresh = self._client.job(job.job_id)
        if fresh is None:
            return Outcome("gone: Slurm no longer has the job", "done")
        if step.kind is StepKind.REQUEUE:
            if fresh.state != "RUNNING" or fresh.start_time != job.start_time:
                return self._requeue(fresh, job, self._clock.monotonic() - asked)
            self._note_fault(fresh, attempt, verdict)
            notes = self._keep_nodes(fresh, tuple(verdict.bad))
            # these took their time, and the request must not meet the next attempt
            asked = self._clock.monotonic()
            again = self._client.job(job.job_id)
            if again is None:
                return Outcome("gone: Slurm no longer has the job", "done")
            outcome = self._requeue(again, job, self._clock.monotonic() - asked)
            return replace(outcome, notes=notes + outcome.notes)
        if step.kind is StepKind.DOWN:
            return self._give_up_nodes(fresh, step)
        if fresh.state in ("COMPLETED", "CANCELLED"):
            return Outcome(f"left: the job is {fresh.state}", "done")
        if step.kind is StepKind.ANNOTATE:
            return Outcome("done", "done", self._annotate(fresh, step.why))
        if fresh.state != "PENDING" or fresh.completing or fresh.held_by_failed_launch != job.held_by_failed_launch:
            return Outcome(f"late: the job is {fresh.state} now")
        if step.kind is StepKind.HOLD:
            notes = self._annotate(fresh, f"held: {step.why}")
            self._client.hold(fresh)
            return Outcome("done", "done", notes)
        if step.kind is StepKind.READMIT:
            if fresh.reason != job.reason or fresh.priority != 0:
                return Outcome(f"left: the job is {fresh.state} ({fresh.reason}) now", "restarted")
            self._client.update_job(fresh, ExcNodeList=hostlist.fold(step.exclude))
            self._client.release(fresh)
            return Outcome("done", "restarted", self._annotate(fresh, step.why))
        return self._start(fresh, attempt, verdict, step, limits)

    def mark_requeued(self, job: Job, attempt: Attempt) -> None:
        """Tell start-up that this attempt ended for a reason that says nothing about its checkpoint. Best effort."""
        tag = {"last": "requeued", "did": str(attempt.start_time)}
        try:
            self._client.update_job(job, AdminComment=tags.tag_with(job.admin_comment, tag))
        except SlurmRefused as exc:
            log.info("job %s: %s", job.argument, exc)

    def _note_fault(self, fresh: Job, attempt: Attempt, verdict: Verdict) -> None:
        """As agents do: another controller's watchdog must know why the job is in the queue. Best effort."""
        node = next((name for name, why in verdict.bad.items() if why.startswith("ais:")), "")
        if not node or tags.fault_of(fresh.admin_comment)[2] == attempt.start_time:
            return
        check = verdict.bad[node].split(" ", 1)[0].partition(":")[2]
        fault = tags.fault_text(check, node, attempt.start_time)
        try:
            self._client.update_job(fresh, AdminComment=tags.tag_with(fresh.admin_comment, {"fault": fault}))
        except SlurmRefused as exc:
            log.info("job %s: %s", fresh.argument, exc)

    def _keep_nodes(self, fresh: Job, bad: tuple[str, ...]) -> tuple[str, ...]:
        """Backlog takes a freed node within 30 ms of the requeue: what is to be kept is kept before it."""
        said = keep_nodes(self._client, fresh, bad, self._keep, self._client.jobs())
        return (said,) if said else ()

    def _give_up_nodes(self, fresh: Job, step: Step) -> Outcome:
        """DOWN ends every job on a node: only where none but this one is there, and where the reason still is ours."""
        if not fresh.completing:
            return Outcome("done: the nodes have let go")
        others = {
            name
            for other in self._client.jobs()
            if other.job_id != fresh.job_id and (other.completing or other.state in ("RUNNING", "SUSPENDED"))
            for name in other.nodes
        }
        given_up, left = [], []
        for node in self._client.nodes(step.targets):
            ours = node.drained and is_our_reason(node.reason) and "COMPLETING" in node.flags
            if ours and node.name not in others:
                self._client.down(node.name, node.reason)
                given_up.append(node.name)
            else:
                left.append(node.name)
        notes = (f"{', '.join(left)}: not set DOWN, other jobs run there or the drain is not ours",) if left else ()
        if not given_up:
            return Outcome("late: no node can be given up now", notes=notes)
        return Outcome(f"done: {', '.join(given_up)} set DOWN", notes=notes)

    def _annotate(self, fresh: Job, text: str) -> tuple[str, ...]:
        """Say it in the job's Comment. Some versions refuse that for a job that has ended; then it is only journaled."""
        try:
            self._client.update_job(fresh, Comment=tags.comment_with(fresh.comment, text))
        except SlurmRefused as exc:
            return (f"the job's comment could not be set: {exc}",)
        return ()

    def _requeue(self, fresh: Job, judged: Job, look_s: float) -> Outcome:
        if fresh.completing or fresh.state == "PENDING" or fresh.start_time != judged.start_time:
            return Outcome("done: requeued already")
        if fresh.requeue is False:
            return Outcome("left: the job asked for --no-requeue", "done")
        if fresh.state != judged.state:
            return Outcome(f"late: the job is {fresh.state} now")
        # a primary without power costs every request a time-out before it is sent: the answer itself is younger
        detour_s = self._primary.detour_s if self._primary is not None else 0.0
        if look_s > STALE_LOOK_S + detour_s:
            return Outcome(f"late: the controller took {look_s:.1f} s to answer; looking again first")
        leader = fresh
        if fresh.het_job_id is not None and fresh.het_job_id != fresh.job_id:
            # Slurm requeues a heterogeneous job as a whole, through its first component
            leader = replace(fresh, job_id=fresh.het_job_id)
        try:
            self._client.requeue(leader)
        except SlurmRefused as exc:
            if any(words in str(exc).lower() for words in _ALREADY):
                return Outcome("done: requeued already")
            raise
        return Outcome("done")

    def _start(self, fresh: Job, attempt: Attempt, verdict: Verdict, step: Step, limits: Limits) -> Outcome:
        """Keep the job away from the bad nodes, say why, and let it start: one request, then the release."""
        notes = (*step.notes, *self._update(fresh, self._fields(fresh, attempt, verdict, step, limits)))
        if step.kind is StepKind.RELEASE:
            self._client.release(fresh)
        if fresh.het_job_id is not None:
            self._start_rest(fresh, step)
        return Outcome("done", "restarted", notes)

    def _update(self, fresh: Job, fields: dict[str, str]) -> tuple[str, ...]:
        """All fields, or, where Slurm refuses that, fewer: the restart is what matters, the rest improves it.

        A comment of the user's that is near Slurm's limit (1024 bytes) leaves no room for ours; a drained node is not used
        even where it is not excluded. Returns what was left out and why.
        """
        refused: Optional[SlurmRefused] = None
        for without in (
            (),
            ("Switches",),
            ("Comment",),
            ("ExcNodeList",),
            ("Comment", "ExcNodeList"),
            ("Comment", "AdminComment"),
        ):
            left = {key: value for key, value in fields.items() if key not in without}
            if without and not set(without) <= set(fields):
                continue
            try:
                self._client.update_job(fresh, **left)
            except SlurmRefused as exc:
                refused = exc
                continue
            return (f"{' and '.join(without)} could not be set: {refused}",) if without else ()
        assert refused is not None
        raise refused

    def _start_rest(self, fresh: Job, step: Step) -> None:
        """The other components of a heterogeneous job: Slurm delays, and after a failed prolog holds, each on its own."""
        for other in self._client.jobs():
            if other.het_job_id != fresh.het_job_id or other.job_id == fresh.job_id:
                continue
            if other.state != "PENDING" or other.completing:
                continue
            held = other.held_by_failed_launch and step.kind is StepKind.RELEASE
            if step.start_now and (other.priority or held):
                self._client.update_job(other, StartTime=_begin(step))
            if held:
                self._client.release(other)

    def _fields(self, fresh: Job, attempt: Attempt, verdict: Verdict, step: Step, limits: Limits) -> dict[str, str]:
        restart = limits.past.restarts + 1
        own = limits.past.own + (verdict.cause is not Cause.INFRASTRUCTURE)
        bad = hostlist.fold(sorted(verdict.bad))
        why = next(iter(verdict.bad.values()), verdict.text)
        if why.startswith("ais:"):
            check = why.split(" ", 1)[0].partition(":")[2]
        else:
            check = "node_fail" if verdict.cause is Cause.INFRASTRUCTURE else verdict.cause.value
        words = re.sub(r" \[[0-9a-f]{6}\]$", "", why)  # the id of a drain reason tells a user nothing
        away = f" away from {bad}" if bad else ""
        later = f", not before {math.ceil(step.delay_s)} s from now" if step.start_now and step.delay_s else ""
        tag = {
            "attempt": str(restart),
            "act": step.kind.value,
            "why": f"{check}@{bad}" if bad else check,
            "last": _LAST.get(verdict.cause, "unknown"),
            "own": str(own),
            "did": str(attempt.start_time),
            "idle": str(limits.progress.idle),
        }
        if limits.progress.counted >= 0:
            tag["ran"] = str(limits.progress.counted)
        if limits.progress.step is not None:
            tag["step"] = str(limits.progress.step)
        wait_s = _switch_wait_s(fresh)
        if wait_s:
            tag["swait"] = str(wait_s)
        fields = {
            "AdminComment": tags.tag_with(fresh.admin_comment, tag),
            "Comment": tags.comment_with(fresh.comment, f"restart {restart}{away}{later}: {words}"),
        }
        if step.start_now:
            fields["StartTime"] = _begin(step)
        if wait_s:
            fields["Switches"] = self._switches(fresh, wait_s, attempt, limits)
        if set(step.exclude) != set(fresh.excluded_nodes):
            fields["ExcNodeList"] = hostlist.fold(step.exclude)
        return fields

    def _switches(self, fresh: Job, wait_s: int, attempt: Attempt, limits: Limits) -> str:
        """``--switches=N@wait`` again: Slurm counts the wait from the job's very first try and never anew (job_test.c), so
        that a job that ran for a while would not wait at all. Slurm cuts it at SchedulerParameters=max_switch_wait.
        """
        waits_of_before = [time for time in (fresh.submit_time, limits.past.first_start, attempt.start_time) if time]
        elapsed = max(self._clock.now() - min(waits_of_before), 0.0)
        minutes, seconds = divmod(round(elapsed) + wait_s, 60)
        return f"{fresh.required_switches}@{minutes}:{seconds:02d}"


def _switch_wait_s(job: Job) -> int:
    """What the job asked for at first; the present value already holds what an earlier restart has added."""
    told = tags.read_tag(job.admin_comment).get("swait", "")
    return int(told) if told.isdecimal() and len(told) < 8 else (job.switch_wait_s if job.required_switches else 0)


def _begin(step: Step) -> str:
    """``StartTime=``; a delay is Slurm's to keep, so it is seen in squeue and outlives the watchdog."""
    return f"now+{math.ceil(step.delay_s)}" if step.delay_s else "now"
