"""``aistation check``: one node, now."""

from __future__ import annotations

import dataclasses
import json
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Optional

import click
import msgspec

from aistation_slurm.cli import EXIT_COULD_NOT_RUN, EXIT_OK, EXIT_PROBLEM
from aistation_slurm.config import Config, load
from aistation_slurm.detectors import ALL
from aistation_slurm.errors import AistationError, ProbeError, StateFileError
from aistation_slurm.findings import Status
from aistation_slurm.node.health import NodeReport, check_capture, check_node
from aistation_slurm.probes.host import inside_job

__all__ = ["command"]

EXIT_OF = {Status.OK: EXIT_OK, Status.WARN: EXIT_OK, Status.FAIL: EXIT_PROBLEM, Status.UNKNOWN: EXIT_COULD_NOT_RUN}


@click.command("check")
@click.option("--profile", type=click.Choice(["quick", "full"]), default="quick", show_default=True)
@click.option(
    "--only", multiple=True, metavar="CHECK", help="Only these checks; shell patterns, e.g. 'gpu.*'. Repeatable."
)
@click.option(
    "--root", type=click.Path(path_type=Path), help="Judge a captured tree that holds sys/ and proc/ instead."
)
@click.option("--act", is_flag=True, help="Drain this node for a failed local check, and write its state file.")
@click.option("--learn", is_flag=True, help="Print what this node has as the [expect] section of aistation.toml.")
@click.option(
    "--explain", "explained", is_flag=True, help="Say for each verdict which fact, which limit, which source."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")
@click.pass_context
def command(
    ctx: click.Context,
    profile: str,
    only: tuple[str, ...],
    root: Optional[Path],
    act: bool,
    learn: bool,
    explained: bool,
    as_json: bool,
    config_path: Optional[Path],
) -> None:
    """Check the health of this node.

    \b
    Exit codes: 0 fine (warnings too), 1 a check failed, 2 wrong usage, 3 something could not be judged and nothing failed.
    Examples:
      aistation check
      aistation check --only 'fabric.*' --json
      aistation check --explain              which fact, which limit, which source, and who acts on it
      aistation check --learn > expect.toml  on a node that is known to be in order
      aistation check --act                  from cron or HealthCheckProgram
      aistation check --root /tmp/capture    a tree copied from another node (beside sys/: its dmesg, nvidia-smi*, lspci*)
    """
    for pattern in only:
        if not pattern.startswith("site.") and not any(fnmatchcase(check, pattern) for check in ALL):
            raise click.UsageError(f"--only {pattern}: no such check. There are: {', '.join(ALL)}")
    if act and root is not None:
        raise click.UsageError("--act judges this node and --root another one: give only one of them")
    if learn and (act or only or as_json):
        raise click.UsageError("--learn prints TOML and needs every check: leave --act, --only and --json out")
    if act and only:
        raise click.UsageError("--act writes the node's state, which needs every check: leave --only out")
    config = load(config_path)
    if root is not None:
        if not (root / "sys").is_dir() and not (root / "proc").is_dir():
            raise ProbeError(f"{root}: holds neither sys/ nor proc/; name the folder that has them")
        report = check_capture(root, config, now=time.time(), only=only)
    else:
        if act and inside_job():
            raise ProbeError("--act refuses inside a job: only the job's own devices can be seen from here")
        report = _check_here(config, profile, only, act)
    if learn:
        _learn(report, config, root)
    elif as_json:
        click.echo(json.dumps(_json(report, config if explained else None), indent=2))
    else:
        _table(report)
        if explained:
            _say_why(report, config)
    ctx.exit(EXIT_OF[report.status] if report.findings else EXIT_COULD_NOT_RUN)


def _check_here(config: Config, profile: str, only: tuple[str, ...], act: bool) -> NodeReport:
    from aistation_slurm.node import history
    from aistation_slurm.node.own_name import OwnName
    from aistation_slurm.slurm import connect

    own_name = OwnName(config.node.state_dir)
    if act and not own_name.known():
        try:
            own_name.certain(connect(config))
        except AistationError:
            pass  # said where something is to be done to this node
    # what was repaired since the log was written is known to the node's own memory
    report = check_node(
        config,
        profile=profile,
        only=only,
        now=time.time(),
        events=history.events(config),
        node=own_name.guess(),
        slow_max_age_s=0.0,
    )
    if act:
        _act(config, report)
    return report


def _learn(report: NodeReport, config: Config, root: Optional[Path]) -> None:
    from aistation_slurm.node import fabric_look
    from aistation_slurm.node.learn import learned

    if root is None:
        ports, _ = fabric_look.look(config, report.boot_id)
    else:
        config = msgspec.structs.replace(config, probe=msgspec.structs.replace(config.probe, root=str(root)))
        ports, _ = fabric_look.look_at_capture(root, config, report.time)
    click.echo(learned(report, ports, config), nl=False)


def _act(config: Config, report: NodeReport) -> None:
    from aistation_slurm.node.drain import drain_for
    from aistation_slurm.node.own_name import OwnName
    from aistation_slurm.node.publish import publish
    from aistation_slurm.node.settle import settle_without_agent
    from aistation_slurm.slurm import connect

    try:
        publish(report, config)
    except StateFileError as exc:
        # a full or read-only /run hides the state from the gate; a sick node is drained all the same
        click.echo(f"aistation: state not written: {exc}", err=True)
    client, own_name = connect(config), OwnName(config.node.state_dir)
    try:
        # first, so that a drain which Slurm set for a refused job is our own by the time of the next step
        _say(settle_without_agent(config, own_name, client, time.time()))
    except AistationError as exc:
        _say(f"refused jobs are not yet made known to Slurm: {exc}")
    try:
        if any(finding.drains for finding in report.findings):
            report = dataclasses.replace(report, node=own_name.certain(client))
        _say(drain_for(report, config, client))
    except AistationError as exc:
        _say(f"not drained: {exc}")


def _json(report: NodeReport, config: Optional[Config]) -> dict[str, Any]:
    """config: given where each finding is to be explained."""
    out = report.as_json()
    if config is not None:
        from aistation_slurm.detectors.explain import explain

        for row, finding in zip(out["findings"], report.findings):
            row["explain"] = explain(finding, config).as_json()
    return out


def _say_why(report: NodeReport, config: Config) -> None:
    from aistation_slurm.detectors.explain import explain

    for finding in sorted(report.findings, key=lambda f: (-f.status.rank, f.check, f.subject)):
        why = explain(finding, config)
        limits = ", ".join(f"{key} = {'unset' if value is None else value}" for key, value in why.limits.items())
        click.echo(f"\n{finding.check} {finding.status.value}: {finding.subject}")
        click.echo(f"  a fail means  {why.means}")
        click.echo(f"  fact          {finding.evidence}")
        click.echo(f"  limit         {limits or 'none that can be set'}")
        click.echo(f"  source        {why.facts}")
        if why.rule:
            click.echo(f"  [checks]      {why.rule}")
        click.echo(f"  acts          {why.acts}")


def _say(text: str) -> None:
    if text:
        click.echo(f"aistation: {text}", err=True)


def _table(report: NodeReport) -> None:
    from rich.text import Text

    from aistation_slurm.cli import screen

    styles = {Status.FAIL: "bold red", Status.WARN: "yellow", Status.UNKNOWN: "magenta", Status.OK: "green"}
    console = screen.console()
    console.print(Text(f"{report.node}: {report.status.value}", style=styles[report.status]))
    if not report.findings:
        console.print("nothing to check was found")
        return
    table = screen.table("check", "status", "subject", "evidence", "action", fixed=3)
    order = sorted(report.findings, key=lambda f: (-f.status.rank, f.check, f.subject))
    for finding in order:
        row = (finding.check, finding.status.value, finding.subject, finding.evidence, finding.action.value)
        table.add_row(*map(Text, row), style=styles[finding.status] if finding.status is not Status.OK else "")
    console.print(table)
