"""``aistation heal``: one step of self-healing of this node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

import click

from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.config import load
from aistation_slurm.errors import ConfigError, ProbeError

__all__ = ["command"]

_FINE = ("none", "returned", "left")


@click.command("heal")
@click.argument("node", required=False)
@click.option("--dry-run", "dry", is_flag=True, help="Say what would be done next; do and remember nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")
@click.pass_context
def command(ctx: click.Context, node: Optional[str], dry: bool, as_json: bool, config_path: Optional[Path]) -> None:
    """Heal this node one step further: reset, site command or reboot, then checks, then back to service or to a person.

    Only where AIStation itself drained it, and while no job, step or GPU process is on it. Run it on the node, as root, from
    cron where no agent runs. NODE may name this very node, as a safeguard. Needs [healing] enabled = true.

    \b
    Exit codes: 0 nothing (more) to do, 1 it is under way or waits, for a person too, 2 wrong usage, 3 could not run.
    Examples:
      aistation heal --dry-run     what would be done, and why
      aistation heal               the next step
      aistation heal gpu7 --json   with the case's history, on gpu7 itself
    """
    from aistation_slurm.healing.healer import Healer, full_check
    from aistation_slurm.node import nodelog
    from aistation_slurm.node.own_name import OwnName
    from aistation_slurm.node.publish import publish
    from aistation_slurm.probes.host import inside_job
    from aistation_slurm.slurm import connect

    config = load(config_path)
    if not config.healing.enabled and not dry:
        raise ConfigError("healing is off; set enabled = true in [healing], or look with --dry-run")
    if inside_job():
        raise ProbeError("heal refuses inside a job: only the job's own devices can be seen from here")
    client, own = connect(config), OwnName(config.node.state_dir)

    def name() -> str:
        found = own.certain(client)
        if node is not None and node != found:
            raise click.UsageError(f"this node is {found}, not {node}; run heal on the node itself")
        return found

    healer = Healer(
        config,
        client,
        name,
        check=lambda: full_check(config, name()),
        publish=lambda report: publish(report, config),
        say=lambda text: nodelog.say("heal", text, config.node.state_dir),
    )
    result = healer.step(dry=dry)
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        click.echo(result.text)
    ctx.exit(EXIT_OK if result.kind in _FINE else EXIT_PROBLEM)
