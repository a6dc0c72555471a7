"""Hang detection on a job's first node: jobs that asked with ``--ais-hang-timeout`` and make no progress.

A thread of its own looks at their files every ``hang.poll_s`` seconds, since a file system that hangs must not delay the
agent. For a suspect it asks Slurm once more, keeps the stacks for the user, looks again, and only then hands the attempt
to the agent's loop, which requeues it (node/requeue.py: each attempt at most once, remembered over restarts).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.detectors.hang import Activity, HangLimits, Look, Verdict, Watch, activity, after, judge
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.node import jobs
from aistation_slurm.node.hang_job import Runner, WatchedJob, show_job
from aistation_slurm.node.hang_nodes import ask_others
from aistation_slurm.node.hang_processes import JobProcesses, job_processes
from aistation_slurm.node.hang_stacks import keep_stacks
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.requeue import Attempt, RequeuedAttempts, requeue_attempt
from aistation_slurm.probes.child import process_state
from aistation_slurm.probes.gpu_activity import GpuLoad, read_loads
from aistation_slurm.probes.host import boot_id
from aistation_slurm.probes.progress import read_written
from aistation_slurm.probes.user import Credentials, of_process
from aistation_slurm.slurm.client import SlurmClient
from aistation_slurm.slurm.command import run as run_command

__all__ = ["CHECK", "HangWatch"]

log = logging.getLogger(__name__)

CHECK = "job.hang"
"""How the requeue is noted for the watchdog: its own cause, no node's fault."""
RETRY_S = 5.0
MAX_OUTPUTS = 128
"""Processes whose stdout and stderr are looked at; those of the batch script come first."""
SCAN_SHARE = 20
"""A slow directory is looked at again only after this many times the seconds that the look took."""


@dataclass
class _Job:
    """One attempt under watch."""

    record: JobRecord
    shown: WatchedJob
    user: Credentials
    limits: HangLimits
    watch: Optional[Watch] = None
    next_at: float = 0.0
    blocked: tuple[int, int] = (0, 0)
    """pid and start of a child of ours that sits in state D in the job's file system; none is put beside it."""
    done: bool = False
    """Requeued, said in observe mode, or not to be judged: nothing more in this attempt."""
    said: set[str] = field(default_factory=set)

    @property
    def attempt(self) -> Attempt:
        return self.shown.job.job_id, self.shown.job.start_time or 0

    def say_once(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            log.warning("job %s: %s", self.shown.job.argument, text)


class HangWatch:
    """One per agent. ``start`` begins the thread; the agent's loop calls ``act`` now and then.

    minors_of: device minors of a job's GPUs on this node by its gate's record; empty where not known.
    """

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        minors_of: Callable[[JobRecord], frozenset[int]] = lambda _: frozenset(),
        monotonic: Callable[[], float] = time.monotonic,
        runner: Runner = run_command,
    ) -> None:
        self.config = config
        self.client = client
        self.minors_of = minors_of
        self.monotonic = monotonic
        self.runner = runner
        self.state_dir = config.node.state_dir
        self._jobs: dict[int, _Job] = {}
        self._ask_at: dict[int, float] = {}
        self._lock = threading.Lock()
        self._ready: dict[Attempt, _Job] = {}
        self._requeued: Optional[RequeuedAttempts] = None
        self._act_at = 0.0
        self._stop = threading.Event()

    def reconfigure(self, config: Config) -> None:
        """New settings, read at SIGHUP."""
        self.config = config

    @property
    def enforcing(self) -> bool:
        return (self.config.hang.mode or self.config.agent.mode or self.config.mode) == "enforce"

    def start(self) -> None:
        """Begin to look; ends with the process, or with :meth:`stop`."""
        threading.Thread(target=self._work, name="hang", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.wait(self.config.hang.poll_s):
            try:
                self.look()
            except Exception:
                # a bug in this watch must not end it for every later job
                log.exception("hang detection: internal error; going on")

    # ---- looking (the thread) ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """One look at every job that asked for it and whose batch step is here."""
        records = {job_id: r for job_id, r in jobs.read_all(self.state_dir).items() if r.hang and r.opted_in}
        if not records and not self._jobs:
            return
        running = job_processes() if records else {}
        here = {job_id: r for job_id, r in records.items() if job_id in running and running[job_id].batch}
        for job_id in [j for j, known in self._jobs.items() if j not in here or known.record.time != here[j].time]:
            self._withdraw(self._jobs.pop(job_id))
        self._ask_at = {job_id: at for job_id, at in self._ask_at.items() if job_id in here}
        for job_id, record in here.items():
            known = self._jobs.get(job_id) or self._begin(record, running[job_id])
            if known is not None and not known.done and self.monotonic() >= known.next_at:
                self._look_at(known, running[job_id])

    def _begin(self, record: JobRecord, processes: JobProcesses) -> Optional[_Job]:
        """Ask Slurm about a job that is new here; later again where it did not answer."""
        if self.monotonic() < self._ask_at.get(record.job_id, 0.0):
            return None
        user = next((c for c in (of_process(p.pid, record.uid) for p in processes.batch) if c is not None), None)
        if user is None:
            return None
        self._ask_at[record.job_id] = self.monotonic() + max(self.config.hang.poll_s, RETRY_S)
        try:
            shown = show_job(self.config.slurm, record.job_id, self.runner)
        except (SlurmUnavailable, SlurmRefused) as exc:
            log.warning("job %d: not watched for hangs yet: %s", record.job_id, exc)
            return None
        if shown is None or not shown.running:
            return None
        minutes = record.hang if shown.hang_min is None else shown.hang_min
        settings = self.config.hang
        limits = HangLimits(
            timeout_s=minutes * settings.minute_s,
            startup_grace_s=settings.startup_grace_s,
            checkpoint_allowance_s=settings.checkpoint_allowance_s,
            computing_allowance_s=settings.computing_allowance_s,
            spin_timeout_s=settings.spin_timeout_s,
            max_gap_s=2 * settings.poll_s,
        )
        known = _Job(record, shown, user, limits, done=minutes <= 0)
        self._jobs[record.job_id] = known
        if not known.done:
            log.info("job %s is watched for hangs: %g s without progress", shown.job.argument, limits.timeout_s)
        return known

    def _look_at(self, known: _Job, processes: JobProcesses) -> None:
        verdict = self._judge(known, processes)
        if verdict is None or not verdict.suspect:
            self._withdraw(known)
            return
        with self._lock:
            waiting = known.attempt in self._ready
        if waiting:
            return  # the agent's loop has it, and it is suspect still
        if not self.enforcing:
            known.say_once(f"observe mode: would requeue it as hung: {verdict.evidence}")
            known.done = True
            return
        self._suspect(known, processes, verdict)

    def _judge(self, known: _Job, processes: JobProcesses) -> Optional[Verdict]:
        """Take one look and judge. None where a child of ours is stuck in the job's file system."""
        if known.blocked[0]:
            state, ticks = process_state(known.blocked[0])
            if state == "D" and ticks == known.blocked[1]:
                return None
            known.blocked = (0, 0)
        began = self.monotonic()
        written, child = read_written(
            known.shown.outputs,
            known.record.ckpt_dir,
            known.user,
            self.config.hang.read_deadline_s,
            [process.pid for process in processes.all[:MAX_OUTPUTS]],
        )
        took = self.monotonic() - began
        known.next_at = self.monotonic() + SCAN_SHARE * took if took > 1.0 else 0.0
        if child.pid:
            known.blocked = (child.pid, child.start_ticks)
        if written.error:
            known.say_once(f"hangs cannot be judged while its files cannot be read: {written.error}")
        look = Look(self.monotonic(), written.output, written.checkpoint, processes.stopped, self._gpus(known))
        known.watch = after(known.watch, look, known.limits)
        return judge(known.watch, known.limits)

    def _loads(self, known: _Job) -> list[GpuLoad]:
        minors = self.minors_of(known.record)
        if not minors:
            return []
        found = read_loads(self.config.probe, Path(self.state_dir), boot_id())
        return [found[minor] for minor in sorted(minors) if minor in found]

    def _gpus(self, known: _Job) -> Activity:
        """Asked only where it matters: always for a spin timeout, else when the job's time is nearly over."""
        quiet = known.watch.quiet_s if known.watch else 0.0
        if known.limits.spin_timeout_s is None and quiet + 2 * self.config.hang.poll_s < known.limits.timeout_s:
            return ""
        return activity(self._loads(known), self.config.hang.spin_power_percent)

    # ---- a suspect --------------------------------------------------------------------------------------------------

    def _suspect(self, known: _Job, processes: JobProcesses, verdict: Verdict) -> None:
        """Ask Slurm once more, keep the stacks, look again, and hand the attempt over."""
        try:
            now = show_job(self.config.slurm, known.record.job_id, self.runner)
        except (SlurmUnavailable, SlurmRefused) as exc:
            known.say_once(f"seems to hang ({verdict.evidence}), but Slurm cannot be asked: {exc}")
            return
        if now is None or not now.runs_as(known.shown):
            return
        if self._requeued is not None and known.attempt in self._requeued:
            known.done = True  # by an agent before this one, or for a fault of this node
            return
        if now.hang_min == 0:
            known.say_once("its tag no longer asks for a hang timeout; left alone")
            known.done = True
            return
        log.warning("job %s seems to hang: %s", now.job.argument, verdict.evidence)
        heading = [
            f"AIStation: job {now.job.argument} made no progress and is requeued unless it goes on.",
            f"Time: {time.strftime('%Y-%m-%d %H:%M:%S %z')}. Attempt: {now.job.restart_cnt}. Node: {now.batch_host}.",
            f"Why: {verdict.evidence}.",
            *self._gpu_lines(known),
        ]
        name = f"aistation-hang-{known.record.job_id}-attempt{now.job.restart_cnt}"
        others = len(now.job.nodes) - 1
        settings, slurm = self.config.hang, self.config.slurm

        def elsewhere(seconds: float) -> str:
            return ask_others(slurm, settings, known.record.job_id, now.batch_host, others, seconds)

        ask = elsewhere if others > 0 and now.batch_host and settings.other_nodes else None
        kept = keep_stacks(settings, known.user, now.work_dir, name, heading, processes.all, ask)
        log.warning("job %s: stacks of its processes: %s %s", now.job.argument, kept.path or "none", kept.why)
        again = self._judge(known, processes)
        if again is None or not again.suspect:
            log.warning("job %s went on while its stacks were taken; left alone", now.job.argument)
            return
        with self._lock:
            self._ready[known.attempt] = known

    def _gpu_lines(self, known: _Job) -> list[str]:
        return [
            f"GPU load: {_number(g.utilisation_percent)} % busy, {_number(g.power_w)} W of {_number(g.limit_w)} W."
            for g in self._loads(known)
        ]

    def _withdraw(self, known: _Job) -> None:
        """It moves again, or has ended: what waits for the controller is called off."""
        with self._lock:
            if self._ready.pop(known.attempt, None) is not None:
                log.warning("job %s goes on, or has ended; not requeued", known.shown.job.argument)

    # ---- acting (the agent's loop) ----------------------------------------------------------------------------------

    def act(self, node: str, done: RequeuedAttempts) -> None:
        """Requeue what was found hung. Never raises for Slurm's sake; what could not be done is tried again."""
        self._requeued = done
        if not self._ready or self.monotonic() < self._act_at:
            return
        self._act_at = self.monotonic() + RETRY_S
        with self._lock:
            waiting = list(self._ready.items())
        for attempt, known in waiting:
            try:
                host = known.shown.batch_host or node  # this very node, in Slurm's words
                sent = requeue_attempt(self.client, known.shown.job, host, done, self.monotonic, note=CHECK)
            except (SlurmUnavailable, SlurmRefused) as exc:
                known.say_once(f"{exc}; its requeue is tried again")
            except OSError as exc:
                known.say_once(f"{self.state_dir}: {exc}; without its memory the agent requeues nothing")
            else:
                if sent or attempt in done:
                    known.done = True
                    with self._lock:
                        self._ready.pop(attempt, None)
                # else it has ended, which the next look sees, or the controller was too slow to act on its answer


def _number(value: Optional[float]) -> str:
    return "?" if value is None else f"{value:.0f}"
