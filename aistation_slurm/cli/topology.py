"""``aistation topology``: what Slurm believes about the network, and whether it is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

import click

from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.cli.screen import console
from aistation_slurm.errors import TopologyError
from aistation_slurm.topology import sources, write
from aistation_slurm.topology.apply import put_in_force
from aistation_slurm.topology.cabling import findings
from aistation_slurm.topology.diff import compare
from aistation_slurm.topology.model import ERROR, Problem, Reading
from aistation_slurm.topology.plan import Plan, plan, select_hosts
from aistation_slurm.topology.readers import slurm_conf as slurm_conf_reader
from aistation_slurm.topology.readers import topology_conf, topology_yaml
from aistation_slurm.topology.render import tree_picture
from aistation_slurm.topology.shapes import counts, describe, plural, reading_json
from aistation_slurm.topology.svg import picture
from aistation_slurm.topology.validate import NEWEST, ClusterFacts, check, parse_version

__all__ = ["command"]

_KIND = click.option(
    "--from",
    "kind",
    type=click.Choice(("auto", *sources.SOURCES)),
    default="auto",
    show_default=True,
    help="What it is.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_CONF = click.option(
    "--slurm-conf", type=click.Path(path_type=Path), help="Check against the nodes of this slurm.conf."
)
_NODES = click.option("--nodes", metavar="LIST", help="Check against this hostlist instead.")
_VERSION = click.option("--slurm-version", metavar="YY.MM", help="Judge as this release would (default: the newest).")


@click.group("topology")
def command() -> None:
    """Read, check, compare, draw and generate topology.conf and topology.yaml. FILE - is standard input.

    \b
    Sources: conf (topology.conf), yaml (topology.yaml), scontrol (scontrol show topology), table (a site's CSV or
    JSON), ibnetdiscover, lldp (lldpctl -f json). Without --from the text itself tells.
    Examples:
      aistation topology validate /etc/slurm/topology.conf --slurm-conf /etc/slurm/slurm.conf
      ibnetdiscover > fabric.txt; aistation topology import --from ibnetdiscover fabric.txt
    """


def _facts(conf: Optional[Path], nodes: Optional[str]) -> ClusterFacts:
    if conf is not None and nodes is not None:
        raise click.UsageError("give --slurm-conf or --nodes, not both")
    if conf is not None:
        return slurm_conf_reader.read(conf)
    return slurm_conf_reader.facts_of_list(nodes) if nodes is not None else ClusterFacts()


def _release(text: Optional[str]) -> tuple[int, int]:
    try:
        return parse_version(text) if text else NEWEST
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--slurm-version") from exc


@command.command("validate")
@click.argument("file")
@_KIND
@_CONF
@_NODES
@_VERSION
@click.option("--strict", is_flag=True, help="Warnings are problems too (exit code 1).")
@_JSON
@click.pass_context
def validate(
    ctx: click.Context,
    file: str,
    kind: str,
    slurm_conf: Optional[Path],
    nodes: Optional[str],
    slurm_version: Optional[str],
    strict: bool,
    as_json: bool,
) -> None:
    """Say what is wrong with FILE and what Slurm would do about it.

    An error is what slurmctld refuses to start with, or drops; what it only logs is a warning.

    \b
    Exit codes: 0 no error (there may be warnings), 1 an error (or a warning with --strict), 3 FILE cannot be read.
    """
    reading = sources.load(file, kind)
    problems = check(reading, _facts(slurm_conf, nodes), _release(slurm_version))
    errors, warnings = counts(problems)
    if as_json:
        click.echo(json.dumps(reading_json(reading, problems), indent=2))
    else:
        for problem in problems:
            click.echo(problem.text)
        verdict = f"{plural(errors, 'error')}, {plural(warnings, 'warning')}"
        click.echo(f"{reading.source}: {describe(reading.topology)}: {verdict}")
    ctx.exit(EXIT_PROBLEM if errors or (strict and warnings) else EXIT_OK)


@command.command("show")
@click.argument("file", required=False)
@_KIND
@_CONF
@_NODES
@_VERSION
@click.option("--svg", type=click.Path(path_type=Path), metavar="PATH", help="Draw it into this SVG file.")
@click.option("--all", "everything", is_flag=True, help="Every switch, however many hang below one.")
@_JSON
def show(
    file: Optional[str],
    kind: str,
    slurm_conf: Optional[Path],
    nodes: Optional[str],
    slurm_version: Optional[str],
    svg: Optional[Path],
    everything: bool,
    as_json: bool,
) -> None:
    """Show FILE, or without FILE what the running slurmctld has, as a tree, as JSON or as an SVG.

    \b
    Exit codes: 0 shown (problems too: validate judges), 3 FILE cannot be read or Slurm did not answer.
    """
    reading = sources.load(file, kind) if file is not None else sources.ask_slurm()
    problems = check(reading, _facts(slurm_conf, nodes), _release(slurm_version))
    if svg is not None:
        write.replace_file(
            svg, picture(reading.topology, f"{reading.source}: {describe(reading.topology)}"), keep=False
        )
        click.echo(f"wrote {svg}", err=True)
    if as_json:
        click.echo(json.dumps(reading_json(reading, problems), indent=2))
        return
    if svg is not None:
        return
    out = console()
    for topology in reading.topologies or (reading.topology,):
        title = topology.name if len(reading.topologies) > 1 else reading.source
        out.print(tree_picture(topology, f"{title}: {describe(topology)}", problems, everything=everything))
    for note in reading.notes:
        click.echo(f"note: {note}", err=True)
    for problem in problems:
        click.echo(problem.text, err=True)


@command.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--from", "kind", type=click.Choice(("auto", *sources.SOURCES)), default="auto", help="What FILE is.")
@click.option("--base", type=click.Path(path_type=Path), help="Change as little as can be of this topology.conf.")
@_CONF
@_NODES
@click.option("--rail", "rails", multiple=True, metavar="DEVICE", help="Only these HCAs of the hosts, e.g. mlx5_0.")
@click.option("--format", "form", type=click.Choice(("conf", "yaml")), default="conf", show_default=True)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write there (by rename; the old file is kept as .old)."
)
@click.option("--reconfigure", is_flag=True, help="With --output: tell slurmctld, check that it has it, else go back.")
@_JSON
@click.pass_context
def import_(
    ctx: click.Context,
    files: tuple[str, ...],
    kind: str,
    base: Optional[Path],
    slurm_conf: Optional[Path],
    nodes: Optional[str],
    rails: tuple[str, ...],
    form: str,
    output: Optional[Path],
    reconfigure: bool,
    as_json: bool,
) -> None:
    """Make a topology.conf from what the fabric, or the site's own table, says. Notes and warnings go to stderr.

    The same input always gives the same text. Nothing is printed or written where FILE shows a failed discovery or no
    switch, or where Slurm would refuse the result.

    \b
    Examples:
      aistation topology import --from ibnetdiscover fabric.txt --slurm-conf /etc/slurm/slurm.conf
      aistation topology import --from ibnetdiscover fabric.txt --base topology.conf --output topology.conf
      aistation topology import --from lldp gpu*.json --format yaml
    """
    if reconfigure and output is None:
        raise click.UsageError("--reconfigure needs --output, the file that slurmctld reads")
    facts = _facts(slurm_conf, nodes)
    old = sources.read_source(str(base))[0] if base is not None else None
    made, reading = _make(files, kind, facts, rails, old)
    head = f"from {reading.source}; made by: aistation topology import"
    if form == "yaml":
        text = write.yaml_text(reading.topologies, head)
    elif old is not None:
        text = write.merged_text(reading.topology, old)
    else:
        text = write.conf_text(reading.topology, head)
    problems = _verdict(text, form, facts)
    for note in reading.notes:
        click.echo(f"note: {note}", err=True)
    for problem in problems:
        click.echo(problem.text, err=True)
    errors, _ = counts(problems)
    if errors:
        click.echo("nothing was written: Slurm would refuse the result", err=True)
        ctx.exit(EXIT_PROBLEM)
    if output is not None:
        _tell_changes(output, reading)
        kept = put_in_force(output, text, reading.topology) if reconfigure else write.replace_file(output, text)
        click.echo("slurmctld has it" if reconfigure else "slurmctld reads it at: scontrol reconfigure", err=True)
        click.echo(f"wrote {output}" + (f"; the old file is {kept}" if kept else ""), err=True)
    if as_json:
        shown = reading_json(reading, problems)
        shown.update(text=text, notes=list(reading.notes), warnings=list(reading.notes))
        if made is not None:
            shown["leaves"] = [
                {"name": g.name, "switches": list(g.member_names), "uplinks": dict(g.uplinks)}
                for g in made.groups
                if g.level == 0
            ]
        click.echo(json.dumps(shown, indent=2))
    elif output is None:
        click.echo(text, nl=False)


def _tell_changes(output: Path, reading: Reading) -> None:
    """What the file that is about to be replaced says otherwise."""
    if not output.exists():
        return
    try:
        old = sources.load(str(output)).topology
    except TopologyError as exc:
        click.echo(f"note: the file that is replaced cannot be read: {exc}", err=True)
        return
    for line in compare(old, reading.topology).lines():
        click.echo(line, err=True)


def _make(
    files: tuple[str, ...], kind: str, facts: ClusterFacts, rails: tuple[str, ...], old: Optional[str]
) -> tuple[Optional[Plan], Reading]:
    texts = [sources.read_source(name) for name in files]
    kind = sources.sniff(*texts[0]) if kind == "auto" else kind
    if kind in sources.FABRICS:
        fabric = select_hosts(sources.fabric(texts, kind), facts.nodes, rails)
        base = topology_conf.read(old, "--base") if old is not None else None
        made = plan(fabric, base.topology if base else None)
        notes = made.notes + tuple(problem.text for problem in base.problems if base) if base else made.notes
        if facts.nodes is None:
            notes += ("every host of the fabric is taken for a node; --slurm-conf or --nodes tells which ones are",)
        return made, Reading((made.topology,), (), kind, notes)
    if len(files) > 1:
        raise click.UsageError(f"--from {kind} takes one FILE")
    reading = sources.parse(*texts[0], kind)
    broken = [problem for problem in reading.problems if problem.severity == ERROR]
    if broken:
        raise TopologyError("\n".join(problem.text for problem in broken))
    return None, Reading(reading.topologies, reading.problems, kind, reading.notes)


def _verdict(text: str, form: str, facts: ClusterFacts) -> tuple[Problem, ...]:
    """What validate says of the text that would be written: never trust the model that it came from."""
    if form == "yaml":
        return check(topology_yaml.read(text), facts)
    return check(topology_conf.read(text), facts)


@command.command("diff")
@click.argument("old")
@click.argument("new")
@_CONF
@_NODES
@_JSON
@click.pass_context
def diff(
    ctx: click.Context, old: str, new: str, slurm_conf: Optional[Path], nodes: Optional[str], as_json: bool
) -> None:
    """What NEW changes against OLD: switches, nodes that moved, renamed ones. Both may be of any source.

    \b
    Exit codes: 0 they mean the same, 1 they differ, 3 one cannot be read.
    Example: what is cabled against what Slurm believes
      aistation topology diff /etc/slurm/topology.conf fabric.txt --slurm-conf /etc/slurm/slurm.conf
    """
    facts = _facts(slurm_conf, nodes)
    before = sources.load(old, known=facts.nodes).topology
    after = sources.load(new, known=facts.nodes, base=before).topology
    difference = compare(before, after)
    if as_json:
        click.echo(json.dumps(difference.as_json(), indent=2))
    else:
        click.echo("\n".join(difference.lines()) or "no difference")
    ctx.exit(EXIT_PROBLEM if difference else EXIT_OK)


@command.command("cabling")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--from", "kind", type=click.Choice(sources.FABRICS), default="ibnetdiscover", show_default=True)
@_CONF
@_NODES
@_JSON
@click.pass_context
def cabling(
    ctx: click.Context,
    files: tuple[str, ...],
    kind: str,
    slurm_conf: Optional[Path],
    nodes: Optional[str],
    as_json: bool,
) -> None:
    """Cables that are not where those of their peers are: rails on the wrong leaf, missing and slow links.

    \b
    Exit codes: 0 nothing found, 1 something found, 3 FILE cannot be read.
    """
    texts = [sources.read_source(name) for name in files]
    fabric = select_hosts(sources.fabric(texts, kind), _facts(slurm_conf, nodes).nodes)
    found = findings(fabric, plan(fabric).groups)
    if as_json:
        shown = {"findings": [finding.as_json() for finding in found], "notes": list(fabric.notes)}
        click.echo(json.dumps(shown, indent=2))
    else:
        for finding in found:
            click.echo(f"{finding.kind}: {finding.message}")
        cables = len(fabric.host_links) + len(fabric.switch_links)
        click.echo(f"{plural(len(fabric.switches), 'switch')}, {cables} cables: {plural(len(found), 'finding')}")
    ctx.exit(EXIT_PROBLEM if found else EXIT_OK)
