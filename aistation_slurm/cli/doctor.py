"""``aistation doctor``: is this site's Slurm configured so that AIStation works?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Optional

import click

from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.config import load
from aistation_slurm.doctor.collect import collect, find_conf
from aistation_slurm.doctor.diagnose import diagnose
from aistation_slurm.doctor.model import NEWEST, Item, Severity, Site
from aistation_slurm.topology.shapes import plural
from aistation_slurm.topology.validate import parse_version

__all__ = ["command"]


def _release(_ctx: click.Context, _param: click.Parameter, text: Optional[str]) -> Optional[tuple[int, int]]:
    try:
        return parse_version(text) if text else None
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command("doctor")
@click.option("--slurm-conf", type=click.Path(path_type=Path), metavar="FILE", help="slurm.conf to judge.")
@click.option("--offline", is_flag=True, help="Judge the files alone: ask no daemon, look at no file that they name.")
@click.option("--slurm-version", "release", callback=_release, metavar="YY.MM", help="Release to judge by, offline.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), metavar="FILE", help="aistation.toml to use.")
@click.option("--prefix", default="", metavar="DIR", help="Where AIStation is installed. [default: where this one is]")
@click.option("--ignore", multiple=True, metavar="RULE", help="Leave out a rule that the site has its reasons for.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    slurm_conf: Optional[Path],
    offline: bool,
    release: Optional[tuple[int, int]],
    config_path: Optional[Path],
    prefix: str,
    ignore: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check the site's Slurm configuration and its running daemons; say what to change, where, and why. Changes nothing.

    Reads slurm.conf with its includes, gres.conf, cgroup.conf, plugstack.conf and the topology, asks scontrol, and looks at
    the files that Slurm runs on this host: run it on the controller and on a node.

    \b
    Exit codes: 0 no error and no warning (there may be notes), 1 an error or a warning, 3 slurm.conf cannot be read.
    Examples:
      aistation doctor
      clush -bw @compute aistation doctor --json
      aistation doctor --offline --slurm-conf site/slurm.conf --slurm-version 24.11
    """
    config = load(config_path)
    site = collect(config, slurm_conf or find_conf(config), offline=offline, release=release, prefix=prefix)
    items = [item for item in diagnose(site) if item.rule not in ignore]
    if as_json:
        click.echo(json.dumps(_as_json(site, items), indent=2))
    else:
        _print(site, items)
    ctx.exit(EXIT_PROBLEM if any(item.severity is not Severity.NOTE for item in items) else EXIT_OK)


def _place(item: Item) -> str:
    return f"{item.file}:{item.line}" if item.file and item.line else item.file


def _print(site: Site, items: list[Item]) -> None:
    for item in items:
        click.echo(f"{item.severity.value}: {item.message}  [{item.rule}]")
        if item.file:
            click.echo(f"    where   {_place(item)}")
        click.echo(f"    why     {item.why}")
        if item.change:
            click.echo(f"    change  {item.change}")
    for text in site.unlooked:
        click.echo(f"not looked at: {text}")
    count = Counter(item.severity for item in items)
    said = ", ".join(plural(count[severity], severity.value) for severity in Severity)
    click.echo(f"{site.conf.path}{_judged_by(site)}: {said}")


def _judged_by(site: Site) -> str:
    return "" if site.version == NEWEST else f" (Slurm {site.version[0]}.{site.version[1]:02d})"


def _as_json(site: Site, items: list[Item]) -> dict[str, Any]:
    return {
        "slurm_conf": site.conf.path,
        "slurm_release": None if site.version == NEWEST else f"{site.version[0]}.{site.version[1]:02d}",
        "host": site.host.name if site.host is not None else None,
        "problems": [
            {
                "rule": item.rule,
                "severity": item.severity.value,
                "message": item.message,
                "why": item.why,
                "change": item.change,
                "file": item.file or None,
                "line": item.line or None,
            }
            for item in items
        ],
        "not_looked_at": list(site.unlooked),
    }
