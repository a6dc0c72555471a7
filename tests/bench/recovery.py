"""From a GPU that falls off the bus to the job running again: AIStation against stock Slurm on the same cluster.

Stock Slurm has nobody who notices: the job is observed for a while and then counted as "never". "Configured best" gives
it an administrator who sees the fault at once and whose script drains the node and requeues the job; the second form of
that script also sets StartTime=now, which is the most that Slurm 22.05 offers by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Optional

from rich.console import Console
from rich.table import Table

from tests.bench.samples import Sample
from tests.cluster import Cluster, gpu_lost

SCRIPT = """#!/bin/bash
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exec srun sleep 5
exec srun sleep 3600
"""


def one_round(
    cluster: Cluster, repair: Optional[Callable[[Cluster, int, str], None]], patience_s: float
) -> Optional[float]:
    """Seconds from the fault to RUNNING elsewhere; None when the job is not back after ``patience_s``."""
    options = ["--nodes=2", "--gpus-per-node=8"] + (["--ais-resume"] if cluster.aistation else [])
    job_id = cluster.submit(SCRIPT, *options, user="alice")
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    time.sleep(2)
    victim = cluster.expand(cluster.show_job(job_id)["NodeList"])[-1]
    fault = time.monotonic()
    cluster.inject(victim, gpu_lost(3))
    if repair is not None:
        repair(cluster, job_id, victim)
    found: Optional[float] = None
    while time.monotonic() - fault < patience_s:
        job = cluster.show_job(job_id)
        if job["JobState"] == "RUNNING" and job["Restarts"] != "0":
            found = time.monotonic() - fault
            assert victim not in cluster.expand(job["NodeList"])
            break
        time.sleep(0.05)
    cluster.reset()
    return found


def script_requeue(cluster: Cluster, job_id: int, node: str) -> None:
    """The administrator's script: drain and requeue at once."""
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=gpu lost"])
    cluster.run(["scontrol", "requeue", str(job_id)])


def script_start_now(cluster: Cluster, job_id: int, node: str) -> None:
    """The same, and StartTime=now as soon as Slurm takes it."""
    script_requeue(cluster, job_id, node)
    cluster.wait_for(lambda: cluster.show_job(job_id)["JobState"] == "PENDING", 60, "job pending")
    cluster.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])


def measure(console: Console, rounds: int, stock_rounds: int, patience_s: float) -> None:
    """Prints one table; the medians' ratio is against the best that stock Slurm does by itself."""
    samples: list[tuple[Sample, int]] = []

    def collect(name: str, aistation: bool, count: int, repair: Optional[Callable[[Cluster, int, str], None]]) -> None:
        found: list[float] = []
        with Cluster(nodes=4, aistation=aistation) as cluster:
            for number in range(count):
                with console.status(f"{name}: round {number + 1} of {count}"):
                    took = one_round(cluster, repair, patience_s)
                if took is not None:
                    found.append(took)
        samples.append((Sample(name, tuple(found)), count - len(found)))

    collect("AIStation", True, rounds, None)
    collect("stock, nobody at the keyboard", False, 1, None)
    collect("stock best: script drains, requeues", False, stock_rounds, script_requeue)
    collect("the same, script sets StartTime=now", False, rounds, script_start_now)
    table = Table(
        "how", "n", "median", "p25 .. p75", "p95", f"not back in {patience_s:.0f} s", title="GPU lost to running again"
    )
    for sample, never in samples:
        cells = sample.row() if sample.seconds else [sample.name, "0", "never", "", ""]
        table.add_row(*cells, str(never))
    console.print(table)
    ours, best = samples[0][0], samples[2][0]
    if ours.seconds and best.seconds:
        console.print(f"stock best / AIStation = {best.median / ours.median:.1f}")
