"""``aistation watchdog``: recovery on the controller."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any, Optional

import click

from aistation_slurm.cli import EXIT_OK
from aistation_slurm.config import Config, load
from aistation_slurm.errors import JournalError
from aistation_slurm.recovery.clock import SystemClock
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.recovery.watchdog import Watchdog
from aistation_slurm.slurm import connect

__all__ = ["command"]

_config = click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")


@click.group("watchdog")
def command() -> None:
    """Requeue failed jobs away from bad nodes. Runs on the controller as SlurmUser."""


@command.command("run")
@_config
def run(config_path: Optional[Path]) -> None:
    """Run until SIGTERM. Safe to kill at any instant: the next run goes on from the journal and from Slurm."""
    watchdog, lock = _start(load(config_path))

    def stop(*_: object) -> None:
        watchdog.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        watchdog.run()
    finally:
        os.close(lock)


@command.command("once")
@_config
def once(config_path: Optional[Path]) -> None:
    """One look, for cron or for trying things out. A recovery takes several."""
    watchdog, lock = _start(load(config_path))
    try:
        watchdog.cycle()
    finally:
        os.close(lock)


@command.command("status")
@_config
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def status(ctx: click.Context, config_path: Optional[Path], as_json: bool) -> None:
    """Say whether a watchdog runs here and what it did last."""
    config = load(config_path)
    path = Path(config.watchdog.journal)
    journal = Journal(path, "", read_only=True)
    recent = journal.incidents(limit=5)
    found: dict[str, Any] = {
        "running": _locked(path),
        "mode": config.watchdog.mode or config.mode,
        "journal": str(path),
        "recent": recent,
    }
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"watchdog {'runs' if found['running'] else 'does not run'} on this host, mode {found['mode']}")
        for row in recent:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"]))
            click.echo(f"{when}  job {row['job_id'] or '-'}  {row['text']}")
    ctx.exit(EXIT_OK if found["running"] else 1)


def _start(config: Config) -> tuple[Watchdog, int]:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    path = Path(config.watchdog.journal)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        raise JournalError(f"{path}: another watchdog holds it; one per cluster is enough") from exc
    client = connect(config)
    cluster = _cluster_name(client)
    spool = Path(config.watchdog.spool_dir)
    if not spool.is_dir():
        logging.getLogger(__name__).warning("%s does not exist: only the slow poll will see faults", spool)
    return Watchdog(config, client, Journal(path, cluster), SystemClock()), lock


def _cluster_name(client: Any) -> str:
    """Wait for the controller at start: the journal's keys carry the cluster's name."""
    from aistation_slurm.errors import SlurmUnavailable

    said = False
    while True:
        try:
            return str(client.cluster_name())
        except SlurmUnavailable as exc:
            if not said:
                logging.getLogger(__name__).warning("waiting for Slurm: %s", exc)
            said = True
            time.sleep(2)


def _locked(path: Path) -> bool:
    try:
        fd = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)
