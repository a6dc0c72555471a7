"""Facts that take a while or start other programs: mounts, services, clock, the site's own checks.

They are kept in ``<state_dir>/slow.json``, so that the gate, which has no time, and the agent between two rounds use the last
answers. Best effort: without the file they are asked more often, or left out by those in a hurry.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import msgspec

from aistation_slurm.config import Config
from aistation_slurm.detectors.host_storage import wanted_mounts
from aistation_slurm.detectors.site_checks import SiteResult
from aistation_slurm.node.site_checks import run_site_checks
from aistation_slurm.probes import storage, system
from aistation_slurm.probes.host import inside_job
from aistation_slurm.probes.storage import Answer
from aistation_slurm.probes.system import Clock

__all__ = ["SlowFacts", "slow_facts"]

FILE = "slow.json"


class SlowFacts(msgspec.Struct, frozen=True):
    """time: unix, when they were asked."""

    boot: str = ""
    time: float = 0.0
    mounts: list[Answer] = []
    services: dict[str, str] = {}
    clock: Optional[Clock] = None
    site: list[SiteResult] = []


def slow_facts(config: Config, boot: str, now: float, node: str, max_age_s: Optional[float]) -> Optional[SlowFacts]:
    """Those of the last time where they are not older than ``max_age_s``, else fresh ones.

    max_age_s None: in a hurry, so only those of the last time, or None.
    """
    state_dir = Path(config.node.state_dir)
    last = _load(state_dir)
    if last is not None and (last.boot != boot or last.time > now):
        last = None
    if max_age_s is None:
        # an answer from hours ago, when the agent was last alive, says nothing about now
        return last if last is not None and now - last.time <= 10 * max(config.check.slow_every_s, 60.0) else None
    if last is not None and max_age_s > 0 and now - last.time < max_age_s:
        return last
    fresh = _ask(config, boot, now, node)
    _keep(state_dir, fresh)
    return fresh


def _ask(config: Config, boot: str, now: float, node: str) -> SlowFacts:
    root = Path(config.probe.root)
    # inside a job they would run as its user, and say something else
    site = [] if inside_job() else run_site_checks(config.check, node)
    services = system.read_services(config.expect.services)
    if root != Path("/"):
        # below another root are the mounts of another machine, and its clock is not to be asked
        return SlowFacts(boot, now, services=services, site=site)
    mounted = {m.path for m in storage.read_mounts(root) or ()}
    wanted = [mount.path for mount, _ in wanted_mounts(config.expect, storage.read_fstab(root))]
    paths = [path for path in dict.fromkeys(wanted) if path in mounted]
    answers = storage.ask_mounts(paths, Path(config.node.state_dir), boot)
    return SlowFacts(boot, now, answers, services, system.read_clock(), site)


def _load(state_dir: Path) -> Optional[SlowFacts]:
    try:
        return msgspec.json.decode((state_dir / FILE).read_bytes(), type=SlowFacts)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def _keep(state_dir: Path, facts: SlowFacts) -> None:
    fresh = state_dir / f".{FILE}.{os.getpid()}"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(msgspec.json.encode(facts))
        fresh.replace(state_dir / FILE)
    except OSError:
        _forget(fresh)


def _forget(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
