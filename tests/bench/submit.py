"""What a submission costs with job_submit.lua against none, on the same slurmctld, in turns.

Two figures a turn: the wall time of sbatch as a user sees it, and slurmctld's own time for the request (sdiag). The table in
force is one of 16,384 nodes, and each job is placed by it.
"""

from __future__ import annotations

import re
import shutil
import statistics
import time
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from aistation_slurm.placement.table import PartitionRow, body, compact, render
from tests.cluster import Cluster, ClusterError

AIM = 1.02
SCRIPT = """
cd /tmp
printf '#!/bin/sh\\ntrue\\n' >job.sh
for i in $(seq {jobs}); do sbatch --parsable --hold --nodes=2 job.sh || echo lost; done >out 2>err
grep -c '^[0-9]' out
"""


class Turn(NamedTuple):
    """sbatch_ms, rpc_ms: means over the turn's jobs."""

    plugin: bool
    sbatch_ms: float
    rpc_ms: float


def measure(console: Console, rounds: int = 6, jobs: int = 150) -> None:
    """Boot a cluster, take turns, print the ratios of medians."""
    limits = [(nodes, -(-nodes // 16), 60 * (1 + nodes // 512)) for nodes in range(2, 16_385)]
    partition = PartitionRow("gpu", 16_384, 16_000, 8, (), compact(limits, 16))
    with Cluster(nodes=2, gpus=1, hcas=1) as cluster:
        cluster.stop_watchdog()
        table = cluster.disk("ctl") / "var/lib/aistation/decisions"
        table.write_text(render(body([partition]), int(time.time()), 604_800), encoding="utf-8")
        shutil.chown(table, "slurm")
        turns = [_turn(cluster, plugin, jobs) for _ in range(rounds) for plugin in (True, False)]
    _print(console, turns, jobs)


def _turn(cluster: Cluster, plugin: bool, jobs: int) -> Turn:
    conf = cluster.conf_dir / "slurm.conf"
    lines = [line for line in conf.read_text(encoding="utf-8").splitlines() if not line.startswith("JobSubmitPlugins")]
    conf.write_text("\n".join([*lines, *(["JobSubmitPlugins=lua"] if plugin else []), ""]), encoding="utf-8")
    cluster.run(["scontrol", "reconfigure"])
    probe = cluster.show_job(cluster.submit("true", "--hold", "--nodes=2"))
    if ("Switches" in probe) != plugin:
        raise ClusterError(f"slurmctld did not {'load' if plugin else 'unload'} the plugin: {probe.get('Switches')}")
    cluster.run(["sdiag", "--reset"])
    began = time.monotonic()
    taken = cluster.run(["sh", "-c", SCRIPT.format(jobs=jobs)], timeout=300).stdout.split()
    took_s = time.monotonic() - began
    if taken != [str(jobs)]:
        raise ClusterError(f"{taken} of {jobs} jobs were taken")
    shown = cluster.run(["sdiag"]).stdout
    found = re.search(r"REQUEST_SUBMIT_BATCH_JOB\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:(\d+)", shown)
    for user in ("root", "alice"):
        cluster.run(["scancel", f"--user={user}"])
    cluster.wait_for(lambda: not cluster.run(["squeue", "-h"]).stdout, 60, "the queue to be empty")
    return Turn(plugin, 1000.0 * took_s / jobs, int(found.group(2)) / 1000.0 if found else float("nan"))


def _print(console: Console, turns: list[Turn], jobs: int) -> None:
    shown = Table(title=f"submission with job_submit.lua against none: {len(turns)} turns of {jobs} jobs")
    for column in ("", "with", "without", f"ratio of medians (aim {AIM:g})"):
        shown.add_column(column)
    for name, key in (("sbatch, wall ms", "sbatch_ms"), ("slurmctld's own, ms", "rpc_ms")):
        with_, without = (statistics.median(getattr(t, key) for t in turns if t.plugin is on) for on in (True, False))
        shown.add_row(name, f"{with_:.3f}", f"{without:.3f}", f"{with_ / without:.3f}")
    console.print(shown)
