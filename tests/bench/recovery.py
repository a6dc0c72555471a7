"""From a fault to the job running again: AIStation against stock Slurm, on idle and on full clusters, in one run.

Stock Slurm by default has nobody who notices a lost GPU. Its best is a script that knows of the fault in the same instant
(no detection time is counted), drains, requeues and sets StartTime=now: the most that 22.05 offers.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tests.bench import recovery_report, timeline
from tests.bench.timeline import Recovery
from tests.bench.ways import SILENT, TRAPS, Way, break_node
from tests.cluster import Cluster
from tests.cluster.namespaces import ClusterError
from tests.cluster.slurm_conf import DEFAULTS

__all__ = ["measure"]

SCRIPT = """#!/bin/bash
echo "$SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $(date +%s.%N) $SLURM_JOB_NODELIST" >>/shared/alice/starts
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exec srun sleep 5
exec srun --kill-on-bad-exit=1 bash -c 'TRAP
echo $$ >/shared/alice/rank.$SLURM_JOB_ID.$SLURMD_NODENAME; exec sleep 3600'
"""
NODES = 4
BACKLOG = 5 * NODES
BELOW_BACKLOG = 200
"""``--nice`` of AIStation's job on the full cluster: all of the backlog is before it. Stock's job stays above it."""
SETTLE_S = (2.0, 4.0)
"""The job has run this long at the fault, so that no round begins at the same point of a daemon's poll."""
TOGETHER = 2
"""Clusters of stock Slurm by default that wait their two minutes beside the others."""

CHANCES = 3
"""For a job to start before its round; each that does not is printed."""


def measure(console: Console, ways: Sequence[Way], patience_s: float, to: Optional[Path] = None) -> None:
    """Prints the tables; ``to``: every round's timeline and the figures as JSON."""
    found: list[Recovery] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(TOGETHER) as pool:
        stop = threading.Event()
        bars = {way.name: progress.add_task(way.name, total=way.rounds, start=False) for way in ways}
        slow = [
            pool.submit(_collect, way, patience_s, progress, bars[way.name], stop, found) for way in ways if way.default
        ]
        try:
            for way in ways:
                if not way.default:
                    _collect(way, patience_s, progress, bars[way.name], stop, found)
            for future in slow:
                future.result()
        finally:
            stop.set()
            progress.stop()
            # also where a round broke off: what was measured is not lost
            if found:
                recovery_report.show(console, ways, found, patience_s, _waits())
            if to is not None:
                report = recovery_report.as_json(ways, found, patience_s, _waits())
                to.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _waits() -> dict[str, float]:
    """Settings of the test cluster that bound the figures, in seconds."""
    return {key: float(DEFAULTS[key]) for key in ("SlurmdTimeout", "KillWait")}


def _collect(
    way: Way, patience_s: float, progress: Progress, bar: TaskID, stop: threading.Event, found: list[Recovery]
) -> None:
    progress.start_task(bar)
    settle = random.Random(way.name)
    with Cluster(nodes=NODES, aistation=way.aistation) as cluster:
        for number in range(way.rounds):
            if stop.is_set():
                return
            fault = way.faults[number % len(way.faults)]
            for chance in range(CHANCES):
                one = _Round(cluster, way, fault, settle.uniform(*SETTLE_S))
                try:
                    one.set_up()
                    break
                except ClusterError as exc:
                    progress.console.print(
                        f"{way.name}: a round could not be set up: {exc}", highlight=False, markup=False
                    )
                    if chance == CHANCES - 1:
                        raise
                    one.clean()
            found.append(one.run(patience_s))
            progress.advance(bar)


class _Round:
    """One job, one fault, one restart."""

    def __init__(self, cluster: Cluster, way: Way, fault: str, settle_s: float) -> None:
        self.cluster, self.way, self.fault, self.settle_s = cluster, way, fault, settle_s
        self.shared = cluster.dir / "shared/alice"
        self.victim = ""
        self.job_id, self.read, self.refilled = 0, 0, set[int]()

    def set_up(self) -> None:
        """A job that runs its ranks, and the backlog. Raises ClusterError."""
        self.victim = self._start_job()[-1]
        if self.way.full:
            self._fill()
        self._wait(self._rank().exists, 30, "the ranks to run")
        until = time.monotonic() + self.settle_s
        while time.monotonic() < until:
            self._refill()
            time.sleep(0.1)

    def run(self, patience_s: float) -> Recovery:
        """The fault and what becomes of it. Raises ClusterError where the cluster does not come to rest after it."""
        victim, rank = self.victim, int(self._rank().read_text(encoding="ascii"))
        self.read = len(self.cluster.logs("slurmctld"))
        self.refilled.clear()
        began = time.time()
        break_node(self.cluster, self.fault, victim, rank)
        if self.way.repair is not None:
            self.way.repair(self.cluster, self.job_id, victim)
        try:
            self._wait(lambda: len(self._starts()) > 1, patience_s, "the restart")
        except ClusterError:
            pass
        result = self._result(began, victim)
        self.clean()
        return result

    def _start_job(self) -> list[str]:
        options = ["--nodes=2", "--gpus-per-node=8"] + (["--ais-resume"] if self.way.aistation else [])
        if self.way.full and self.way.aistation:
            options.append(f"--nice={BELOW_BACKLOG}")
        trap = 'trap "" TERM' if self.fault == TRAPS else ""
        self.job_id = self.cluster.submit(SCRIPT.replace("TRAP", trap), *options, user="alice")
        self.read = len(self.cluster.logs("slurmctld"))
        self._wait(lambda: bool(self._starts()), 60, "the job to start")
        return self.cluster.expand(self._starts()[0][1])

    def _starts(self) -> list[tuple[float, str]]:
        """(unix time, nodes) of each attempt's first command."""
        path = self.shared / "starts"
        rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()] if path.exists() else []
        return [(float(row[2]), row[3]) for row in rows if len(row) == 4 and row[0] == str(self.job_id)]

    def _rank(self) -> Path:
        return self.shared / f"rank.{self.job_id}.{self.victim}"

    def _log(self) -> list[timeline.Line]:
        return timeline.read_log(self.cluster.logs("slurmctld")[self.read :])

    # ---- the backlog

    def _fill(self) -> None:
        jobs = [self._submit_backlog(index) for index in range(BACKLOG)]
        for first in jobs[: NODES - 2]:
            self.cluster.wait_job(first, "RUNNING", timeout=60)

    def _submit_backlog(self, index: int) -> int:
        seconds = 8 + 3 * (index % 3)
        return self.cluster.submit(f"sleep {seconds}", "--gpus-per-node=8", "--time=3", user="bob")

    def _refill(self) -> None:
        """A new job for each that has ended: the backlog keeps its length however long the round takes."""
        if not self.way.full:
            return
        for job_id in timeline.ended_jobs(self._log()) - self.refilled - {self.job_id}:
            self.refilled.add(job_id)
            self._submit_backlog(job_id)

    # ---- the end

    def _wait(self, reached: Callable[[], bool], timeout_s: float, what: str) -> None:
        def look() -> bool:
            self._refill()
            return reached()

        try:
            self.cluster.wait_for(look, timeout_s, what)
        except ClusterError as exc:
            job = self.cluster.show_job(self.job_id)
            seen = {
                key: job.get(key) for key in ("JobState", "Reason", "Restarts", "NodeList", "ExitCode", "AdminComment")
            }
            out = self.shared / f"slurm-{self.job_id}.out"
            said = out.read_text(encoding="utf-8", errors="replace")[-500:] if out.exists() else ""
            words = f"job {self.job_id} is {seen}, its starts are {self._starts()}, its output ends {said!r}"
            raise ClusterError(f"{exc}: {words}") from None

    def _result(self, began: float, victim: str) -> Recovery:
        marks, overtook, freed = timeline.slurm_marks(self._log(), self.job_id, victim)
        starts = self._starts()
        if len(starts) > 1:
            again, nodes = starts[1]
            marks["script"] = again
            assert victim not in self.cluster.expand(nodes), f"job {self.job_id} is back on {victim}"
        if self.way.aistation and self.fault != SILENT:
            seen = timeline.agent_detected(self.cluster.logs(f"agent.{victim}"), began)
            if seen is not None:
                marks["detected"] = seen
        after = marks["running"] - freed if freed is not None and "running" in marks else None
        seconds = {step: marks[step] - began for step in timeline.STEPS if step in marks}
        return Recovery(self.way.name, self.fault, seconds, overtook, after)

    def clean(self) -> None:
        """What AIStation keeps for a restarted job it gives back by itself; the next round begins with none of it."""
        self.cluster.run(["scancel", "--user=bob"], check=False)
        self.cluster.reset()
        for path in self.shared.glob("rank.*"):
            path.unlink()
        if self.way.full and self.way.aistation:
            self.cluster.wait_for(self._nothing_kept, 90, "kept nodes to be given back", interval=0.5)

    def _nothing_kept(self) -> bool:
        return "No reservations" in self.cluster.run(["scontrol", "show", "reservation"]).stdout
