"""``aistation explain``: what happened to one job."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Optional

import click

from aistation_slurm.config import Config, load
from aistation_slurm.errors import JournalError, SlurmError, SlurmUnavailable
from aistation_slurm.observe.story import Story, from_journal, from_slurm
from aistation_slurm.recovery.journal import NEW_JOB, Journal
from aistation_slurm.slurm import connect
from aistation_slurm.slurm.client import Job

__all__ = ["command"]


@click.command("explain")
@click.argument("job", metavar="JOB")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(job: str, config_path: Optional[Path], as_json: bool) -> None:
    """Tell the story of JOB (an id, or ARRAY_TASK) in order: starts, faults, decisions, and the seconds lost.

    \b
    On the controller it comes from the watchdog's journal; elsewhere in short from the job's own fields in Slurm.
    Exit codes: 0 told, 3 nothing is known of the job.
    Example: aistation explain 4711
    """
    if not re.fullmatch(r"\d+(_\d+)?", job):
        raise click.BadParameter(f"{job!r} is no job id; expected 4711 or 4711_3", param_hint="JOB")
    story = _tell(load(config_path), job)
    if as_json:
        click.echo(json.dumps(story.as_json(), indent=2))
        return
    _print(story)


def _tell(config: Config, name: str) -> Story:
    present: Optional[Job] = None
    why_not = ""
    try:
        present = next((j for j in connect(config).jobs() if name in (j.argument, str(j.job_id))), None)
    except SlurmError as exc:
        why_not = str(exc)
    job_id = present.job_id if present is not None else int(name.split("_")[0])
    try:
        journal = Journal(Path(config.watchdog.journal), "", read_only=True)
        attempts = journal.attempts(job_id)
        if attempts:
            told = journal.incidents(job_id=job_id)
            first = max((i for i, row in enumerate(told) if row["kind"] == NEW_JOB), default=0)
            return from_journal(job_id, attempts, journal.actions(job_id), told[first:], present)
    except JournalError as exc:
        why_not = why_not or str(exc)
    if present is None:
        text = f"; {why_not}" if why_not else "; Slurm forgets a job MinJobAge seconds after its end"
        raise SlurmUnavailable(f"nothing is known of job {name}{text}")
    return from_slurm(present)


def _print(story: Story) -> None:
    first = next((e.time for e in story.entries if e.time is not None), None)
    click.echo(f"job {story.job_id}: {story.restarts} restarts, {story.idle_s:.0f} s without running between them")
    for entry in story.entries:
        if entry.time is None or first is None:
            click.echo(f"{'':>30}  {entry.text}")
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
        click.echo(f"{when} {entry.time - first:>8.1f} s  {entry.text}")
    if story.source == "slurm":
        click.echo("(in short, from the job's own fields; the controller's journal has the whole story)")
