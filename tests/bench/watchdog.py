"""What the watchdog costs on a large cluster where nothing happens: the real daemon, with commands that print a file.

``squeue``, ``sinfo`` and ``scontrol`` are replaced by scripts that print made-up answers in the shape recorded from Slurm
22.05.8, one record a job and a node. Their own CPU time is not the watchdog's and is reported apart.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

RECORDED = Path(__file__).resolve().parents[1] / "unit/slurm/recorded/22.05.8"
START = 1_796_091_137
RPCS = {"squeue": 1, "sinfo": 2, "scontrol": 1}
"""Requests to slurmctld that one run of the command makes, counted with sdiag on 22.05.8."""
SCRIPT = """#!/bin/sh
echo {command} >>{calls}
case "$*" in *reservation*) echo "No reservations in the system"; exit;; esac
exec cat {answer}
"""
FIRST_LOOK_S = 180.0
LOOK_EVERY_S = 30.0
"""Default of watchdog.poll_s."""
CALM_S = 3
CPU_AIM_PERCENT, MEMORY_AIM_MB, RPC_AIM = 5.0, 100.0, 1.0


def squeue_text(managed: int, finished: int, nodes_each: int = 2) -> str:
    """``squeue --json``: managed jobs that run, one after another over the nodes, and others' that have ended."""
    reply = json.loads((RECORDED / "running.squeue.json").read_text(encoding="utf-8"))
    (running,) = reply["jobs"]
    (ended,) = (
        job for job in _recorded("mixed.squeue.json", "jobs") if job["job_state"] == "FAILED" and job["job_id"] == 6
    )
    rows = []
    for number in range(managed):
        first = number * nodes_each + 1
        names = f"gpu[{first}-{first + nodes_each - 1}]"
        resources = {**running["job_resources"], "nodes": names}
        for index, node in enumerate(resources["allocated_nodes"]):
            resources["allocated_nodes"][index] = {**node, "nodename": f"gpu{first + index}"}
        changes = {
            "job_id": 1_000_000 + number,
            "name": "pré-entraînement" if number % 100 == 0 else f"train-{number}",
            "start_time": START + number,
            "nodes": names,
            "batch_host": f"gpu{first}",
            "job_resources": resources,
            "admin_comment": "[ais resume=auto max=10 hang=30]",
        }
        rows.append(_record({**running, **changes}))
    for number in range(finished):
        rows.append(_record({**ended, "job_id": 2_000_000 + number, "admin_comment": ""}))
    return _reply(reply, "jobs", rows)


def sinfo_text(nodes: int) -> str:
    """``sinfo --json`` of nodes that are all in use."""
    reply = json.loads((RECORDED / "node_down.sinfo.json").read_text(encoding="utf-8"))
    template = next(node for node in reply["nodes"] if node["state"] == "idle")
    rows = []
    for number in range(1, nodes + 1):
        name = f"gpu{number}"
        rows.append(_record({**template, "name": name, "address": name, "hostname": name, "state": "allocated"}))
    return _reply(reply, "nodes", rows)


def _recorded(name: str, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RECORDED / name).read_text(encoding="utf-8"))[key]
    return found


def _record(row: dict[str, Any]) -> str:
    """As json-c prints it: two blanks an indent, text as UTF-8."""
    return json.dumps(row, indent=2, ensure_ascii=False)


def _reply(reply: dict[str, Any], key: str, rows: list[str]) -> str:
    return f'{{"meta": {json.dumps(reply["meta"])}, "errors": [], "{key}": [\n{",".join(rows)}\n]}}\n'


class Site:
    """A folder with the commands, their answers, the configuration and the journal."""

    def __init__(self, folder: Path, nodes: int, managed: int, finished: int) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.journal = folder / "journal.db"
        (folder / "events").mkdir()
        (folder / "bin").mkdir()
        self.bytes = 0
        for command, text in {
            "squeue": squeue_text(managed, finished),
            "sinfo": sinfo_text(nodes),
            "scontrol": "ClusterName             = big\nSlurmctld(primary) at ctl is UP\n",
        }.items():
            answer = folder / f"{command}.out"
            answer.write_text(text, encoding="utf-8")
            self.bytes += answer.stat().st_size
            script = folder / "bin" / command
            script.write_text(SCRIPT.format(command=command, calls=self.calls, answer=answer), encoding="utf-8")
            script.chmod(0o755)
        self.config = folder / "aistation.toml"
        self.config.write_text(
            f'[slurm]\nbin_dir = "{folder / "bin"}"\nbackend = "cli"\n'
            f'[watchdog]\nspool_dir = "{folder / "events"}"\njournal = "{self.journal}"\n',
            encoding="utf-8",
        )

    def asked(self) -> Counter[str]:
        """How often each command was run."""
        return Counter(self.calls.read_text(encoding="utf-8").split()) if self.calls.exists() else Counter()

    def attempts(self) -> int:
        """Attempts that the journal knows."""
        try:
            with sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True) as journal:
                return int(journal.execute("SELECT count(*) FROM attempts").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def measure(console: Console, seconds: float, nodes: int = 10_000, managed: int = 5_000, finished: int = 1_000) -> None:
    """Run the daemon with its default poll; the first look, which journals every job, is reported apart."""
    with tempfile.TemporaryDirectory(prefix="ais-bench-") as name:
        site = Site(Path(name), nodes, managed, finished)
        log = Path(name, "log")
        argv = [sys.executable, "-m", "aistation_slurm", "watchdog", "run", "--config", str(site.config)]
        environment = {key: value for key, value in os.environ.items() if key != "SLURM_CONF"}
        with log.open("wb") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=out, env=environment)
        try:
            _first_look(console, site, process, managed)
            _idle(console, site, process, seconds, nodes, managed, finished)
        except RuntimeError as exc:
            raise RuntimeError(f"{exc}:\n{log.read_text(encoding='utf-8', errors='replace')[-2000:]}") from None
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _first_look(console: Console, site: Site, process: subprocess.Popen[bytes], managed: int) -> None:
    began, seen = time.monotonic(), -1
    with console.status("first look: every job is new"):
        while seen < managed:
            if process.poll() is not None or time.monotonic() - began > FIRST_LOOK_S:
                raise RuntimeError(f"the watchdog noted {seen} of {managed} jobs")
            time.sleep(1)
            seen = site.attempts()
        _calm(process)
    times = psutil.Process(process.pid).cpu_times()
    console.print(
        f"first look, with start-up: {time.monotonic() - began:.0f} s, {times.user + times.system:.1f} s of CPU, "
        f"peak {_peak_mb(process.pid):.0f} MB"
    )


def _calm(process: subprocess.Popen[bytes]) -> float:
    """Wait until the process is between two looks; the seconds that it has been so by then."""
    watched = psutil.Process(process.pid)
    calm = 0
    while calm < CALM_S:
        before = watched.cpu_times()
        time.sleep(1)
        after = watched.cpu_times()
        calm = calm + 1 if after.user + after.system - before.user - before.system < 0.1 else 0
    return float(calm)


def _idle(
    console: Console,
    site: Site,
    process: subprocess.Popen[bytes],
    seconds: float,
    nodes: int,
    managed: int,
    finished: int,
) -> None:
    """From the end of one look to the end of a later one, so that whole periods are measured."""
    watched = psutil.Process(process.pid)
    looks = max(1, round(seconds / LOOK_EVERY_S))
    before, asked, began = watched.cpu_times(), site.asked(), time.monotonic()
    with console.status(f"nothing happens for {looks} looks"):
        while (site.asked() - asked)["squeue"] < looks:
            time.sleep(0.2)
            if process.poll() is not None or time.monotonic() - began > looks * LOOK_EVERY_S + FIRST_LOOK_S:
                raise RuntimeError(f"the watchdog took {(site.asked() - asked)['squeue']} of {looks} looks")
        calm_s = _calm(process)
    took, after = time.monotonic() - began - calm_s, watched.cpu_times()
    runs = site.asked() - asked
    own = after.user + after.system - before.user - before.system
    theirs = after.children_user + after.children_system - before.children_user - before.children_system
    rpcs = sum(RPCS[command] * count for command, count in runs.items())
    table = Table(
        "what", "measured", "aim", title=f"Watchdog, {nodes} nodes, {managed} managed jobs, {finished} ended ones"
    )
    table.add_row("looks in the time measured", f"{runs['squeue']} in {took:.0f} s", "")
    table.add_row("output a look", f"{site.bytes / 1e6:.1f} MB", "")
    table.add_row("CPU share of one core", f"{100 * own / took:.2f} %", f"<= {CPU_AIM_PERCENT:g} %")
    table.add_row("CPU a look", f"{own / max(runs['squeue'], 1):.2f} s", "")
    table.add_row("children (printing a file; squeue's own cost is not in here)", f"{100 * theirs / took:.2f} %", "")
    table.add_row("peak resident memory", f"{_peak_mb(process.pid):.0f} MB", f"<= {MEMORY_AIM_MB:g} MB")
    table.add_row("resident now", f"{watched.memory_info().rss / 1e6:.0f} MB", "")
    table.add_row("commands in 10 s", f"{10 * sum(runs.values()) / took:.2f}", "")
    table.add_row("requests to slurmctld in 10 s", f"{10 * rpcs / took:.2f}", f"<= {RPC_AIM:g}")
    console.print(table)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6
