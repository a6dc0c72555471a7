"""``aistation ckpt``: what a restart would resume from."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aistation_slurm.checkpoints.choose import resume_args
from aistation_slurm.checkpoints.inspect import FRAMEWORKS, Inspection
from aistation_slurm.checkpoints.inspect import inspect as look
from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.errors import CheckpointError

__all__ = ["command"]


@click.group("ckpt")
def command() -> None:
    """Inspect checkpoint directories. Reads headers and sizes; never unpickles, never writes."""


@command.command("inspect")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--framework", type=click.Choice(FRAMEWORKS), default="auto", show_default=True, help="Layout to look for."
)
@click.option("--resume-args", default="", metavar="TEMPLATE", help="Template, e.g. '--load {path} --step {step}'.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def inspect(ctx: click.Context, directory: Path, framework: str, resume_args: str, as_json: bool) -> None:
    """List every checkpoint in DIRECTORY, valid or why not, and the one to resume from.

    \b
    Exit codes: 0 something to resume from, or nothing saved yet; 1 checkpoints are there and none is valid;
    3 the directory cannot be read.
    Example: aistation ckpt inspect /ckpt/run7 --framework megatron
    """
    found = look(directory, framework)
    if as_json:
        click.echo(json.dumps(found.as_json(resume_args), indent=2))
    else:
        _table(found, resume_args)
    ctx.exit(EXIT_PROBLEM if found.checkpoints and found.resume is None else EXIT_OK)


def _table(found: Inspection, template: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(soft_wrap=True)
    if not found.checkpoints:
        console.print(f"{escape(str(found.directory))}: no checkpoint yet", highlight=False)
    else:
        table = Table("step", "checkpoint", "layout", "valid", "why not")
        for row in found.checkpoints:
            step = "?" if row.step is None else str(row.step)
            name = ascii(str(row.path))[1:-1]
            table.add_row(step, escape(name), row.framework, "yes" if row.valid else "no", escape(row.why))
        console.print(table)
    for warning in found.warnings:
        console.print(f"warning: {escape(warning)}", style="yellow", highlight=False)
    if found.resume is not None:
        console.print(f"resume from: {escape(ascii(str(found.resume.path))[1:-1])}", style="bold", highlight=False)
        try:
            console.print(f"arguments:   {escape(resume_args(found.resume, template))}", highlight=False)
        except CheckpointError as exc:
            console.print(f"arguments:   none: {escape(str(exc))}", style="red", highlight=False)
    elif found.checkpoints:
        console.print("none of them is valid: a restart would begin at step 0", style="bold red")
