"""``aistation watchdog``: recovery on the controller."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any, Optional

import click
import msgspec

from aistation_slurm import log_line
from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.config import Config, load
from aistation_slurm.config.reload import Reloader
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.placement.refresher import Refresher
from aistation_slurm.recovery.acting import ActingClient
from aistation_slurm.recovery.clock import SystemClock
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.recovery.kill_time import KillTime
from aistation_slurm.recovery.primary import Primary
from aistation_slurm.recovery.single import runs_here, take_place
from aistation_slurm.recovery.watchdog import Watchdog
from aistation_slurm.slurm import SlurmClient, connect

__all__ = ["command"]

log = logging.getLogger(__name__)

RESTART = ("slurm", "watchdog.journal")
"""Settings that a running watchdog cannot change (SIGHUP)."""
WAIT_FOR_SLURM_S = 2.0
PLACEMENT_S = 60.0
"""`once` waits so long for the decision table and the corrections of pending jobs."""

_config = click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")
_observe = click.option("--observe", is_flag=True, help="Change nothing: journal and print what would be done.")


@click.group("watchdog")
def command() -> None:
    """Requeue failed jobs away from bad nodes. Runs on the controller, as SlurmUser."""


@command.command("run")
@_config
@_observe
def run(config_path: Optional[Path], observe: bool) -> None:
    """Run until SIGTERM. Safe to kill at any instant: the next run goes on from the journal and from Slurm.

    With a backup controller one runs on each controller host; that of the controller in control acts. SIGHUP: read
    aistation.toml anew; a file that cannot be used is said in the log, and changes nothing.
    """
    config = _settings(config_path, observe)
    reloader = Reloader(RESTART, config_path)
    place = take_place(Path(config.watchdog.journal))
    try:
        client = connect(config)
        primary = Primary(config.slurm, SystemClock())
        placement = _placement(config)
        journal = Journal(Path(config.watchdog.journal), _wait_for_cluster_name(client))
        watchdog = _watchdog(config, client, journal, primary, placement)
        ended = reload = False

        def stop(*_: object) -> None:
            nonlocal ended
            ended = watchdog.stopping = True

        def hang_up(*_: object) -> None:
            nonlocal reload
            primary.ask_again()
            reload = watchdog.stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, hang_up)
        while not ended:
            if reload:
                # a new one goes on from the journal, as after a kill: nothing is lost or done twice
                reload = False
                config = _observing(reloader.reload(config) or config, observe)
                placement.reconfigure(config)
                watchdog = _watchdog(config, client, journal, primary, placement)
            if not (ended or reload):
                watchdog.run()
        log.info("stopped")
    finally:
        os.close(place)


@command.command("once")
@_config
@_observe
def once(config_path: Optional[Path], observe: bool) -> None:
    """Take one look and the steps that are due, for cron or for trying things out. A recovery takes several."""
    config = _settings(config_path, observe)
    place = take_place(Path(config.watchdog.journal))
    try:
        client = connect(config)
        primary = Primary(config.slurm, SystemClock())
        placement = _placement(config)
        journal = Journal(Path(config.watchdog.journal), client.cluster_name())
        watchdog = _watchdog(config, client, journal, primary, placement)
        watchdog.cycle(everything=True)
        placement.wait(PLACEMENT_S)
        if not primary.acts():
            click.echo(primary.state)
        elif watchdog.busy:
            click.echo("a recovery is under way: run this again, or let `aistation watchdog run` do it")
    finally:
        os.close(place)


@command.command("status")
@_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def status(ctx: click.Context, config_path: Optional[Path], as_json: bool) -> None:
    """Say whether a watchdog runs here and what it did last. Exit code 1 where none runs."""
    config = load(config_path)
    path = Path(config.watchdog.journal)
    running = runs_here(path)
    recent = Journal(path, "", read_only=True).incidents(limit=5) if running or path.exists() else []
    primary = Primary(config.slurm, SystemClock())
    if running:
        primary.acts()
    found: dict[str, Any] = {
        "running": running,
        "turn": primary.state if running else "",
        "mode": config.watchdog.mode or config.mode,
        "journal": str(path),
        "spool": config.watchdog.spool_dir,
        "waiting_events": len(list(Path(config.watchdog.spool_dir).glob("*.ev"))),
        "recent": recent,
    }
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"watchdog {'runs' if running else 'does not run'} on this host, mode {found['mode']}")
        if running:
            click.echo(primary.state)
        click.echo(f"{found['waiting_events']} events wait in {found['spool']}")
        for row in recent:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"]))
            click.echo(f"{when}  job {row['job_id'] or '-'}  {row['text']}")
    ctx.exit(EXIT_OK if running else EXIT_PROBLEM)


def _settings(path: Optional[Path], observe: bool) -> Config:
    log_line.start(logging.INFO, "%(asctime)s %(levelname)s %(message)s")
    return _observing(load(path), observe)


def _observing(config: Config, observe: bool) -> Config:
    if not observe:
        return config
    return msgspec.structs.replace(
        config,
        watchdog=msgspec.structs.replace(config.watchdog, mode="observe"),
        placement=msgspec.structs.replace(config.placement, mode="observe"),
    )


def _watchdog(
    config: Config, client: SlurmClient, journal: Journal, primary: Primary, placement: Refresher
) -> Watchdog:
    spool = config.watchdog.spool_dir
    if not Path(spool).is_dir():
        log.warning("%s does not exist: faults are only seen every %g s", spool, config.watchdog.poll_s)
    mode = "acts" if config.enforcing(config.watchdog) else "only observes"
    log.info("watchdog of cluster %s %s; journal %s", journal.cluster, mode, config.watchdog.journal)
    clock = SystemClock()
    return Watchdog(config, client, journal, clock, primary, placement, KillTime(config.slurm, clock))


def _placement(config: Config) -> Refresher:
    """With a client and a proof of being in control of its own: it works in a thread beside the watchdog's."""
    return Refresher(config, ActingClient(connect(config), Primary(config.slurm, SystemClock())))


def _wait_for_cluster_name(client: SlurmClient) -> str:
    """The journal's keys carry the cluster's name, so the first thing needed is a controller that answers."""
    said = False
    while True:
        try:
            return client.cluster_name()
        except SlurmUnavailable as exc:
            if not said:
                log.warning("waiting for Slurm: %s", exc)
            said = True
            time.sleep(WAIT_FOR_SLURM_S)
