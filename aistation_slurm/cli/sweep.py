"""``aistation sweep``: many nodes at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import click
import msgspec

from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.config import Config, load
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.findings import Status

if TYPE_CHECKING:
    from aistation_slurm.slurm.client import Node, SlurmClient
    from aistation_slurm.sweep.actor import Deed
    from aistation_slurm.sweep.answers import NodeAnswer
    from aistation_slurm.sweep.fanout import Fanout
    from aistation_slurm.sweep.gather import Group
    from aistation_slurm.sweep.targets import Target

__all__ = ["command"]

STYLES = {Status.FAIL: "bold red", Status.WARN: "yellow", Status.UNKNOWN: "magenta", Status.OK: "green"}


@click.command("sweep")
@click.argument("words", nargs=-1, metavar="[NODES]...")
@click.option("--profile", type=click.Choice(["quick", "full"]), default="quick", show_default=True)
@click.option("--only", multiple=True, metavar="CHECK", help="Only these checks; shell patterns. Repeatable.")
@click.option("--act", is_flag=True, help="Let failed nodes drain themselves, few at a time.")
@click.option(
    "--return-to-service", "back", is_flag=True, help="Give back our own drains whose nodes pass every check."
)
@click.option("--dry-run", "dry", is_flag=True, help="With these two: say what would be done, change nothing.")
@click.option("--passes", type=click.IntRange(1, 100), help="Passes before a node is given back.  [sweep.passes]")
@click.option("--via", type=click.Choice(["ssh", "slurm", "command"]), help="How nodes are asked.  [sweep.via]")
@click.option("--fanout", type=click.IntRange(1, 4096), help="Nodes asked at the same time.  [sweep.fanout]")
@click.option("--timeout", type=click.FloatRange(1, 86400), help="Seconds for one node's answer.  [sweep.timeout_s]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")
@click.pass_context
def command(
    ctx: click.Context,
    words: tuple[str, ...],
    profile: str,
    only: tuple[str, ...],
    act: bool,
    back: bool,
    dry: bool,
    passes: Optional[int],
    via: Optional[str],
    fanout: Optional[int],
    timeout: Optional[float],
    as_json: bool,
    config_path: Optional[Path],
) -> None:
    """Check many nodes at once: hostlists, @partition, or all nodes of Slurm.

    Nodes that power saving has switched off are left out. A node that cannot be reached, does not answer in time or answers
    something else is unknown; nobody is drained for that.

    \b
    Exit codes: 0 every node is fine (warnings too), 1 a node failed or is unknown, 2 wrong usage, 3 could not run.
    Examples:
      aistation sweep                               every node
      aistation sweep gpu[1-64] --profile full      these nodes, every check
      aistation sweep @train --only 'fabric.*'      one partition, the fabric only
      aistation sweep --act --dry-run               who would be drained, and who not, and why
      aistation sweep --act                         from cron or aistation-sweep.timer
      aistation sweep gpu7 --return-to-service      give it back after its repair
      aistation sweep --via slurm                   without ssh: what nodes have told Slurm
    """
    if dry and not (act or back):
        raise click.UsageError("--dry-run goes with --act or --return-to-service; a sweep alone changes nothing")
    if act and only:
        raise click.UsageError("--act needs every check: leave --only out")
    config = _settings(load(config_path), via, fanout, timeout, passes)
    if (act or back) and config.sweep.via == "slurm":
        raise click.UsageError(
            "--via slurm asks no node, so it cannot act: nodes drain themselves (agent, HealthCheckProgram) and are given "
            "back by `aistation heal` there"
        )
    _sweep(ctx, config, words, ["--profile", profile, *(f"--only={check}" for check in only)], act, back, dry, as_json)


def _settings(
    config: Config, via: Optional[str], fanout: Optional[int], timeout: Optional[float], passes: Optional[int]
) -> Config:
    given = {"via": via, "fanout": fanout, "timeout_s": timeout, "passes": passes}
    changed = {key: value for key, value in given.items() if value is not None}
    try:
        return msgspec.structs.replace(config, sweep=msgspec.structs.replace(config.sweep, **changed))
    except ValueError as exc:
        raise click.UsageError(f"[sweep] {exc}") from exc


def _sweep(
    ctx: click.Context,
    config: Config,
    words: Sequence[str],
    options: Sequence[str],
    act: bool,
    back: bool,
    dry: bool,
    as_json: bool,
) -> None:
    from aistation_slurm.slurm import connect
    from aistation_slurm.slurm.hostlist import HostlistError
    from aistation_slurm.sweep.actor import Actor
    from aistation_slurm.sweep.fanout import Fanout
    from aistation_slurm.sweep.gather import gather
    from aistation_slurm.sweep.lock import only_sweep
    from aistation_slurm.sweep.targets import UnknownNodes, choose

    client = connect(config)
    nodes = _nodes(client, needed=act or back or config.sweep.via == "slurm")
    try:
        targets, skipped = choose(words, nodes)
    except (HostlistError, UnknownNodes) as exc:
        raise click.UsageError(str(exc)) from exc
    if not config.enforcing(config.sweep) and (act or back) and not dry:
        _say("observe mode: nothing is changed")
        dry = True
    fanout, deeds = Fanout(config.sweep), list[Any]()
    with only_sweep(config.node.state_dir) if (act or back) and not dry else nullcontext():
        answers = _answers(config, targets, fanout, options)
        actor = Actor(config, client, fanout, dry, _say)
        if act:
            deeds += actor.drain(answers, targets)
        if back:
            gone = {deed.node for deed in deeds}
            deeds += actor.give_back([target for target in targets if target.name not in gone])
    groups = gather(answers)
    if as_json:
        click.echo(json.dumps(_json(answers, groups, skipped, deeds, config, nodes is not None), indent=2))
    else:
        _print(answers, groups, skipped, deeds, targets)
    fine = all(answer.status in (Status.OK, Status.WARN) for answer in answers)
    ctx.exit(EXIT_OK if fine else EXIT_PROBLEM)


def _nodes(client: SlurmClient, needed: bool) -> Optional[list[Node]]:
    try:
        return client.nodes()
    except SlurmUnavailable as exc:
        if needed:
            raise
        _say(f"{exc}; drains and power saving of nodes are not known")
        return None


def _answers(config: Config, targets: Sequence[Target], fanout: Fanout, options: Sequence[str]) -> list[NodeAnswer]:
    from aistation_slurm.sweep.answers import judge
    from aistation_slurm.sweep.published import health_check_runs, published

    if config.sweep.via == "slurm":
        from aistation_slurm.slurm.command import run

        argv = [str(Path(config.slurm.bin_dir) / "scontrol"), "show", "config"]
        text = run(argv, timeout_s=config.slurm.timeout_s, conf=config.slurm.conf)
        return published(targets, config.sweep.agents or health_check_runs(text))
    with _progress(len(targets)) as done:
        found = fanout.ask(targets, ["check", "--json", *options], done)
    return [judge(target, found[target.name]) for target in targets]


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal's stderr; nothing in a pipe or in cron's mail."""
    if not sys.stderr.isatty() or not total:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TextColumn("nodes"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def _json(
    answers: Sequence[NodeAnswer],
    groups: Sequence[Group],
    skipped: dict[str, str],
    deeds: Sequence[Deed],
    config: Config,
    slurm: bool,
) -> dict[str, Any]:
    counts = {status.value: sum(answer.status is status for answer in answers) for status in Status}
    return {
        "via": config.sweep.via,
        "slurm_answered": slurm,
        "counts": counts,
        "groups": [group.as_json() for group in groups],
        "nodes": [answer.as_json() for answer in answers],
        "skipped": [{"node": name, "why": why} for name, why in skipped.items()],
        "actions": [deed.as_json() for deed in deeds],
    }


def _print(
    answers: Sequence[NodeAnswer],
    groups: Sequence[Group],
    skipped: dict[str, str],
    deeds: Sequence[Deed],
    targets: Sequence[Target],
) -> None:
    from rich.text import Text

    from aistation_slurm.cli import screen
    from aistation_slurm.slurm import hostlist

    console = screen.console()
    if groups:
        table = screen.table("nodes", "", "status", "check", "subject", "evidence", "action", fixed=4)
        for group in groups:
            evidence = group.evidence + (" (numbers differ)" if group.differ else "")
            row = (group.folded, str(len(group.nodes)), group.status.value, group.check, group.subject, evidence)
            table.add_row(*map(Text, (*row, group.action.value)), style=STYLES[group.status])
        console.print(table)
    drained: dict[str, list[str]] = {}
    for target in targets:
        if target.node is not None and target.node.drained:
            drained.setdefault(target.node.reason or "no reason", []).append(target.name)
    for reason, names in drained.items():
        console.print(Text(f"drained before: {hostlist.fold(names)}: {reason}"))
    for why in dict.fromkeys(skipped.values()):
        names = [name for name, text in skipped.items() if text == why]
        console.print(Text(f"skipped: {hostlist.fold(names)}: {why}"))
    for deed in deeds:
        style = "" if deed.kind.startswith("not") else "bold"
        console.print(Text(f"{deed.kind}: {deed.node}: {deed.text}", style=style))
    for status in (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.OK):
        names = [answer.name for answer in answers if answer.status is status]
        if names:
            console.print(Text(f"{status.value:7} {len(names):4} {hostlist.fold(names)}", style=STYLES[status]))


def _say(text: str) -> None:
    click.echo(f"aistation: {text}", err=True)
