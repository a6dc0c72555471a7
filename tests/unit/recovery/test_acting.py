"""No change from a host that is not in control, whichever part of the watchdog asks for it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from aistation_slurm.config import Config, Slurm
from aistation_slurm.config import Watchdog as Settings
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.recovery.acting import ActingClient
from aistation_slurm.recovery.exclusions import expire
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.recovery.places import Places
from aistation_slurm.recovery.primary import Primary
from aistation_slurm.recovery.watchdog import Watchdog
from aistation_slurm.slurm.cli_backend import CliBackend
from aistation_slurm.slurm.client import Job, Reservation, SlurmClient
from tests.unit.recovery.recorder import Recorder
from tests.unit.recovery.sim import FakeClock, Sim

LOOKS = {"jobs", "job", "nodes", "cluster_name", "reservations"}
JOB = Job(7, "PENDING", priority=900, excluded_nodes=("gpu1",), reservation="ais-7", admin_comment="[ais resume=auto]")


def turn(clock: FakeClock, first: str) -> Primary:
    """Of the backup: in control where the first controller is DOWN."""

    def ping(argv: Any, **_: Any) -> str:
        text = f"Slurmctld(primary) at ctl1 is {first}\nSlurmctld(backup) at ctl2 is UP\n"
        return ("ClusterName = one\n" if argv[1] == "show" else "") + text

    return Primary(Slurm(), clock, ["ctl2"], ping)


def test_every_change_asks_and_no_look_does() -> None:
    names = {name for name, _ in inspect.getmembers(SlurmClient, inspect.isfunction) if not name.startswith("_")}
    idle = ActingClient(Recorder(JOB), turn(FakeClock(), "UP"))
    for name in sorted(names - LOOKS):
        method = getattr(idle, name)
        needed = [p for p in inspect.signature(method).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        with pytest.raises(SlurmUnavailable, match="nothing is changed from here now: stands by: ctl1"):
            method(*["x" for _ in needed])
    assert idle.job(7) == JOB


@pytest.mark.parametrize(("first", "changes"), [("UP", False), ("DOWN", True)])
def test_places_and_exclusions_change_nothing_in_standby(tmp_path: Path, first: str, changes: bool) -> None:
    clock = FakeClock()
    slurm = Recorder(JOB, reservations=[Reservation("ais-9", (), 1, 2, frozenset({"FLEX", "PURGE_COMP=00:01:00"}))])
    client = ActingClient(slurm, turn(clock, first))
    journal = Journal(tmp_path / "journal.db", "one")
    journal.exclude(7, ["gpu1"], clock.now() - 1000)
    places = Places(Config(), client, journal, clock, act=True)
    for work in (
        lambda: places.look(JOB),
        lambda: places.poll([JOB], {}, []),
        lambda: expire(client, journal, [JOB], clock.now(), 600.0, act=True),
    ):
        try:
            work()
        except SlurmUnavailable:
            assert not changes
    kinds = [kind for kind, *_ in slurm.done]
    assert kinds == (["update_job", "delete", "delete", "update_job"] if changes else [])
    journal.close()


def test_a_watchdog_whose_host_loses_control_in_the_middle_of_a_look(tmp_path: Path) -> None:
    """The proof at the begin of the look is good for half a minute; its last change must not come after the hand-over."""
    clock = FakeClock()
    sim = Sim(clock, tmp_path)
    state = {"first": "DOWN"}
    primary = turn(clock, "DOWN")
    primary._runner = lambda argv, **_: turn(clock, state["first"])._runner(argv)
    config = Config(watchdog=Settings(spool_dir=str(tmp_path), journal=str(tmp_path / "j.db"), exclusion_s=60.0))
    journal = Journal(tmp_path / "j.db", "sim")
    watchdog = Watchdog(config, CliBackend(config.slurm, sim.run), journal, clock, primary)
    job = sim.submit(node_count=5, excluded=["gpu1"])  # waits
    journal.exclude(job.job_id, ["gpu1"], clock.now() - 100)

    def slow(point: str) -> None:
        if point.startswith("after squeue"):
            state["first"] = "UP"
            clock.sleep(3)

    sim.hook = slow
    watchdog.cycle(everything=True)
    assert (sim.changes, job.excluded) == ([], ["gpu1"])
    journal.close()
