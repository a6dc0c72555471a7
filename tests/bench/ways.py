"""The ways in which a job comes back, and the faults: what ``recovery`` measures against each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from tests.cluster import Cluster, gpu_lost
from tests.cluster.namespaces import ClusterError

__all__ = ["DIES", "HANGS", "SILENT", "TRAPS", "Way", "all_ways", "break_node"]

HANGS, DIES, SILENT, TRAPS = "GPU lost, rank hangs", "GPU lost, rank dies", "power cut", "GPU lost, SIGTERM trapped"
Repair = Callable[[Cluster, int, str], None]


@dataclass(frozen=True)
class Way:
    """One row. faults: taken in turn. full: the cluster has a backlog of another user. default: stock Slurm as it comes."""

    name: str
    faults: tuple[str, ...]
    rounds: int
    aistation: bool = False
    full: bool = False
    default: bool = False
    repair: Optional[Repair] = None


def break_node(cluster: Cluster, fault: str, node: str, rank_pid: int) -> None:
    """rank_pid: the job's task on the node, a process number of that node."""
    if fault == SILENT:
        cluster.kill_node(node)
        return
    cluster.inject(node, gpu_lost(3))
    if fault == DIES:
        cluster.run(["kill", "-ABRT", str(rank_pid)], host=node, check=False)


def requeue_at_once(cluster: Cluster, job_id: int, node: str) -> None:
    """An administrator's script that knows of the fault in the same instant: drain and requeue."""
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=gpu lost"])
    cluster.run(["scontrol", "requeue", str(job_id)], check=False)


def requeue_and_start_now(cluster: Cluster, job_id: int, node: str) -> None:
    """The same, and StartTime=now as soon as Slurm takes it."""
    requeue_at_once(cluster, job_id, node)
    start_now(cluster, job_id, node)


def start_now(cluster: Cluster, job_id: int, node: str, patience_s: float = 120) -> None:
    """StartTime=now once the job waits in the queue again, whoever put it there."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        job = cluster.show_job(job_id)
        if job["JobState"] == "PENDING" and job["Restarts"] != "0":
            cluster.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
            return
        time.sleep(0.1)
    raise ClusterError(f"job {job_id} was not requeued within {patience_s:g} s")


def all_ways(rounds: int, best: int, stock: int, silent: int, only: str = "") -> list[Way]:
    """rounds: AIStation with a GPU fault. best: stock with StartTime=now. stock: two minutes each. silent: power cuts.

    only: those whose name has this.
    """
    gpu = (HANGS, DIES)
    ways = [
        Way("AIStation, idle", gpu, rounds, aistation=True),
        Way("AIStation, full", (HANGS,), rounds, aistation=True, full=True),
        Way("AIStation, SIGTERM trapped", (TRAPS,), silent, aistation=True),
        Way("AIStation, silent node", (SILENT,), silent, aistation=True),
        Way("stock best, idle: script, StartTime=now", (HANGS,), best, repair=requeue_and_start_now),
        Way("stock best, full: script, StartTime=now", (HANGS,), best, full=True, repair=requeue_and_start_now),
        Way("stock best, silent: script, StartTime=now", (SILENT,), stock, repair=start_now),
        Way("stock default, idle: nobody acts", gpu, stock, default=True),
        Way("stock default, idle: script requeues", (HANGS,), stock, default=True, repair=requeue_at_once),
        Way("stock default, full: script requeues", (HANGS,), stock, full=True, default=True, repair=requeue_at_once),
        Way("stock default, silent node", (SILENT,), stock, default=True),
    ]
    return [way for way in ways if way.rounds and only in way.name]
