"""A watchdog on the stand-in for Slurm, with a real journal and a real spool folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.config import Config, Slurm
from aistation_slurm.config import Watchdog as Settings
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.recovery.kill_time import KillTime
from aistation_slurm.recovery.watchdog import Watchdog
from aistation_slurm.slurm.cli_backend import CliBackend
from tests.unit.recovery.sim import FakeClock, Sim, SimJob

__all__ = ["Killed", "World"]

POLL_S = 30.0


class Killed(BaseException):
    """SIGKILL of the watchdog: nothing of it runs on."""


class World:
    """``run_until`` lets time pass; the watchdog looks every 0.2 s of it, as ``Watchdog.run`` does."""

    def __init__(self, folder: Path, *, spool: bool = True, **settings: Any) -> None:
        self.folder = folder
        self.spool = folder / "events"
        self.spool.mkdir(exist_ok=True)
        self.clock = FakeClock()
        self.sim = Sim(self.clock, self.spool if spool else None)
        values = {"spool_dir": str(self.spool), "journal": str(folder / "var" / "journal.db"), "poll_s": POLL_S}
        self.config = Config(watchdog=Settings(**{**values, **settings}), slurm=Slurm())
        self.journal_hook: Callable[[str], None] = lambda point: None
        self.journal: Optional[Journal] = None
        self.watchdog: Optional[Watchdog] = None

    def start(self) -> Watchdog:
        """A new process of the watchdog."""
        if self.journal is not None:
            self.journal.close()
        self.journal = HookedJournal(Path(self.config.watchdog.journal), "sim", self)
        client = CliBackend(self.config.slurm, self.sim.run)
        kill_time = KillTime(self.config.slurm, self.clock, self.sim.run)
        self.watchdog = Watchdog(self.config, client, self.journal, self.clock, kill_time=kill_time)
        return self.watchdog

    def run_until(self, reached: Callable[[], bool], within_s: float = 300.0, step_s: float = 0.2) -> None:
        watchdog = self.watchdog or self.start()
        limit = self.clock.monotonic() + within_s
        while not reached():
            assert self.clock.monotonic() < limit, f"not reached in {within_s:g} s; {self.story()}"
            watchdog.cycle()
            self.clock.sleep(step_s)

    def run_for(self, seconds: float, step_s: float = 0.2) -> None:
        end = self.clock.monotonic() + seconds
        self.run_until(lambda: self.clock.monotonic() >= end, seconds + 60, step_s)

    def running(self, **fields: Any) -> SimJob:
        """A job that runs and that the watchdog has seen running."""
        job = self.sim.submit(**fields)
        assert job.state == "RUNNING"
        self.run_for(0.5)
        return job

    def kinds(self, job: SimJob) -> list[str]:
        """Kinds of the job's incidents in order."""
        assert self.journal is not None
        return [row["kind"] for row in self.journal.incidents(job_id=job.job_id)]

    def text(self, job: SimJob) -> str:
        assert self.journal is not None
        return "\n".join(row["text"] for row in self.journal.incidents(job_id=job.job_id))

    def story(self) -> str:
        rows = self.journal.incidents() if self.journal is not None else []
        return "\n".join([*(f"{r['time']:.1f} {r['kind']}: {r['text']}" for r in rows), *self.sim.changes])


class HookedJournal(Journal):
    """Tells of every moment right before and right after something is on the disk."""

    def __init__(self, path: Path, cluster: str, world: World) -> None:
        super().__init__(path, cluster)
        self._db.execute("PRAGMA synchronous=OFF")  # a killed process loses nothing for want of it
        for name in ("see_attempt", "end_attempt", "mark", "tell", "intend", "done", "close_open", "note", "forget"):
            setattr(self, name, self._hooked(name, world))

    def _hooked(self, name: str, world: World) -> Callable[..., Any]:
        method = getattr(super(), name)

        def hooked(*args: Any, **kwargs: Any) -> Any:
            world.journal_hook(f"before journal {name}")
            result = method(*args, **kwargs)
            world.journal_hook(f"after journal {name}")
            return result

        return hooked
