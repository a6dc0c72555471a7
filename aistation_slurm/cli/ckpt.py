"""``aistation ckpt``: which checkpoints a directory holds and what a restart would resume from."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from aistation_slurm.checkpoints.choose import PLACEHOLDERS
from aistation_slurm.checkpoints.choose import resume_args as make_args
from aistation_slurm.checkpoints.folder import plain
from aistation_slurm.checkpoints.inspect import FRAMEWORKS, Inspection
from aistation_slurm.checkpoints.inspect import inspect as look
from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.config import load
from aistation_slurm.errors import CheckpointError

__all__ = ["command"]

_KNOWN = ", ".join(FRAMEWORKS)
_TEMPLATE_HELP = "Template, e.g. '--load {path} --step {step}'; placeholders: " + " ".join(
    f"{{{name}}}" for name in PLACEHOLDERS
)


@click.group("ckpt")
def command() -> None:
    """Inspect checkpoint directories. Reads names, headers, ends and sizes; never unpickles, never writes."""


@command.command("inspect")
@click.argument("directory", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--framework",
    default="auto",
    show_default=True,
    metavar="NAME",
    help=f"Layout to look for: {_KNOWN}, or the site's own.",
)
@click.option("--resume-args", default="", metavar="TEMPLATE", help=_TEMPLATE_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def inspect(ctx: click.Context, directory: Path, framework: str, resume_args: str, as_json: bool) -> None:
    """List every checkpoint in DIRECTORY, newest first, valid or why not, and the one to resume from.

    A site's own layouts are described in /etc/aistation/aistation.toml ($AISTATION_CONFIG), [[checkpoints.layout]].
    Warnings (a tracker that points at a missing checkpoint, a dangling link, ...) do not change the exit code.

    \b
    Arguments by framework, where --resume-args gives none:
      megatron   --load {dir} --ckpt-step {step}       (arguments.py; without the step for 'release')
      deepspeed  --load_dir {dir} --ckpt_id {tag}      (Getting Started's names; most scripts need --resume-args)
      hf         --resume_from_checkpoint {path}       (TrainingArguments)
      lightning  --ckpt_path {path}                    (LightningCLI fit)
      dcp        --checkpoint.load_step {step}         (torchtitan, folders step-N), else --checkpoint_id {path}
      nemo       ++exp_manager.resume_from_checkpoint="{path}"

    \b
    Exit codes: 0 there is something to resume from, or nothing was saved yet;
                1 checkpoints are there but none is valid, or no resume arguments can be made from the chosen one;
                2 wrong usage; 3 DIRECTORY is missing or cannot be read, or the configuration is wrong.
    Examples:
      aistation ckpt inspect /ckpt/run7
      aistation ckpt inspect /ckpt/run7 --framework megatron --resume-args '--load {dir} --ckpt-step {step}' --json
    """
    layouts = [] if framework in FRAMEWORKS[1:] else [layout.layout() for layout in load().checkpoints.layout]
    names = (*FRAMEWORKS, *(layout.name for layout in layouts))
    if framework not in names:
        raise click.BadParameter(f"{plain(framework)!r} is not one of {', '.join(names)}", param_hint="'--framework'")
    found = look(directory, framework, layouts=layouts)
    args, problem = "", found.unusable
    if found.resume is not None:
        try:
            args = make_args(found.resume, resume_args)
        except CheckpointError as exc:
            problem = str(exc)
    if as_json:
        click.echo(json.dumps(found.as_json(resume_args), indent=2))
    else:
        _print(found, args, problem)
    ctx.exit(EXIT_PROBLEM if problem else EXIT_OK)


def _print(found: Inspection, args: str, problem: str) -> None:
    from rich.text import Text

    from aistation_slurm.cli import screen  # rich is not loaded for --json

    console = screen.console()
    if found.checkpoints:
        table = screen.table(
            "",
            "step",
            "checkpoint",
            "framework",
            "saved",
            "why",
            fixed=5,
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        for row in found.checkpoints:
            table.add_row(
                Text("ok", "green") if row.valid else Text("bad", "red"),
                "-" if row.step is None else str(row.step),
                Text(plain(_relative(row.path, found.directory)), "bold" if row is found.resume else ""),
                row.framework,
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.mtime)) if row.mtime else "-",
                Text(row.why),
            )
        console.print(table)
    else:
        console.print(Text(f"{plain(str(found.directory))}: no checkpoint yet"))
    for warning in found.warnings:
        console.print(Text(f"warning: {warning}", "yellow"))
    if found.resume is not None:
        step = "an unknown step" if found.resume.step is None else f"step {found.resume.step}"
        console.print(Text(f"resume from {plain(str(found.resume.path))} ({step})", "bold"))
    if args:
        console.print(Text(f"arguments   {args}"))
    if problem:
        console.print(Text(problem, "bold red"))


def _relative(path: Path, directory: Path) -> str:
    """The path below the inspected directory, or its name where it is that directory."""
    try:
        inside = str(path.relative_to(directory))
    except ValueError:
        return str(path)
    return path.name if inside == "." else inside
