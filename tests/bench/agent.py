"""What the node's own checks cost: a cold `aistation check`, the agent's warm look, its CPU share and memory; NHC beside it.

NHC (LBNL Node Health Check) is no part of this repository: ``NHC_DIR`` names a checkout of it, and without one the comparison is
left out. It runs the checks that both have (8 ports, memory, two file systems), AIStation all of its own, GPUs too.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path
from typing import NamedTuple, Optional

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench.samples import Sample, ratio
from tests.cluster import Cluster

LOOKS_S = 1.0
"""Poll of the agent whose looks are measured."""
CPU_AIM, RSS_AIM_MB = 0.3, 40.0
CHECK = ["/opt/bin/aistation", "check", "--json"]
SHARED = ["fabric.port_state", "fabric.rate", "host.memory", "host.disk", "host.mounts"]
"""What NHC, as configured below, looks at too."""
TICKS = os.sysconf("SC_CLK_TCK")

NHC_CONF = """
{ports}
 * || check_hw_physmem_free 1MB
 * || check_fs_mount_rw -f /
 * || check_fs_mount_rw -f /tmp
 * || check_fs_free / 1%
 * || check_fs_free /tmp 1%
"""

# The command's own CPU time and wall time, measured beside it on the node: entering the namespaces is no part of it.
TIMED = """
import os, resource, subprocess, sys, time
for _ in range(int(sys.argv[1])):
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    code = subprocess.call(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(wall, cpu, code, flush=True)
"""


class Used(NamedTuple):
    """CPU seconds of a process and its children, and its resident memory in MB."""

    cpu_s: float
    rss_mb: float


def measure(console: Console, rounds: int = 20, idle_s: float = 120.0) -> None:
    """Prints medians; the agent's default schedule is watched for ``idle_s``."""
    with Cluster(nodes=1, aistation=True, config={"node": {"poll_s": LOOKS_S}}) as cluster:
        node = cluster.names[0]
        nhc = _nhc(cluster, node)
        shared = [word for check in SHARED for word in ("--only", check)]
        ways = {"aistation check": CHECK, "aistation check, what NHC has": [*CHECK, *shared]}
        if nhc:
            ways["NHC"] = nhc
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for _ in track(range(max(1, rounds // 5)), description="checks", console=console, transient=True):
            for name, argv in ways.items():
                out = cluster.run(["/usr/bin/python3", "-c", TIMED, "5", *argv], host=node, timeout=300).stdout
                for line in out.splitlines():
                    took, used, code = line.split()
                    if code != "0":
                        raise RuntimeError(f"{name} ended with {code}: this is not the healthy path")
                    wall[name].append(float(took))
                    cpu[name].append(float(used))
        name = "the agent's look"
        wall[name], cpu[name] = [], []
        for _ in track(range(rounds), description="looks", console=console, transient=True):
            began, before = _looked(cluster, node), _used(cluster, node)
            time.sleep(3 * LOOKS_S)
            looks = max(1.0, round((_looked(cluster, node) - began) / LOOKS_S))
            cpu[name].append((_used(cluster, node).cpu_s - before.cpu_s) / looks)
    table = Table(
        "what", "n", "median", "p25 .. p75", "p95", "CPU time", title="Checks of a node with 8 GPUs and 8 HCAs"
    )
    for name, times in cpu.items():
        used = f"{statistics.median(times) * 1000:.1f} ms"
        if wall[name]:
            table.add_row(*Sample(name, tuple(wall[name])).row(1000, "ms"), used)
        else:
            table.add_row(name, str(len(times)), "-", "-", "-", used)
    console.print(table)
    if nhc:
        console.print(
            f"CPU time over NHC's: the agent's look at everything {ratio(cpu[name], cpu['NHC']):.2f} (aim 0.5 for what both have), "
            f"cold check {ratio(cpu['aistation check'], cpu['NHC']):.2f}, of what both have "
            f"{ratio(cpu['aistation check, what NHC has'], cpu['NHC']):.2f} (aim 2)"
        )
    else:
        console.print("NHC is not compared: NHC_DIR does not name a checkout of it")
    _default_schedule(console, idle_s)


def _default_schedule(console: Console, idle_s: float) -> None:
    with Cluster(nodes=1, aistation=True, config={"node": {"poll_s": 30.0}}) as cluster:
        node = cluster.names[0]
        time.sleep(10)
        before, began = _used(cluster, node), time.monotonic()
        for _ in track(range(int(idle_s)), description="agent, default schedule", console=console, transient=True):
            time.sleep(1)
        after, took = _used(cluster, node), time.monotonic() - began
    share = 100 * (after.cpu_s - before.cpu_s) / took
    console.print(
        f"agent at its default schedule: {share:.2f} % of a core over {took:.0f} s (aim <= {CPU_AIM:g}), "
        f"{after.rss_mb:.0f} MB resident (aim <= {RSS_AIM_MB:g})"
    )


def _used(cluster: Cluster, node: str) -> Used:
    pid = _agent(cluster, node)
    text = cluster.run(["cat", f"/proc/{pid}/stat", f"/proc/{pid}/status"], host=node).stdout
    fields = text[text.rindex(")", 0, text.index("\n")) + 2 :].split()
    rss = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
    ticks = sum(int(fields[index]) for index in (11, 12, 13, 14))
    return Used(ticks / TICKS, int(rss.split()[1]) / 1024)


def _agent(cluster: Cluster, node: str) -> int:
    script = (
        "for p in /proc/[0-9]*; do "
        "tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q 'aistation_slurm agent' && echo ${p#/proc/}; done"
    )
    found = cluster.run(["sh", "-c", script], host=node, check=False).stdout.split()
    if not found:
        raise RuntimeError("the agent does not run")
    return min(map(int, found))


def _looked(cluster: Cluster, node: str) -> float:
    return float(cluster.run(["cat", "/run/aistation/state"], host=node).stdout.split(None, 4)[3])


def _nhc(cluster: Cluster, node: str) -> Optional[list[str]]:
    """The command that runs NHC on the node, whose simulated ports it then sees; None without NHC."""
    source = Path(os.environ.get("NHC_DIR", ""))
    if not (source / "nhc").is_file() or not os.environ.get("NHC_DIR"):
        return None
    folder = cluster.dir / "shared" / "nhc"
    shutil.copytree(source, folder)
    ports = "\n".join(f" * || check_hw_ib 400 mlx5_{number}:1" for number in range(8))
    (folder / "bench.conf").write_text(NHC_CONF.format(ports=ports), encoding="ascii")
    inside = (
        "mount --bind /run/aisim/root/sys /sys && exec /bin/bash /shared/nhc/nhc -c /shared/nhc/bench.conf "
        "INCDIR=/shared/nhc/scripts HELPERDIR=/shared/nhc/helpers CONFDIR=/shared/nhc MARK_OFFLINE=0 NHC_RM=slurm "
        "LOGFILE=/dev/null TIMEOUT=60"
    )
    # the class of the user-space MAD driver, without which NHC reads no port
    mad = "/run/aisim/root/sys/class/infiniband_mad"
    devices = f"for i in 0 1 2 3 4 5 6 7; do mkdir -p {mad}/umad$i; echo mlx5_$i >{mad}/umad$i/ibdev; done"
    cluster.run(["sh", "-c", f"{devices}; echo 5 >{mad}/abi_version"], host=node)
    argv = ["unshare", "-m", "sh", "-c", inside]
    tried = cluster.run(argv, host=node, check=False)
    if tried.returncode != 0:
        raise RuntimeError(f"NHC does not run: {(tried.stdout + tried.stderr)[-500:]}")
    return argv
