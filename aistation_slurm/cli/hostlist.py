"""``aistation hostlist``: Slurm hostlists in scripts."""

from __future__ import annotations

import json
import sys

import click

from aistation_slurm.slurm import hostlist

__all__ = ["command"]


@click.group("hostlist")
def command() -> None:
    """Expand, fold and count Slurm hostlists, by Slurm's own rules. LIST - reads from standard input.

    \b
    Examples:
      aistation hostlist expand 'gpu[1-3,07]'
      aistation hostlist fold gpu1 gpu2 gpu3
      squeue -h -o %N | aistation hostlist count -
    """


def _names(lists: tuple[str, ...]) -> list[str]:
    try:
        texts = [sys.stdin.read() if text == "-" else text for text in lists]
        return [name for text in texts for name in hostlist.expand(text)]
    except hostlist.HostlistError as exc:
        raise click.UsageError(str(exc)) from exc


@command.command("expand")
@click.argument("lists", metavar="LIST...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def expand(lists: tuple[str, ...], as_json: bool) -> None:
    """One name a line, in the order written; a name that is there twice is printed twice, as Slurm does."""
    names = _names(lists)
    if as_json:
        click.echo(json.dumps(names))
    elif names:
        click.echo("\n".join(names))


@command.command("fold")
@click.argument("lists", metavar="LIST...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON text.")
def fold(lists: tuple[str, ...], as_json: bool) -> None:
    """One hostlist of all these names, each once, numbers sorted; 1 and 01 stay different hosts."""
    text = hostlist.fold(_names(lists))
    click.echo(json.dumps(text) if as_json else text)


@command.command("count")
@click.argument("lists", metavar="LIST...", nargs=-1, required=True)
@click.option("--unique", is_flag=True, help="Count a name that is there twice once.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON number.")
def count(lists: tuple[str, ...], unique: bool, as_json: bool) -> None:
    """How many names the lists have."""
    names = _names(lists)
    number = len(set(names)) if unique else len(names)
    click.echo(json.dumps(number) if as_json else str(number))
