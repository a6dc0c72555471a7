"""What the decision table of a large cluster costs the watchdog's thread: the first one, and one after a node changed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from aistation_slurm.config import Config
from aistation_slurm.placement.publisher import Publisher
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.topology.model import Switch, Topology, resolve_levels

NODES, LEAF, SPINES = 16_384, 16, 32
NOW = 1_800_000_000
BUILD_AIM_MS, REFRESH_AIM_MS = 200.0, 20.0


def large_cluster() -> tuple[Topology, list[Node], list[Job]]:
    """16,384 nodes in two partitions below 1,024 leaves; 4,000 jobs run, 2,000 wait."""
    names = [f"gpu{number}" for number in range(NODES)]
    leaves = [Switch(f"leaf{i}", tuple(names[i * LEAF : (i + 1) * LEAF])) for i in range(NODES // LEAF)]
    each = len(leaves) // SPINES
    spines = [Switch(f"spine{i}", (), tuple(s.name for s in leaves[i * each : (i + 1) * each])) for i in range(SPINES)]
    core = Switch("core", (), tuple(spine.name for spine in spines))
    topology = Topology("tree", resolve_levels([*leaves, *spines, core]))
    nodes = [
        Node(name, "ALLOCATED" if at < 16_000 else "IDLE", partitions=("gpu", "long"), gres="gpu:8")
        for at, name in enumerate(names)
    ]
    running = [
        Job(n, "RUNNING", partition="gpu", nodes=tuple(names[n * 4 : n * 4 + 4]), end_time=NOW + n, time_limit_s=3600)
        for n in range(1, 4000)
    ]
    waiting = [Job(10_000 + n, "PENDING", partition="gpu", min_nodes=1 + n % 64, priority=n + 1) for n in range(2000)]
    return topology, nodes, running + waiting


def measure(console: Console, rounds: int = 7) -> None:
    """Print medians and the worst."""
    topology, nodes, jobs = large_cluster()
    taken: dict[str, list[float]] = {
        "first table": [],
        "one node changed": [],
        "one job changed": [],
        "nothing changed": [],
    }
    for number in range(rounds):
        publisher = Publisher(Config(), lambda: topology, lambda: 300, lambda: NOW)
        taken["first table"].append(_ms(publisher, nodes, jobs))
        nodes = list(nodes)
        nodes[number * 99] = replace(nodes[number * 99], comment="[ais-fabric degraded fabric.errors@mlx5_0/1]")
        taken["one node changed"].append(_ms(publisher, nodes, jobs))
        jobs = list(jobs)
        jobs[number] = replace(jobs[number], end_time=NOW + 9999)
        taken["one job changed"].append(_ms(publisher, nodes, jobs))
        taken["nothing changed"].append(_ms(publisher, nodes, jobs))
    shown = Table(title=f"decision table of {NODES} nodes below {NODES // LEAF} leaves, 2 partitions, {len(jobs)} jobs")
    for column in ("", "median ms", "worst ms", "aim ms"):
        shown.add_column(column)
    aims = {"first table": f"{BUILD_AIM_MS:g}", "one node changed": f"{REFRESH_AIM_MS:g}"}
    for name, values in taken.items():
        shown.add_row(name, f"{statistics.median(values):.1f}", f"{max(values):.1f}", aims.get(name, ""))
    console.print(shown)


def _ms(publisher: Publisher, nodes: Sequence[Node], jobs: Sequence[Job]) -> float:
    began = time.perf_counter()
    publisher.look(nodes, jobs)
    return 1000.0 * (time.perf_counter() - began)
