"""``aistation placement``: where jobs go and why."""

from __future__ import annotations

import json
import os
import re
from typing import Optional

import click

from aistation_slurm.errors import AistationError
from aistation_slurm.placement.rank_order import host_lines, inter_leaf_edges, leaves_of, switch_order
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology import sources
from aistation_slurm.topology.model import Topology

__all__ = ["command"]


@click.group("placement")
def command() -> None:
    """Where jobs go: publish the decisions that job_submit.lua looks up, explain a job, order ranks, simulate policies."""


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
