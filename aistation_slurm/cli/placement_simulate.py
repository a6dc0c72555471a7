"""``aistation placement simulate``: policies of placement against a trace of jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from aistation_slurm import config
from aistation_slurm.cli.screen import console
from aistation_slurm.placement.publisher import settings_of
from aistation_slurm.placement.simulation import synthetic, traces
from aistation_slurm.placement.simulation.charts import picture
from aistation_slurm.placement.simulation.engine import Scheduler, TraceJob
from aistation_slurm.placement.simulation.machine import Machine
from aistation_slurm.placement.simulation.policy import POLICIES, make_policy
from aistation_slurm.placement.simulation.report import as_json, tables
from aistation_slurm.placement.simulation.study import Conditions, Study, clos, fitting, offered_load, scaled, study
from aistation_slurm.topology import sources, write
from aistation_slurm.topology.model import Topology

__all__ = ["command"]

UNCUT_S = 604_800
"""The simulated slurmctld has a max_switch_wait that cuts nothing."""


@click.command("simulate")
@click.argument("trace", required=False, metavar="[TRACE]")
@click.option(
    "--from",
    "kind",
    type=click.Choice(("auto", *traces.READERS)),
    default="auto",
    show_default=True,
    help="Its format.",
)
@click.option("--topology", "topology_file", metavar="FILE", help="topology.conf or another source; default: --fabric.")
@click.option(
    "--fabric", default="16x8x4", show_default=True, metavar="LEAVESxNODES[xSPINES]", help="A fabric of equal leaves."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=f"{', '.join(POLICIES)}, or fixed:SECONDS (--switches=optimum@SECONDS for all). Default: none, tree, aistation.",
)
@click.option(
    "--load",
    "loads",
    type=click.FloatRange(0.01, 10),
    multiple=True,
    help="Offered load; several: one after the other.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Made traces for each load.")
@click.option(
    "--jobs",
    type=click.IntRange(10),
    default=300,
    show_default=True,
    help="Jobs of a made trace; of TRACE, the first N.",
)
@click.option(
    "--run-time", type=click.FloatRange(1), default=7200.0, show_default=True, help="Mean run time of a made trace, s."
)
@click.option("--spread", type=click.FloatRange(0, 5), default=1.0, show_default=True, help="Sigma of its logarithm.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="To tell the nodes of TRACE's jobs.",
)
@click.option(
    "--bf-interval", type=click.FloatRange(0.1), default=30.0, show_default=True, help="slurmctld's bf_interval, s."
)
@click.option(
    "--bf-resolution", type=click.FloatRange(0.1), default=60.0, show_default=True, help="slurmctld's bf_resolution, s."
)
@click.option(
    "--turnover",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="From a job's end to the next start, s.",
)
@click.option(
    "--refresh", type=click.FloatRange(0.1), default=30.0, show_default=True, help="AIStation's poll interval, s."
)
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")
@click.option("--busy-at", type=click.FloatRange(0), help="Instead of placement.busy_at.")
@click.option("--crossing", type=click.FloatRange(0, 1000), help="Percent, instead of placement.crossing_percent.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="PATH", help="Draw the figures into this SVG file.")
@click.option("--json", "as_json_", is_flag=True, help="Print JSON.")
def command(
    trace: Optional[str],
    kind: str,
    topology_file: Optional[str],
    fabric: str,
    policies: tuple[str, ...],
    loads: tuple[float, ...],
    seeds: int,
    jobs: int,
    run_time: float,
    spread: float,
    gpus_per_node: int,
    bf_interval: float,
    bf_resolution: float,
    turnover: float,
    refresh: float,
    config_path: Optional[Path],
    busy_at: Optional[float],
    crossing: Optional[float],
    svg: Optional[Path],
    as_json_: bool,
) -> None:
    """Simulate how Slurm would place the jobs of TRACE under some policies, and what that costs in waiting.

    The simulator does what slurmctld 22.05 does with whole-node jobs of one partition: topology/tree's best fit, backfill by time
    limits, --switches. TRACE is an sacct export, or a public trace (Helios, Acme, Philly, Alibaba PAI); - is standard input.
    Without TRACE, traces are made: log-normal run times, 1 to 32 nodes. Acts on nothing.

    \b
    Exit codes: 0 done, 2 usage, 3 TRACE or FILE cannot be read.
    Examples:
      aistation placement simulate --load 0.7 --load 0.9 --load 1.1 --svg placement.svg
      sacct -X -a -P -S now-30days --format=JobIDRaw,Submit,Eligible,Start,End,NNodes,TimelimitRaw,State > jobs.txt
      aistation placement simulate jobs.txt --topology /etc/slurm/topology.conf
      aistation placement simulate cluster_log.csv --from helios --fabric 17x8x4 --policy tree --policy fixed:3600
    """
    machine = Machine(sources.load(topology_file).topology if topology_file is not None else _fabric(fabric))
    if not machine.nodes:
        raise click.UsageError("the topology has no leaf switch with nodes")
    wanted = config.load(config_path)
    settings = settings_of(wanted, UNCUT_S)
    if busy_at is not None:
        settings = replace(settings, busy_at=busy_at)
    slowed = (wanted.placement.crossing_percent if crossing is None else crossing) / 100
    scheduler = Scheduler(bf_interval_s=bf_interval, bf_resolution_s=bf_resolution, turnover_s=turnover)
    conditions = Conditions(machine, scheduler, settings, refresh, slowed)
    chosen = tuple(dict.fromkeys(policies or ("none", "tree", "aistation")))
    for name in chosen:
        try:
            make_policy(name, machine, settings, refresh)
        except ValueError as exc:
            raise click.BadParameter(str(exc), param_hint="--policy") from exc
    by_load = (
        _made(machine, loads or (0.9,), seeds, synthetic.Workload(jobs=jobs, run_s=run_time, spread=spread))
        if trace is None
        else None
    )
    if by_load is None:
        by_load = _read(str(trace), kind, gpus_per_node, jobs, machine, loads)
    studies = _run(by_load, chosen, conditions)
    if svg is not None:
        write.replace_file(svg, picture(studies), keep=False)
        click.echo(f"wrote {svg}", err=True)
    if as_json_:
        shown = [as_json(one, load=load) for (load, _), (_, one) in zip(by_load, studies)]
        about: dict[str, Any] = {"nodes": len(machine.nodes), "leaves": list(machine.sizes), "crossing": slowed}
        click.echo(json.dumps({**about, "studies": shown}, indent=2))
        return
    out = console()
    for title, one in studies:
        for shown_table in tables(one, title):
            out.print(shown_table)


Loads = list[tuple[float, Sequence[Sequence[TraceJob]]]]
"""Offered load -> traces of it."""


def _fabric(text: str) -> Topology:
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})(?:x([1-9]\d{0,3}))?", text)
    if match is None:
        raise click.BadParameter(
            f"{text!r}: expected leaves x nodes a leaf x spines, such as 16x8x4", param_hint="--fabric"
        )
    leaves, per_leaf = int(match[1]), int(match[2])
    return clos(leaves, per_leaf, min(leaves, int(match[3] or 1)))


def _made(machine: Machine, loads: Sequence[float], seeds: int, workload: synthetic.Workload) -> Loads:
    nodes = len(machine.nodes)
    return [
        (load, [synthetic.make(replace(workload, load=load), nodes, seed) for seed in range(seeds)]) for load in loads
    ]


def _read(path: str, kind: str, gpus_per_node: int, jobs: int, machine: Machine, loads: Sequence[float]) -> Loads:
    loaded = traces.read(*traces.text_of(path), kind, gpus_per_node)
    nodes = len(machine.nodes)
    fits = fitting(loaded.jobs, nodes)
    left = {**loaded.left_out, "larger than the machine": len(loaded.jobs) - len(fits)}
    for why, number in left.items():
        if number:
            click.echo(f"note: left out: {number} {why}", err=True)
    chosen = fits[:jobs]
    if len(chosen) < 2:
        raise traces.TraceError(f"{loaded.source}: fewer than two jobs fit into {nodes} nodes; give a larger --fabric")
    if len(chosen) < len(fits):
        click.echo(f"note: the first {jobs} of {len(fits)} jobs; --jobs takes more", err=True)
    own = offered_load(chosen, nodes)
    click.echo(f"note: {len(chosen)} jobs, offered load as recorded {own:.2f}", err=True)
    if not loads:
        return [(own, [chosen])]
    return [(load, [scaled(chosen, nodes, load)]) for load in loads]


def _run(by_load: Loads, policies: Sequence[str], conditions: Conditions) -> list[tuple[str, Study]]:
    total = sum(len(found) for _, found in by_load) * len(policies)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    studies = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=total)
        for load, found in by_load:

            def done(policy: str, load: float = load) -> None:
                progress.update(task, advance=1, description=f"load {load:.2g}")

            studies.append((f"offered load {load:.2f}", study(found, policies, conditions, done)))
    return studies
