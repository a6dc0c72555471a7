"""From a look at Slurm to the table in force: what `aistation placement publish` does once and the watchdog at every poll.

Slurm's topology is asked once, and again when the set of nodes or one of its files has changed.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from aistation_slurm.config import Config
from aistation_slurm.errors import AistationError, SlurmError
from aistation_slurm.placement import table_file
from aistation_slurm.placement.decision import Settings, decide
from aistation_slurm.placement.table import PartitionRow, body, render
from aistation_slurm.placement.view import View, partition_rows, queue, same_records
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.command import run
from aistation_slurm.topology import sources
from aistation_slurm.topology.model import Topology

__all__ = ["Made", "Publisher", "settings_of"]

log = logging.getLogger(__name__)

ASK_AGAIN_S = 300.0
"""slurmctld may be told of a file long after it was written, and no file says so."""
SETTLING_S = 600.0
"""So long after a file changed the topology is asked at every look: it may not yet be in force."""
RENEWALS = 3
"""A table that does not change is written anew so often in its time to live."""
DECIDE_AGAIN_S = 60.0
"""Waits become shorter as time passes, also where nothing else changes."""
SWITCH_WAIT_S = 300
"""Slurm's default of SchedulerParameters=max_switch_wait, to which slurmctld cuts every wait."""


class Made(NamedTuple):
    """One decision. body: of the table; said: what an administrator should know."""

    partitions: tuple[PartitionRow, ...]
    body: str
    said: tuple[str, ...]
    changed: bool


class Publisher:
    """Keeps the last look and the last table, so that the next costs little."""

    def __init__(
        self,
        config: Config,
        ask_topology: Optional[Callable[[], Topology]] = None,
        ask_switch_wait: Optional[Callable[[], int]] = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """ask_*: replaced in tests; the first raises SlurmError or TopologyError."""
        self._config, self._clock = config, clock
        self.path = Path(config.placement.table)
        self.view = View()
        self.topology = Topology("flat")
        self.switch_wait_s = SWITCH_WAIT_S
        self._ask_topology = ask_topology or self._slurms_topology
        self._ask_switch_wait = ask_switch_wait or self._slurms_switch_wait
        self._known: Optional[tuple[object, ...]] = None
        self._asked = self._settling_until = float("-inf")
        self._in_force = ""
        self._written = float("-inf")
        self._last: Optional[Made] = None
        self._jobs: Sequence[Job] = ()
        self._decided = float("-inf")

    def look(self, nodes: Sequence[Node], jobs: Sequence[Job]) -> Made:
        """Decide on what is there now. Raises TableError where the table would not be taken."""
        said = self._refresh_topology(nodes)
        now = self._clock()
        changed = self.view.update(self.topology, nodes, jobs) or not same_records(jobs, self._jobs)
        if self._last is not None and not changed and not said and 0 <= now - self._decided < DECIDE_AGAIN_S:
            return self._last._replace(changed=False)
        self._jobs, self._decided = jobs, now
        settings = settings_of(self._config, self.switch_wait_s)
        rows = decide(self.topology, self.view.occupancy, queue(jobs), settings, now)
        partitions, more = partition_rows(self.view, rows, self._config.placement.avoid_percent)
        if self.switch_wait_s < self._config.placement.wait_max_s and any(r.wait_s >= self.switch_wait_s for r in rows):
            more.append(f"waits are cut to {self.switch_wait_s} s by SchedulerParameters=max_switch_wait")
        text = body(partitions)
        self._last = Made(tuple(partitions), text, tuple(said + more), changed)
        return self._last

    def write(self, made: Made) -> bool:
        """Put it in force; False where the same table already is, intact and fresh. Raises TableError."""
        now, ttl_s = self._clock(), self._config.placement.ttl_s
        fresh = 0 <= now - self._written < ttl_s / RENEWALS
        if made.body == self._in_force and fresh and table_file.intact(self.path):
            return False
        table_file.write(self.path, render(made.body, int(now), int(ttl_s)))
        self._in_force, self._written = made.body, now
        return True

    # ---- what Slurm is asked for seldom

    def _refresh_topology(self, nodes: Sequence[Node]) -> list[str]:
        known = (len(nodes), *self._file_times())
        now = self._clock()
        if known != self._known:
            self._settling_until = now + SETTLING_S if self._known is not None else now
            self._known = known
        elif not (now < self._settling_until <= now + SETTLING_S or not 0 <= now - self._asked < ASK_AGAIN_S):
            return []
        self._asked = now
        try:
            found = self._ask_topology()
            self.switch_wait_s = self._ask_switch_wait()
        except AistationError as exc:
            if isinstance(exc, SlurmError):  # not answered; that there is no topology is an answer
                self._asked = float("-inf")
            return [
                f"no switch limits without a topology: {exc}"
                if self.topology.kind == "flat"
                else f"old topology: {exc}"
            ]
        if found != self.topology:
            self.topology = found  # the same object while it is the same, which is what a look is cheap by
        return []

    def _file_times(self) -> list[int]:
        named = self._config.slurm.conf or os.environ.get("SLURM_CONF", "") or "/etc/slurm/slurm.conf"
        found = []
        for name in (named, "topology.conf", "topology.yaml"):
            try:
                found.append(os.stat(Path(named).parent / name).st_mtime_ns)
            except OSError:
                found.append(0)
        return found

    def _slurms_topology(self) -> Topology:
        slurm = self._config.slurm
        argv = [str(Path(slurm.bin_dir) / "scontrol"), "show", "topology"]
        text = run(argv, timeout_s=slurm.timeout_s, conf=slurm.conf)
        return sources.parse(text, "scontrol show topology", "scontrol").topology

    def _slurms_switch_wait(self) -> int:
        slurm = self._config.slurm
        text = run(
            [str(Path(slurm.bin_dir) / "scontrol"), "show", "config"], timeout_s=slurm.timeout_s, conf=slurm.conf
        )
        match = re.search(r"^SchedulerParameters\s*=.*\bmax_switch_wait=(\d{1,7})", text, re.MULTILINE)
        return int(match.group(1)) if match else SWITCH_WAIT_S


def settings_of(config: Config, switch_wait_s: int) -> Settings:
    """The decision's settings: no wait beyond what slurmctld grants."""
    most = min(config.placement.wait_max_s, float(switch_wait_s))
    usual = Settings()
    return Settings(
        quiet_below=config.placement.quiet_below,
        busy_at=config.placement.busy_at,
        wait_min_s=min(usual.wait_min_s, most),
        wait_max_s=most,
    )
