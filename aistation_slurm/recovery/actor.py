"""Carries out one step on Slurm. Every change is preceded by a fresh look at the very attempt that was judged."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Optional

from aistation_slurm.errors import SlurmRefused
from aistation_slurm.recovery.attribution import Attempt, Verdict
from aistation_slurm.recovery.clock import Clock
from aistation_slurm.recovery.policy import Limits, Step, StepKind
from aistation_slurm.slurm import hostlist, tags
from aistation_slurm.slurm.client import Job, SlurmClient

__all__ = ["Actor", "Outcome"]

STALE_LOOK_S = 2.0
"""A requeue is not sent when the look that allowed it took longer: it could meet the next attempt."""
_ALREADY = ("pending execution", "already")


@dataclass(frozen=True)
class Outcome:
    """text begins with done, left, gone or late. state: the attempt's new state, empty where it keeps the old one."""

    text: str
    state: str = ""
    notes: tuple[str, ...] = ()


class Actor:
    """Raises SlurmUnavailable (it is not known whether the change was made) and SlurmRefused (it was not)."""

    def __init__(self, client: SlurmClient, clock: Clock) -> None:
        self._client, self._clock = client, clock

    def apply(self, job: Job, attempt: Attempt, verdict: Verdict, step: Step, limits: Limits) -> Outcome:
        """``job`` as it was judged. At most one look and two changes."""
        asked = self._clock.monotonic()
        fresh = self._client.job(job.job_id)
        if fresh is None:
            return Outcome("gone: Slurm no longer has the job", "done")
        if step.kind is StepKind.REQUEUE:
            return self._requeue(fresh, job, self._clock.monotonic() - asked)
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
        return self._start(fresh, verdict, step, limits)

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
        if look_s > STALE_LOOK_S:
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

    def _start(self, fresh: Job, verdict: Verdict, step: Step, limits: Limits) -> Outcome:
        """Keep the job away from the bad nodes, say why, and let it start: one request, then the release."""
        notes = (*step.notes, *self._update(fresh, self._fields(fresh, verdict, step, limits)))
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
        for without in ((), ("Comment",), ("ExcNodeList",), ("Comment", "ExcNodeList"), ("Comment", "AdminComment")):
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
                self._client.update_job(other, StartTime="now")
            if held:
                self._client.release(other)

    def _fields(self, fresh: Job, verdict: Verdict, step: Step, limits: Limits) -> dict[str, str]:
        restart = limits.restarts_done + 1
        bad = hostlist.fold(sorted(verdict.bad))
        why = next(iter(verdict.bad.values()), verdict.text)
        check = why.split(" ", 1)[0].partition(":")[2] if why.startswith("ais:") else "node_fail"
        words = re.sub(r" \[[0-9a-f]{6}\]$", "", why)  # the id of a drain reason tells a user nothing
        away = f" away from {bad}" if bad else ""
        fields = {
            "AdminComment": tags.tag_with(
                fresh.admin_comment,
                {"attempt": str(restart), "act": step.kind.value, "why": f"{check}@{bad}" if bad else check},
            ),
            "Comment": tags.comment_with(
                fresh.comment, f"restart {restart} of at most {limits.max_restarts}{away}: {words}"
            ),
        }
        if step.start_now:
            fields["StartTime"] = "now"
        if set(step.exclude) != set(fresh.excluded_nodes):
            fields["ExcNodeList"] = hostlist.fold(step.exclude)
        return fields
