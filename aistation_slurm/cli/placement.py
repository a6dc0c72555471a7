"""``aistation placement``: where jobs go and why."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

import click

from aistation_slurm.cli import placement_simulate
from aistation_slurm.cli.screen import console, table
from aistation_slurm.config import Config, load
from aistation_slurm.errors import AistationError, SlurmUnavailable
from aistation_slurm.placement.explain import explain
from aistation_slurm.placement.grade import ADMIN, comment_with_grade, degraded
from aistation_slurm.placement.publisher import Publisher
from aistation_slurm.placement.rank_order import host_lines, inter_leaf_edges, leaves_of, switch_order
from aistation_slurm.placement.table import PartitionRow
from aistation_slurm.slurm import Job, connect, hostlist
from aistation_slurm.slurm.command import run
from aistation_slurm.slurm.record import job_from_text
from aistation_slurm.topology import sources
from aistation_slurm.topology.model import Topology

__all__ = ["command"]

_CONFIG = click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")


@click.group("placement")
def command() -> None:
    """Where jobs go: publish the decisions that job_submit.lua looks up, explain a job, order ranks, simulate policies."""


command.add_command(placement_simulate.command)


@command.command("publish")
@_CONFIG
@click.option("--dry-run", is_flag=True, help="Show the decisions; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def publish(config_path: Optional[Path], dry_run: bool, as_json: bool) -> None:
    """Decide from Slurm's topology, nodes and jobs, and write the table that job_submit.lua looks up.

    The watchdog does this at every poll, and corrects pending jobs then; by hand it is for trying things out, or for cron on a site
    without the watchdog (more often than placement.ttl_s). Runs as SlurmUser or root on the controller.

    \b
    Exit codes: 0 written (or shown), 3 Slurm did not answer or the table cannot be written.
    Example: what would be decided now
      aistation placement publish --dry-run
    """
    config = load(config_path)
    client = connect(config)
    publisher = Publisher(config)
    made = publisher.look(client.nodes(), client.jobs())
    observes = not config.enforcing(config.placement)
    written = not dry_run and not observes and publisher.write(made)
    if as_json:
        shown = {
            "table": str(publisher.path),
            "written": written,
            "bytes": len(made.body),
            "topology": publisher.topology.kind,
            "notes": list(made.said),
            "partitions": [_partition_json(row) for row in made.partitions],
        }
        click.echo(json.dumps(shown, indent=2))
        return
    for text in made.said:
        click.echo(f"note: {text}", err=True)
    if observes and not dry_run:
        click.echo("note: placement only observes (mode in aistation.toml): nothing is written", err=True)
    _print_partitions(made.partitions)
    click.echo(f"{'wrote' if written else 'would write'} {publisher.path}: {len(made.body)} bytes")


def _partition_json(partition: PartitionRow) -> dict[str, object]:
    return {
        "name": partition.name,
        "nodes": partition.nodes,
        "clean": partition.clean,
        "gpus": partition.gpus,
        "avoid": list(partition.avoid),
        "rows": [
            {
                "first": r.first,
                "last": r.last,
                "per": r.per,
                "plus": r.plus,
                "wait_s": r.wait_s,
                "excluded": list(r.excluded),
            }
            for r in partition.rows
        ],
    }


def _print_partitions(partitions: Sequence[PartitionRow]) -> None:
    shown = table("partition", "nodes", "leaf switches", "wait", "kept off", fixed=5)
    for partition in partitions:
        if partition.avoid:
            shown.add_row(partition.name, "2 and more", "", "", f"{hostlist.fold(partition.avoid)} (degraded fabric)")
        for row in partition.rows:
            low, high = row.switches(row.first), row.switches(row.last)
            shown.add_row(
                partition.name,
                f"{row.first}-{row.last}",
                str(low) if low == high else f"{low}-{high}",
                f"{row.wait_s} s",
                hostlist.fold(row.excluded),
            )
        if not partition.rows:
            shown.add_row(partition.name, f"all of {partition.nodes}", "no limit", "", "")
    console().print(shown)


@command.command("explain")
@click.argument("job", metavar="JOB")
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain_job(job: str, config_path: Optional[Path], as_json: bool) -> None:
    """Say why JOB (an id, or ARRAY_TASK) runs on these nodes, or why it waits and what would start it sooner.

    \b
    Exit codes: 0 told, 3 Slurm does not know the job or did not answer.
    Example: aistation placement explain 4711
    """
    if not re.fullmatch(r"\d+(_\d+)?", job):
        raise click.BadParameter(f"{job!r} is no job id; expected 4711 or 4711_3", param_hint="JOB")
    config = load(config_path)
    client = connect(config)
    jobs = client.jobs()
    found = next((one for one in jobs if job in (one.argument, str(one.job_id))), None)
    if found is None:
        raise SlurmUnavailable(f"Slurm does not know job {job}; it forgets one MinJobAge seconds after its end")
    told = explain(_with_switches(found, config), jobs, client.nodes(), _topology(None), time.time())
    if as_json:
        click.echo(json.dumps(told.as_json(), indent=2))
        return
    click.echo(f"job {told.job}: {told.state}")
    for text in told.why:
        click.echo(f"  {text}")
    if told.sooner:
        click.echo("sooner:")
        for text in told.sooner:
            click.echo(f"  {text}")


def _with_switches(job: Job, config: Config) -> Job:
    """The JSON of 22.05 has no switches; scontrol's text has."""
    if job.required_switches:
        return job
    argv = [str(Path(config.slurm.bin_dir) / "scontrol"), "show", "job", job.argument]
    shown = job_from_text(run(argv, timeout_s=config.slurm.timeout_s, conf=config.slurm.conf))
    return replace(job, required_switches=shown.required_switches, switch_wait_s=shown.switch_wait_s)


@command.command("grade")
@click.argument("nodes", metavar="NODES")
@click.option("--degraded", "why", metavar="WHY", help="Jobs of several nodes keep off these nodes from now on.")
@click.option("--well", is_flag=True, help="Take the grade back, also one that an agent set.")
@click.option("--dry-run", is_flag=True, help="Say what would be changed.")
@_CONFIG
def grade(nodes: str, why: Optional[str], well: bool, dry_run: bool, config_path: Optional[Path]) -> None:
    """Grade nodes by hand: degraded fabric, or well again. Without an option, show the grades.

    Agents grade their own nodes by placement.degraded; a grade that a person set stays until a person takes it back. It stands in
    the node's Comment and takes effect with the watchdog's next poll, for jobs that wait too.

    \b
    Example: aistation placement grade gpu[17-18] --degraded 'cable on order'
    """
    if why is not None and well:
        raise click.UsageError("give --degraded or --well, not both")
    try:
        names = hostlist.expand(nodes)
    except hostlist.HostlistError as exc:
        raise click.BadParameter(str(exc), param_hint="NODES") from exc
    client = connect(load(config_path))
    for node in client.nodes(names):
        before = degraded(node.comment)
        if why is None and not well:
            click.echo(f"{node.name}: {'well' if before is None else f'degraded: {before}'}")
            continue
        comment = comment_with_grade(node.comment, None if well else f"{ADMIN} {why}")
        if comment != node.comment:
            if not dry_run:
                client.update_node(node.name, Comment=comment)
            click.echo(f"{'would grade' if dry_run else 'graded'} {node.name}: {'well' if well else 'degraded'}")


@command.command("hostfile")
@click.option("--nodes", metavar="LIST", help="Hostlist; default: the nodes of this job.")
@click.option(
    "--tasks-per-node",
    metavar="N",
    help="Tasks on each node: 8, or as Slurm says it, 8(x3),4; default: the job's, else 1.",
)
@click.option(
    "--topology", "file", metavar="FILE", help="topology.conf or another source; default: what slurmctld has."
)
@click.option("--explain", is_flag=True, help="Say on standard error what the order is worth.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def hostfile(
    nodes: Optional[str],
    tasks_per_node: Optional[str],
    file: Optional[str],
    explain: bool,
    as_json: bool,
) -> None:
    """Print the nodes of a job in the order of the network, one line a task, for SLURM_HOSTFILE.

    Nodes of one leaf switch stand side by side, so that a ring over the ranks crosses between leaves as rarely as it can; on each
    node the ranks count up, as rails do. Without a topology the order is Slurm's own. Slurm 23.02 and later does nearly the
    same for all jobs with TopologyParam=SwitchAsNodeRank.

    \b
    Exit codes: 0 printed, 2 not in a job and no --nodes, 3 FILE cannot be read.
    Example, in a job script:
      aistation placement hostfile > hosts.$SLURM_JOB_ID
      SLURM_HOSTFILE=hosts.$SLURM_JOB_ID srun --distribution=arbitrary --ntasks=$(wc -l < hosts.$SLURM_JOB_ID) python train.py
    """
    given = nodes if nodes is not None else os.environ.get("SLURM_JOB_NODELIST", os.environ.get("SLURM_NODELIST", ""))
    try:
        names = hostlist.expand(given)
    except hostlist.HostlistError as exc:
        raise click.BadParameter(str(exc), param_hint="--nodes") from exc
    if not names:
        raise click.UsageError("no nodes: run this inside a job, or give --nodes")
    counts = _tasks(tasks_per_node, len(names), in_job=nodes is None)
    topology = _topology(file)
    ordered = switch_order(names, topology)
    by_name = dict(zip(names, counts))
    edges = (inter_leaf_edges(names, topology), inter_leaf_edges(ordered, topology))
    if as_json:
        shown = {
            "nodes": ordered,
            "tasks": [by_name[name] for name in ordered],
            "leaves": leaves_of(ordered, topology),
            "ring_edges_between_leaves": {"slurm": edges[0], "ordered": edges[1]},
        }
        click.echo(json.dumps(shown, indent=2))
    else:
        click.echo("\n".join(host_lines(ordered, [by_name[name] for name in ordered])))
    if explain:
        leaves = leaves_of(ordered, topology)
        text = ", ".join(f"{leaf or 'no switch'}: {hostlist.fold(there)}" for leaf, there in leaves.items())
        said = f"{len(names)} nodes below {len(leaves)} leaf switches ({text})"
        click.echo(
            f"{said}; edges of the ring between leaves: {edges[0]} as Slurm orders them, {edges[1]} so", err=True
        )


def _tasks(text: Optional[str], nodes: int, *, in_job: bool) -> list[int]:
    """Tasks of each node in the order of SLURM_JOB_NODELIST."""
    env = os.environ if in_job else {}
    chosen = text or env.get("SLURM_TASKS_PER_NODE") or env.get("SLURM_NTASKS_PER_NODE") or "1"
    counts: list[int] = []
    for part in chosen.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part.strip())
        if match is None or not int(match.group(1)):
            raise click.BadParameter(f"{chosen!r}: expected 8 or 8(x3),4", param_hint="--tasks-per-node")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    if len(counts) == 1:
        counts *= nodes
    if len(counts) != nodes:
        what = f"{chosen!r} is for {len(counts)} nodes, there are {nodes}"
        raise click.BadParameter(what, param_hint="--tasks-per-node")
    return counts


def _topology(file: Optional[str]) -> Topology:
    if file is not None:
        return sources.load(file).topology
    try:
        return sources.ask_slurm().topology
    except AistationError as exc:
        click.echo(f"aistation: Slurm's own order stays: {exc}", err=True)
        return Topology("flat")
