"""The torture itself: rounds of trouble, looks at everything twice a second, repairs, and the end."""

from __future__ import annotations

import heapq
import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Optional

from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.gres import gpu_count
from tests.cluster import ClusterError, slurm_view
from tests.cluster.torture import workload
from tests.cluster.torture.history import OVER, Deed, History, Watched
from tests.cluster.torture.judgement import Violation, judge_admin, judge_drain, judge_job
from tests.cluster.torture.operator import Operator
from tests.cluster.torture.report import tell
from tests.cluster.torture.site import Site
from tests.cluster.torture.troubles import TROUBLES

LOOK_S = 0.5
ACTIVE_JOBS = 5
ROUND_S = (2.0, 9.0)
SETTLED_S = 75.0
"""A failure may be found to be a node's fault up to a minute later."""
NOT_SPED_UP_S = 20.0
"""A job that waits longer for its begin time than this was left to Slurm: watchdog's death and full disks end sooner."""
LEAKED_S = 15.0
"""An idle node has GPUs in use for longer than this: slurmctld has lost count of them."""
LAUNCH_S = 25.0
"""A script starts at most this long after the allocation; the wait for slurmctld's return included."""
END_S = 240.0
"""For everything to come to rest, Slurm's own 121 s delay of a requeued job included; from the latest begin time on."""
END_MOST_S = 1500.0
"""Whatever the begin times say."""


@dataclass(frozen=True)
class Found:
    """A violation with where in the run it was seen, and everything that tells of it."""

    round: int
    time: float
    violation: Violation
    story: str


class Campaign:
    """One run. ``say`` gets a line for each thing that is done; ``progress`` the number of rounds that are over.

    patient: at the end Slurm's own delay of 121 s is waited for; else the jobs' users end it. ``delayed`` are the opted-in
    jobs that met it without having asked for it: not lost, but not sped up either.
    """

    def __init__(
        self,
        site: Site,
        rounds: int,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
        progress: Callable[[int], None] = lambda _: None,
        patient: bool = True,
    ) -> None:
        self.site, self.rounds, self.seed, self._patient = site, rounds, seed, patient
        self.delayed: set[int] = set()
        self._say, self._progress = say, progress
        self.history = History()
        self.operator = Operator(site, self.history, say)
        self.round = 0
        self.found: list[Found] = []
        self.watchdog_wanted = True
        self.watchdog_lives = 1
        self._schedule: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._log_read = 0
        self._nodes: dict[str, dict[str, Any]] = {}
        self._told: set[tuple[str, int, str]] = set()
        self._admin_since: dict[str, float] = {}
        self._ending_since = 0.0
        self._waiting: dict[int, float] = {}
        self._leaking: dict[str, float] = {}
        self._fuses: list[int] = []
        self._fuse_deed: Optional[Deed] = None
        self._watchdog_back = 0.0
        self._watchdog_deed: Optional[Deed] = None

    # ---- the run --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        workload.prepare(self.site)
        try:
            for number in range(1, self.rounds + 1):
                self.round = self.operator.round = number
                rng = Random(f"{self.seed}/{number}")
                self._feed(rng)
                self._trouble(rng)
                if rng.random() < 0.4:
                    self._trouble(rng)
                self._watch(rng.uniform(*ROUND_S))
                self._progress(number)
            self._end()
        finally:
            self.operator.close()

    def _feed(self, rng: Random) -> None:
        active = sum(1 for job in self.history.jobs.values() if job.state not in OVER)
        plans = [workload.draw(rng, self.site.gpus) for _ in range(ACTIVE_JOBS)]
        for plan in plans[: max(0, ACTIVE_JOBS - active)] if self.site.controller_up else []:
            try:
                job_id = workload.submit(self.site, plan, len(self.history.jobs) + 1)
            except (ClusterError, subprocess.TimeoutExpired):
                continue
            self.history.jobs[job_id] = Watched(job_id, plan, self.round)

    def _trouble(self, rng: Random) -> None:
        """One trouble; another kind where that one has no victim now."""
        for _ in range(6):
            (trouble,) = rng.choices(TROUBLES, weights=[t.weight for t in TROUBLES])
            if trouble.apply(self, rng):
                return

    def _watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(LOOK_S)

    def _end(self) -> None:
        """Undo everything, let the jobs come to rest, judge them."""
        self._say("all rounds done: waiting for repairs and jobs")
        self._ending_since = rested = time.time()
        while time.time() < min(rested + END_S, self._ending_since + END_MOST_S):
            self.look()
            # nobody is lost who is told when to begin: the back-off after quick failures is longer than END_S
            begins = (job.begins for job in self.history.jobs.values() if job.state == "PENDING")
            rested = max([rested, *begins])
            if not (self._schedule or self.operator.care or self._fuses) and self._at_rest():
                break
            time.sleep(LOOK_S)
        for job in self.history.jobs.values():
            if not job.judged:
                self._judge(job)

    def _at_rest(self) -> bool:
        """Every opted-in job is over, failures for long enough; the others wait for Slurm alone and are cancelled."""
        resting = True
        now = time.time()
        for job in self.history.jobs.values():
            if not job.plan.opted_in and job.state == "PENDING" and job.row.get("state_reason") != "None":
                job.cancelled_by_us = True
                self.site.try_run("scancel", str(job.job_id))
            elif not self._patient and now > self._ending_since + NOT_SPED_UP_S:
                self.start_now(job)  # where it waits for its begin time
            if job.state not in OVER:
                resting = resting and self._held_for_good(job)
            elif job.state != "COMPLETED" and job.over_since is not None and now < job.over_since + 15:
                resting = False
        return resting

    @staticmethod
    def _held_for_good(job: Watched) -> bool:
        """At its limit, in our own words."""
        return job.state == "PENDING" and "restart limit" in str(job.row.get("comment") or "")

    # ---- looking --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Do what is due, then look at daemons, jobs and nodes."""
        while self._schedule and self._schedule[0][0] <= time.monotonic():
            heapq.heappop(self._schedule)[2]()
        self._mind_watchdog()
        self._nodes = {}
        if self.site.controller_up:
            done, text = self.site.try_run("squeue", "--json", "--states=all", timeout=20)
            if done:
                self._see_jobs(json.loads(text)["jobs"])
            done, text = self.site.try_run("sinfo", "--json", timeout=20)
            if done:
                self._nodes = {node["name"]: node for node in slurm_view.parse_nodes(text)}
        self._read_controller_log()
        self._see_nodes()
        self._mind_gpus()
        self.operator.work(self._nodes)
        now = time.time()
        for job in self.history.jobs.values():
            if not job.judged and job.over_since is not None and now > job.over_since + SETTLED_S:
                self._judge(job)

    def _see_jobs(self, rows: list[dict[str, Any]]) -> None:
        now = time.time()
        for row in rows:
            if row["job_id"] in self.history.jobs:
                self.history.jobs[row["job_id"]].see(row, now)
                self._mind_launch(self.history.jobs[row["job_id"]])
                self._mind_delay(self.history.jobs[row["job_id"]], now)

    def _mind_launch(self, job: Watched) -> None:
        """Requeue, as an administrator would, what Slurm itself forgot to launch.

        Where 22.05's slurmctld is restarted in the second in which a job's prologs end, it waits for ever for their end: the
        job is RUNNING, and its script is never started.
        """
        attempts = self.history.attempts_of(job.job_id)
        if job.state != "RUNNING" or not attempts or time.time() < attempts[-1].began + LAUNCH_S:
            return
        ledger = workload.read_ledger(self.site, job.job_id)
        if any(line.time >= attempts[-1].began - 1 for line in ledger):
            return
        if self.site.try_run("scontrol", "requeue", str(job.job_id))[0]:
            self.do(Deed(self.round, time.time(), "never launched", job=job.job_id)).until = time.time()
            for wait in (4.0, 9.0):
                self.later(wait, lambda: self.start_now(job))

    def _mind_delay(self, job: Watched, now: float) -> None:
        """Count the jobs that the watchdog leaves to Slurm's own delay."""
        if job.state != "PENDING" or job.row.get("state_reason") != "BeginTime" or not job.plan.opted_in:
            self._waiting.pop(job.job_id, None)
        elif now > self._waiting.setdefault(job.job_id, now) + NOT_SPED_UP_S:
            mine = [d for d in self.history.deeds if d.job == job.job_id and d.kind in ("requeue", "never launched")]
            if not mine:
                self.delayed.add(job.job_id)

    def _mind_gpus(self) -> None:
        """Restart slurmctld, as an administrator would, where it lost count of an idle node's GPUs (docs/recovery.md)."""
        now = time.time()
        for name, node in self._nodes.items():
            idle = node["state"] == "IDLE" and "COMPLETING" not in node["flags"]
            if not idle or not gpu_count(str(node.get("gres_used") or "")):
                self._leaking.pop(name, None)
            elif now > self._leaking.setdefault(name, now) + LEAKED_S:
                deed = self.do(Deed(self.round, now, "GPUs never given back", name, harmless=True))
                self.site.stop_slurmctld(signal.SIGTERM)
                self.restart_slurmctld(deed)
                self._leaking.clear()
                return

    def _read_controller_log(self) -> None:
        text = self.site.logs("slurmctld")[self._log_read :]
        whole = text.rfind("\n") + 1
        self._log_read += whole
        self.history.read_log(text[:whole].splitlines(), time.time())

    def _see_nodes(self) -> None:
        now = time.time()
        for name, node in self._nodes.items():
            violation = judge_drain(node, self.history.deeds, now)
            if violation is not None:
                self.report(violation)
            reason = self.operator.admin.get(name)
            if reason is not None and name not in self.operator.care:
                violation = judge_admin(node, reason)
                if violation is not None:
                    self.report(violation)

    def _judge(self, job: Watched) -> None:
        job.judged = True
        done, text = self.site.try_run("aistation", "explain", str(job.job_id), "--json")
        story = json.loads(text) if done else None
        for violation in judge_job(job, self.history, workload.read_ledger(self.site, job.job_id), story):
            self.report(violation)

    def report(self, violation: Violation) -> None:
        """Once each."""
        key = (violation.kind, violation.job, violation.node + (violation.text if violation.node else ""))
        if key not in self._told:
            self._told.add(key)
            self.found.append(Found(self.round, time.time(), violation, tell(self, violation)))
            self._say(f"VIOLATION {violation.kind}: job {violation.job} {violation.node} {violation.text}")

    # ---- the watchdog's deaths --------------------------------------------------------------------------------------

    def _mind_watchdog(self) -> None:
        """As a service manager does: start it again a while after its end. An end of its own needs a reason."""
        code = self.site.ended("watchdog")
        if code is None:
            if not self._fuses and self._fuse_deed is not None and self._fuse_deed.until is None:
                self.site.set_fuse(0)
                self._fuse_deed.until = time.time()
            return
        if self.watchdog_wanted:  # it has just ended
            self.watchdog_wanted = False
            self._watchdog_back = time.monotonic() + 0.2
            if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):
                self._watchdog_back = time.monotonic() + 1.0
                excused = [d.kind for d in self.history.open() if d.kind in ("journal disk full", "slurmctld away")]
                if not excused:
                    self.report(Violation("daemon", f"the watchdog ended by itself with code {code}"))
        if time.monotonic() >= self._watchdog_back:
            if self._watchdog_deed is not None:
                self._watchdog_deed.until, self._watchdog_deed = time.time(), None
            self.site.set_fuse(self._fuses.pop(0) if self._fuses else 0)
            self.site.start_watchdog()
            self.watchdog_wanted = True
            self.watchdog_lives += 1

    def stay_dead(self, deed: Deed, seconds: float) -> None:
        """The watchdog has just been killed."""
        self.watchdog_wanted = False
        self._watchdog_deed = deed
        self._watchdog_back = time.monotonic() + seconds

    def burn(self, deed: Deed, calls: list[int]) -> None:
        if self._fuse_deed is not None and self._fuse_deed.until is None:
            self._fuse_deed.until = time.time()
        self._fuse_deed = deed
        self.site.set_fuse(calls[0])
        self._fuses = calls[1:]

    # ---- what troubles do and undo ----------------------------------------------------------------------------------

    def do(self, deed: Deed) -> Deed:
        self._say(str(deed).removesuffix(" (lasts)"))
        return self.history.do(deed)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._schedule, (time.monotonic() + seconds, self._numbers, action))

    def busy_nodes(self) -> set[str]:
        running = [job for job in self.history.jobs.values() if job.state == "RUNNING"]
        return {name for job in running for name in hostlist.expand(str(job.row.get("nodes") or ""))}

    def some_job(self, rng: Random, *states: str) -> Optional[Watched]:
        if not self.site.controller_up:
            return None
        jobs = [job for job in self.history.jobs.values() if job.state in states]
        return rng.choice(jobs) if jobs else None

    def restart_agent(self, node: str, deed: Deed) -> None:
        deed.until = time.time()
        if self.site.is_on(node) and node not in self.operator.care and not self.site.agent_runs(node):
            self.site.start_agent(node)

    def restart_slurmctld(self, deed: Deed) -> None:
        self.site.start_slurmctld()
        deed.until = time.time()

    def end_admin_drain(self, node: str, deed: Deed) -> None:
        """Give the node back, unless it is under repair: then the operator does."""
        if not self.site.controller_up:
            self.later(2.0, lambda: self.end_admin_drain(node, deed))
            return
        if node not in self.operator.care:
            done, _ = self.site.try_run("scontrol", "update", f"NodeName={node}", "State=RESUME")
            if not done and not self._is_given_back(node):
                self.later(2.0, lambda: self.end_admin_drain(node, deed))
                return
        del self.operator.admin[node]
        deed.until = time.time()

    def _is_given_back(self, node: str) -> bool:
        """22.05 refuses RESUME of a node that has not registered since slurmctld's start, and clears the drain all the same."""
        done, text = self.site.try_run("scontrol", "show", "node", node)
        return done and "DRAIN" not in text.partition("State=")[2].split(" ")[0]

    def start_now(self, job: Watched) -> None:
        if job.state == "PENDING" and job.row.get("state_reason") == "BeginTime":
            self.site.try_run("scontrol", "update", f"JobId={job.job_id}", "StartTime=now", user=job.plan.user)

    def release(self, job: Watched, deed: Deed) -> None:
        """Until Slurm has heard it."""
        done, text = self.site.try_run("scontrol", "release", str(job.job_id), user=job.plan.user)
        if done or "nvalid" in text or "already" in text.lower():
            deed.until = time.time()
        else:
            self.later(2.0, lambda: self.release(job, deed))
