"""``aistation watchdog`` and ``aistation incidents`` as processes, with shell scripts in the place of Slurm's commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aistation_slurm.cli.incidents import parse_since
from aistation_slurm.recovery.attribution import Attempt
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.slurm.client import Job

WAIT_S = 60.0
CONTROLLER = """[ "$1" = ping ] && exec echo 'Slurmctld(primary) at one is UP'
echo 'ClusterName             = one'"""
EMPTY = '{"errors": [], "jobs": [], "nodes": []}'


class Site:
    """A folder with aistation.toml, stand-ins for Slurm's commands, a journal and a spool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin, self.spool = folder / "bin", folder / "events"
        self.journal = folder / "var" / "journal.db"
        self.bin.mkdir()
        self.spool.mkdir()
        self.toml = folder / "aistation.toml"
        self.toml.write_text(
            f'[slurm]\nbin_dir = "{self.bin}"\n'
            f'[watchdog]\nspool_dir = "{self.spool}"\njournal = "{self.journal}"\npoll_s = 0.5\n'
        )
        self.answer("squeue", f"echo '{EMPTY}'")
        self.answer("sinfo", f"echo '{EMPTY}'")
        self.answer("scontrol", CONTROLLER)
        self.processes: list[subprocess.Popen[str]] = []

    def answer(self, command: str, script: str) -> None:
        path = self.bin / command
        made = path.with_suffix(".new")
        made.write_text(f"#!/bin/sh\n{script}\n")
        made.chmod(0o755)
        made.rename(path)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "AISTATION_CONFIG": str(self.toml)}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "aistation_slurm", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, env=self.env, check=False)

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "aistation_slurm", "watchdog", "run", *words]
        log = (self.folder / f"log{len(self.processes)}").open("w")
        process = subprocess.Popen(argv, stdout=log, stderr=log, text=True, env=self.env)
        log.close()
        self.processes.append(process)
        return process

    def log(self, number: int = 0) -> str:
        return (self.folder / f"log{number}").read_text()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def event(site: Site, name: str = "7.1-1.ev") -> Path:
    path = site.spool / name
    path.with_suffix(".tmp").write_text("JOB_ID=7\nNODELIST=gpu1\nEXIT_CODE=256\nEND=1\n")
    path.with_suffix(".tmp").rename(path)
    return path


def test_it_takes_events_until_it_is_told_to_stop(site: Site) -> None:
    process = site.start()
    wait_for(lambda: "watchdog of cluster one acts" in site.log())
    path = event(site)
    wait_for(lambda: not path.exists())
    status = site.call("watchdog", "status", "--json")
    assert status.returncode == 0
    assert json.loads(status.stdout)["running"] is True
    assert json.loads(status.stdout)["turn"] == "acts: one is the only controller"
    pair = "echo 'Slurmctld(primary) at one is UP'; echo 'Slurmctld(backup) at two is UP'"
    site.answer("scontrol", pair)
    assert "stands by: this host" in site.call("watchdog", "status").stdout
    second = site.call("watchdog", "once")
    assert (second.returncode, "another watchdog runs here" in second.stderr) == (3, True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    assert site.log().rstrip().endswith("stopped")
    (row,) = json.loads(site.call("incidents", "--json").stdout)["incidents"]
    assert (row["job_id"], row["kind"], row["text"]) == (7, "ended", "ended on gpu1: exit code 1")
    after = site.call("watchdog", "status")
    assert (after.returncode, "does not run" in after.stdout) == (1, True)


def test_events_of_the_time_when_slurm_was_away_are_not_lost(site: Site) -> None:
    site.answer("scontrol", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    path = event(site)
    site.start()
    wait_for(lambda: "waiting for Slurm: scontrol: Unable to contact" in site.log())
    assert path.exists()
    site.answer("scontrol", CONTROLLER)
    wait_for(lambda: not path.exists())
    assert "ended on gpu1" in site.call("incidents").stdout


def test_killed_and_started_again(site: Site) -> None:
    first = site.start()
    wait_for(lambda: "watchdog of cluster one acts" in site.log())
    first.kill()
    first.wait()
    site.start("--observe")
    wait_for(lambda: "watchdog of cluster one only observes" in site.log(1))


def test_once(site: Site) -> None:
    event(site)
    result = site.call("watchdog", "once")
    assert (result.returncode, list(site.spool.glob("*.ev"))) == (0, [])
    site.answer("scontrol", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    away = site.call("watchdog", "once")
    assert (away.returncode, "Unable to contact slurm controller" in away.stderr) == (3, True)


@pytest.mark.parametrize("verb", ["run", "once", "status"])
def test_a_broken_configuration(site: Site, verb: str) -> None:
    site.toml.write_text("[watchdog]\npol_s = 3\n")
    result = site.call("watchdog", verb)
    assert result.returncode == 3
    assert "aistation.toml:2: unknown key 'pol_s' in [watchdog] (did you mean 'poll_s'?)" in result.stderr
    assert not site.journal.exists()


def test_no_slurm_commands(site: Site) -> None:
    for command in site.bin.iterdir():
        command.unlink()
    result = site.call("watchdog", "once")
    assert (result.returncode, "is Slurm's client package installed" in result.stderr) == (3, True)


def test_nothing_to_read_yet(site: Site) -> None:
    result = site.call("incidents")
    assert (result.returncode, "no journal yet" in result.stderr) == (3, True)
    assert not site.journal.parent.exists()


def test_incidents_can_be_narrowed(site: Site) -> None:
    journal = Journal(site.journal, "one")
    now = time.time()
    journal.see_attempt(Attempt(7, int(now) - 7200, ("gpu1",)), Job(job_id=7, state="RUNNING"))
    journal.note(now - 60, "start", "start: done", job_id=8, node="gpu2")
    everything = json.loads(site.call("incidents", "--json").stdout)["incidents"]
    assert [row["job_id"] for row in everything] == [7, 8]
    assert set(everything[0]) == {"time", "kind", "node", "job_id", "text"}
    assert [r["job_id"] for r in json.loads(site.call("incidents", "--json", "--since", "1h").stdout)["incidents"]] == [
        8
    ]
    assert "attempt 0 runs on gpu1" in site.call("incidents", "--job", "7").stdout
    wrong = site.call("incidents", "--since", "yesterday")
    assert (wrong.returncode, "expected 90m" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(("text", "ago"), [("90m", 5400), ("2d", 172800), ("1w", 604800), ("30s", 30)])
def test_since(text: str, ago: float) -> None:
    assert parse_since(text, 1e9) == 1e9 - ago
