"""The same seeded jobs on a real slurmctld with 128 slurmd, under topology/none, stock topology/tree and AIStation.

Jobs are whole-node and sleep; times are short, so that a trace takes minutes: every ratio of times is that of a cluster whose jobs
run for hours and whose watchdog looks every few minutes. Slurm tells starts and ends in whole seconds. Each trace is also given
to the simulator (aistation_slurm/placement/simulation), whose figures stand beside.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Optional

from rich.console import Console
from rich.table import Table

from aistation_slurm.config import Config
from aistation_slurm.placement.explain import fewest_leaves
from aistation_slurm.placement.publisher import settings_of
from aistation_slurm.placement.simulation.engine import Scheduler, TraceJob, simulate
from aistation_slurm.placement.simulation.machine import Machine
from aistation_slurm.placement.simulation.policy import make_policy
from aistation_slurm.placement.simulation.synthetic import Workload, make
from aistation_slurm.topology.readers import topology_conf
from tests.bench.emulated import EmulatedCluster, tree
from tests.cluster import ClusterError

LEAVES, PER_LEAF, SPINES = 16, 8, 4
NODES = LEAVES * PER_LEAF
WAYS = ("none", "tree", "aistation")
BF_INTERVAL_S = 2
POLL_S = 2.0
SWITCH_WAIT_S = 86_400
TURNOVER_S = 1.0
"""From a job's end until slurmctld gives its nodes to the next one, as seen in runs of this benchmark."""
SCHEDULER = (
    f"SchedulerParameters=bf_interval={BF_INTERVAL_S},bf_resolution=1,default_queue_depth=500,bf_max_job_test=500,"
    f"max_switch_wait={SWITCH_WAIT_S}"
)
BY_SIZE = (1, 2, 4, 8, 16, 32)

SUBMIT = r"""
import subprocess, sys, time
began = time.time() + 2.0
running = []
for line in sys.stdin:
    number, at, nodes, run, limit = line.split()
    time.sleep(max(0.0, began + float(at) - time.time()))
    argv = ["sbatch", "--parsable", "--exclusive", "--output=/dev/null", "--job-name=t" + number, "--nodes=" + nodes]
    argv += ["--time=" + limit]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    process.stdin.write("#!/bin/sh\nexec sleep " + run + "\n")
    process.stdin.close()
    running.append(process)
    running = [p for p in running if p.poll() is None]
sys.exit(max([p.wait() for p in running], default=0))
"""


class Ran(NamedTuple):
    """One job as it ran. Times in seconds from the first submission."""

    job_id: int
    nodes: int
    submit_s: float
    start_s: float
    end_s: float
    leaves: int
    optimum: int


class Figures(NamedTuple):
    """Of one run of a trace. over: leaves over optimum, of jobs of several nodes; waits by size of job."""

    over: float
    over_by_size: dict[int, float]
    wait_s: float
    wait_p95_s: float
    wait_by_size: dict[int, float]
    wait_p95_by_size: dict[int, float]
    utilisation: float
    makespan_s: float
    jobs: int


def figures(ran: Sequence[Ran]) -> Figures:
    """utilisation: of all nodes from the first submission to the last start, which is not yet the tail of the trace."""
    several = [job for job in ran if job.nodes > 1]
    over = {n: _mean(j.leaves / j.optimum for j in several if j.nodes == n) for n in BY_SIZE if n > 1}
    waits = {n: [j.start_s - j.submit_s for j in ran if j.nodes == n] for n in BY_SIZE}
    every = [job.start_s - job.submit_s for job in ran]
    last_start = max(job.start_s for job in ran)
    busy = sum(job.nodes * (min(job.end_s, last_start) - min(job.start_s, last_start)) for job in ran)
    return Figures(
        over=_mean(job.leaves / job.optimum for job in several),
        over_by_size=over,
        wait_s=_mean(every),
        wait_p95_s=_p95(every),
        wait_by_size={n: _mean(w) for n, w in waits.items()},
        wait_p95_by_size={n: _p95(w) for n, w in waits.items()},
        utilisation=busy / (NODES * last_start) if last_start > 0 else math.nan,
        makespan_s=max(job.end_s for job in ran),
        jobs=len(ran),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else math.nan


def _p95(values: Iterable[float]) -> float:
    found = sorted(values)
    return found[math.ceil(0.95 * len(found)) - 1] if found else math.nan


# ---- one run


def run(way: str, trace: Sequence[TraceJob], patience_s: float) -> list[Ran]:
    """The trace on a slurmctld of its own. Raises ClusterError where jobs are lost or do not end within ``patience_s``."""
    text = tree(LEAVES, PER_LEAF, SPINES)
    conf = [SCHEDULER, "MinJobAge=86400", "MaxJobCount=20000"]
    config: dict[str, dict[str, Any]] = {"watchdog": {"poll_s": POLL_S}}
    with EmulatedCluster(NODES, "" if way == "none" else text, conf, way == "aistation", config) as cluster:
        submit = cluster.popen(["python3", "-c", SUBMIT], "alice", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        lines = [
            f"{j.job_id} {j.submit_s:.3f} {j.nodes} {j.run_s:.2f} {max(1, round(j.limit_s / 60))}\n" for j in trace
        ]
        submit.communicate("".join(lines), timeout=trace[-1].submit_s + patience_s)
        if submit.returncode:
            raise ClusterError(f"{way}: a submission failed with code {submit.returncode}")

        def ended() -> Optional[list[dict[str, Any]]]:
            if cluster.run(["squeue", "-h", "-t", "PD,R,CG,CF", "-o", "%i"]).stdout.strip():
                return None
            rows: list[dict[str, Any]] = json.loads(cluster.run(["squeue", "--json", "--states=all"]).stdout)["jobs"]
            return rows

        rows = cluster.wait_for(ended, patience_s, f"{way}: all jobs to end", interval=1.0)
        assert rows is not None
        return _ran(rows, len(trace))


def _ran(rows: Sequence[dict[str, Any]], wanted: int) -> list[Ran]:
    from aistation_slurm.slurm import hostlist

    topology = topology_conf.read(tree(LEAVES, PER_LEAF, SPINES), "topology.conf").topology
    states = Counter(row["job_state"] for row in rows)
    if states != Counter({"COMPLETED": wanted}):
        raise ClusterError(f"of {wanted} jobs: {dict(states)}")
    began = min(row["submit_time"] for row in rows)
    found = []
    for row in rows:
        names = hostlist.expand(row["nodes"])
        leaves = len({topology.leaf_of[name] for name in names})
        optimum = fewest_leaves([PER_LEAF] * LEAVES, len(names))
        submit_s, start_s, end_s = (float(row[key] - began) for key in ("submit_time", "start_time", "end_time"))
        found.append(Ran(int(row["name"][1:]), len(names), submit_s, start_s, end_s, leaves, optimum))
    return sorted(found)


def predicted(way: str, trace: Sequence[TraceJob]) -> list[Ran]:
    """The simulator's run of the same trace under the same settings."""
    topology = topology_conf.read(tree(LEAVES, PER_LEAF, SPINES), "topology.conf").topology
    machine = Machine(topology)
    policy = make_policy(way, machine, settings_of(Config(), SWITCH_WAIT_S), POLL_S)
    scheduler = Scheduler(bf_interval_s=BF_INTERVAL_S, bf_resolution_s=1.0, bf_max_job_test=500, turnover_s=TURNOVER_S)
    limits = [job._replace(limit_s=60.0 * max(1, round(job.limit_s / 60))) for job in trace]
    found = []
    for job, start, nodes in simulate(limits, machine, policy, scheduler).records:
        optimum = fewest_leaves([PER_LEAF] * LEAVES, job.nodes)
        leaves = machine.spanned(nodes)
        found.append(Ran(job.job_id, job.nodes, job.submit_s, start, start + job.run_s, leaves, optimum))
    return sorted(found)


# ---- all of them


def measure(
    console: Console,
    seeds: Sequence[int] = (1,),
    jobs: int = 400,
    loads: Sequence[float] = (0.7, 0.9, 1.1),
    ways: Sequence[str] = WAYS,
    json_file: Optional[Path] = None,
) -> None:
    """Run all, print a table a load, and keep every job in ``json_file``."""
    kept: list[dict[str, Any]] = []
    found: dict[tuple[float, str], list[Figures]] = {}
    simulated: dict[tuple[float, str], list[Figures]] = {}
    for seed in seeds:
        for load in loads:
            trace = make(Workload(jobs=jobs, load=load), NODES, seed)
            # at the same time: what else runs on the machine then disturbs all of them alike
            with ProcessPoolExecutor(len(ways)) as pool:
                all_ran = list(pool.map(run, ways, [trace] * len(ways), [300.0 + jobs] * len(ways)))
            for way, ran in zip(ways, all_ran):
                got = figures(ran)
                found.setdefault((load, way), []).append(got)
                simulated.setdefault((load, way), []).append(figures(predicted(way, trace)))
                said = f"leaves over optimum {got.over:.3f}, mean wait {got.wait_s:.2f} s"
                console.print(f"seed {seed} load {load} {way}: {said}")
                kept.append({"seed": seed, "load": load, "way": way, "jobs": [one._asdict() for one in ran]})
            if json_file is not None:
                json_file.write_text(json.dumps(kept), encoding="utf-8")
    for load in loads:
        console.print(table_of(f"real slurmctld, {NODES} slurmd, load {load}", {way: found[load, way] for way in ways}))
        console.print(table_of(f"simulated, load {load}", {way: simulated[load, way] for way in ways}))


def table_of(title: str, by_way: dict[str, list[Figures]]) -> Table:
    """Means over seeds; ± half of the 95 % interval where there are several."""
    shown = Table(title=title)
    shown.add_column("")
    for way, runs in by_way.items():
        shown.add_column(f"{way} (n={len(runs)})")
    keys = [
        ("leaves over optimum", "over", None),
        ("mean wait, s", "wait_s", None),
        ("p95 wait, s", "wait_p95_s", None),
    ]
    rows: list[tuple[str, list[list[float]]]] = []
    for title, key, _ in keys:
        rows.append((title, [[getattr(one, key) for one in runs] for runs in by_way.values()]))
    for size in BY_SIZE:
        if size > 1:
            rows.append(
                (
                    f"leaves over optimum, {size} nodes",
                    [[r.over_by_size[size] for r in runs] for runs in by_way.values()],
                )
            )
    for size in BY_SIZE:
        rows.append((f"mean wait, {size} nodes, s", [[r.wait_by_size[size] for r in runs] for runs in by_way.values()]))
        rows.append(
            (f"p95 wait, {size} nodes, s", [[r.wait_p95_by_size[size] for r in runs] for runs in by_way.values()])
        )
    rows.append(("utilisation", [[r.utilisation for r in runs] for runs in by_way.values()]))
    rows.append(("makespan, s", [[r.makespan_s for r in runs] for runs in by_way.values()]))
    for name, columns in rows:
        shown.add_row(name, *(_shown(values) for values in columns))
    return shown


def _shown(values: Sequence[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "-"
    mean = statistics.fmean(known)
    text = f"{mean:.3f}" if mean < 10 else f"{mean:.1f}"
    if len(known) > 1:
        text += f" ± {1.96 * statistics.stdev(known) / math.sqrt(len(known)):.2f}"
    return text
