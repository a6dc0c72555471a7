"""How fast a kernel log of 100 MB is scanned, against what only counts its lines or looks for one word."""

from __future__ import annotations

import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench.samples import Sample, ratio

BYTES = 100_000_000
AIM_S = 2.0
NOISE = (
    "usb 1-1: new high-speed USB device number {n} using xhci_hcd",
    'audit: type=1400 audit(1700000000.123:{n}): apparmor="STATUS" operation="profile_load" name="docker-default"',
    "docker0: port {n}(veth1a2b3c) entered blocking state",
    "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "device veth{n} entered promiscuous mode",
    "hrtimer: interrupt took {n} ns",
    "TCP: request_sock_TCP: Possible SYN flooding on port {n}. Sending cookies.",
)
"""What fills the logs of a node; one line in ten thousand is an Xid, one in three hundred a link."""


def write_log(path: Path, size: int = BYTES, seed: int = 3) -> int:
    """A log in syslog's form of about ``size`` bytes; returns the number of its Xid lines."""
    dice = random.Random(seed)
    xids = 0
    with path.open("w", encoding="ascii") as out:
        written = n = 0
        while written < size:
            n += 1
            if n % 10_000 == 0:
                xids += 1
                text = f"NVRM: Xid (PCI:0000:{dice.randrange(8):02x}:00): 13, pid={n}, name=python3, Graphics SM Warp Exception"
            elif n % 300 == 0:
                text = f"IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready"
            else:
                text = NOISE[dice.randrange(len(NOISE))].format(n=n)
            written += out.write(f"Nov {2 + n // 500_000:2d} 09:10:44 gpu1 kernel: [{n / 7:.6f}] {text}\n")
    return xids


def measure(console: Console, rounds: int = 5) -> None:
    """Prints medians; each round runs the three one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "kern.log"
        xids = write_log(log)
        ways = {
            "aistation klog scan": [sys.executable, "-m", "aistation_slurm", "klog", "scan", "--json", str(log)],
            "grep -c Xid": ["grep", "-c", "Xid", str(log)],
            "wc -l": ["wc", "-l", str(log)],
        }
        ways = {name: argv for name, argv in ways.items() if shutil.which(argv[0])}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for _ in track(range(rounds), description="klog", console=console, transient=True):
            for name, argv in ways.items():
                begin, used = time.perf_counter(), _cpu_s()
                done = subprocess.run(argv, capture_output=True, text=True, check=False)
                seconds[name].append(time.perf_counter() - begin)
                cpu[name].append(_cpu_s() - used)
                if name.startswith("aistation"):
                    found = [e for e in json.loads(done.stdout)["events"] if e["kind"] == "xid"]
                    if len(found) != xids:
                        raise RuntimeError(f"{len(found)} Xids found of the {xids} in the log: {done.stderr[-300:]}")
    table = Table(
        "what", "n", "median", "p25 .. p75", "p95", "CPU time", title=f"Kernel log of {BYTES // 1_000_000} MB"
    )
    for name, times in seconds.items():
        table.add_row(*Sample(name, tuple(times)).row(), f"{statistics.median(cpu[name]):.2f} s")
    console.print(table)
    scan = statistics.median(seconds["aistation klog scan"])
    console.print(f"{BYTES / 1e6 / scan:.0f} MB/s; aim: {BYTES // 1_000_000} MB in {AIM_S:g} s")
    if "grep -c Xid" in seconds:
        console.print(f"scan / grep -c = {ratio(seconds['aistation klog scan'], seconds['grep -c Xid']):.1f}")


def _cpu_s() -> float:
    """CPU time of all children that have ended: the machine may be shared."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
