"""``aistation incidents``: what happened, from the watchdog's journal."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Optional

import click

from aistation_slurm.config import load
from aistation_slurm.recovery.journal import Journal

__all__ = ["command", "parse_since"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_since(text: str, now: float) -> float:
    """``90m``, ``2d``, ``2026-12-01`` or ``2026-12-01T13:00`` (local time) -> unix seconds. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    if match:
        return now - int(match.group(1)) * _UNITS[match.group(2)]
    return datetime.fromisoformat(text).timestamp()


def _since(ctx: click.Context, param: click.Parameter, value: Optional[str]) -> float:
    if not value:
        return 0.0
    try:
        return parse_since(value, time.time())
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no time; expected 90m, 12h, 2d, 1w, 2026-12-01 or 2026-12-01T13:00", ctx, param
        ) from None


@click.command("incidents")
@click.option("--since", callback=_since, metavar="TIME", help="Not older than this: 90m, 12h, 2d, or a date.")
@click.option("--job", "job_id", type=click.IntRange(min=1), default=None, help="Of one job (its raw id).")
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="At most the newest so many."
)
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(since: float, job_id: Optional[int], limit: int, config_path: Optional[Path], as_json: bool) -> None:
    """List what happened: faults, requeues, holds, and what was left alone and why. Newest last."""
    journal = Journal(Path(load(config_path).watchdog.journal), "", read_only=True)
    rows = journal.incidents(since=since, job_id=job_id or 0, limit=limit)
    if as_json:
        keys = ("time", "kind", "node", "job_id", "text")
        click.echo(json.dumps({"incidents": [{key: row[key] for key in keys} for row in rows]}, indent=2))
        return
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"]))
        job = f"job {row['job_id']}" if row["job_id"] else "-"
        click.echo(f"{when}  {job:<12} {row['kind']:<12} {row['text']}")
