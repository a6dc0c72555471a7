"""``aistation hostlist``: Slurm hostlists in scripts."""

from __future__ import annotations

import json

import click

from aistation_slurm.slurm import hostlist

__all__ = ["command"]


@click.group("hostlist")
def command() -> None:
    """Expand, fold and count Slurm hostlists.

    \b
    Examples:
      aistation hostlist expand 'gpu[1-3,07]'
      aistation hostlist fold gpu1 gpu2 gpu3
    """


def _names(lists: tuple[str, ...]) -> list[str]:
    return [name for text in lists for name in hostlist.expand(text)]


@command.command("expand")
@click.argument("lists", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def expand(lists: tuple[str, ...], as_json: bool) -> None:
    """One name a line, in the order written."""
    names = _names(lists)
    if as_json:
        click.echo(json.dumps(names))
    else:
        click.echo("".join(f"{name}\n" for name in names), nl=False)


@command.command("fold")
@click.argument("lists", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON text.")
def fold(lists: tuple[str, ...], as_json: bool) -> None:
    """These names as one hostlist, in the order given, each name once."""
    text = hostlist.fold(_names(lists), keep_order=True)
    click.echo(json.dumps(text) if as_json else text)


@command.command("count")
@click.argument("lists", nargs=-1, required=True)
@click.option("--unique", is_flag=True, help="Count a name that stands twice only once.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON number.")
def count(lists: tuple[str, ...], unique: bool, as_json: bool) -> None:
    """How many names, as ``expand | wc -l`` would say."""
    names = _names(lists)
    number = len(set(names)) if unique else len(names)
    click.echo(json.dumps(number) if as_json else str(number))
