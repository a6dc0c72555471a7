"""The gate's passing path against the bare interpreter, on a node with 8 GPUs and 8 HCAs."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench.samples import Sample, ratio
from tests.cluster import Cluster

PROLOG = "/opt/aistation/prolog/aistation-prolog"
BARE = ["/usr/bin/python3", "-ISE", "-c", "pass"]

# Runs inside the node's namespaces, so that no namespace entry is part of a measurement.
DRIVER = """
import os, sys, time
rounds, commands = int(sys.argv[1]), {commands!r}
environment = {environment!r}
for _ in range(rounds):
    for name, argv in commands:
        begin = time.perf_counter()
        pid = os.posix_spawn(argv[0], argv, environment)
        status = os.waitpid(pid, 0)[1]
        print(name, time.perf_counter() - begin, os.waitstatus_to_exitcode(status), flush=True)
"""


def measure(console: Console, rounds: int) -> None:
    """Interleaves the two commands, so that a busy moment of the machine meets both."""
    with Cluster(nodes=1, aistation=True) as cluster:
        node = cluster.names[0]
        cluster.wait_for(
            lambda: cluster.run(["test", "-s", "/run/aistation/state"], host=node, check=False).returncode == 0,
            30,
            "state",
        )
        environment = {
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_UID": "20001",
            "SLURM_JOB_USER": "alice",
            "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
            "SLURMD_NODENAME": node,
            "SPANK_AISTATION_RESUME": "auto",
        }
        commands = [("bare python", BARE), ("gate", [PROLOG]), ("/bin/true", ["/bin/true"])]
        code = DRIVER.format(commands=commands, environment=environment)
        seconds: dict[str, list[float]] = {name: [] for name, _ in commands}
        batch = 10
        for _ in track(range(rounds // batch), description="gate", console=console, transient=True):
            out = cluster.run(["/usr/bin/python3", "-c", code, str(batch)], host=node).stdout
            for line in out.splitlines():
                name, took, exit_code = line.rsplit(" ", 2)
                if exit_code != "0":
                    raise RuntimeError(f"{name} ended with code {exit_code}: this is not the passing path")
                seconds[name].append(float(took))
            time.sleep(0.1)
    table = Table("what", "n", "median", "p25 .. p75", "p95", title="Gate, passing path (8 GPUs, 8 HCAs)")
    for name, values in seconds.items():
        table.add_row(*Sample(name, tuple(values)).row(1000, "ms"))
    console.print(table)
    console.print(f"gate / bare python = {ratio(seconds['gate'], seconds['bare python']):.2f}   (aim <= 2)")
