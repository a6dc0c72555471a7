"""Policies against traces: the same traces for each, so that they can be compared pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aistation_slurm.placement.decision import Settings
from aistation_slurm.placement.simulation.engine import Scheduler, TraceJob, simulate
from aistation_slurm.placement.simulation.figures import CROSSING, Estimate, Figures, estimate, figures_of, mean, ratio
from aistation_slurm.placement.simulation.machine import Machine
from aistation_slurm.placement.simulation.policy import make_policy
from aistation_slurm.topology.model import Switch, Topology

__all__ = ["Conditions", "Study", "clos", "fitting", "offered_load", "scaled", "study"]

BASE = "tree"
"""What the others are compared with, where it is among them."""


@dataclass(frozen=True)
class Conditions:
    """What is the same for all policies. refresh_s: of AIStation's decisions; crossing: see :data:`figures.CROSSING`."""

    machine: Machine
    scheduler: Scheduler = field(default_factory=Scheduler)
    settings: Settings = field(default_factory=Settings)
    refresh_s: float = 30.0
    crossing: float = CROSSING


@dataclass(frozen=True)
class Study:
    """runs: policy -> the figures of each trace, traces in the same order."""

    runs: Mapping[str, Sequence[Figures]]

    @property
    def base(self) -> str:
        return BASE if BASE in self.runs else next(iter(self.runs))

    @property
    def sizes(self) -> list[str]:
        """Classes of sizes of all runs, smallest first."""
        names = {name for runs in self.runs.values() for run in runs for name in run.by_size}
        return sorted(names, key=lambda name: int(name.split("-")[0]))

    def value(self, policy: str, of: Callable[[Figures], float]) -> Estimate:
        return estimate([of(run) for run in self.runs[policy]])

    def against(self, policy: str, of: Callable[[Figures], float]) -> Estimate:
        return ratio([of(run) for run in self.runs[policy]], [of(run) for run in self.runs[self.base]])

    def jobs(self, size: str) -> int:
        """Of one class, mean of the traces."""
        return round(mean(run.by_size[size].jobs if size in run.by_size else 0 for run in self.runs[self.base]))


def study(
    traces: Sequence[Sequence[TraceJob]],
    policies: Sequence[str],
    conditions: Conditions,
    done: Callable[[str], None] = lambda policy: None,
) -> Study:
    """Every policy on every trace; ``done`` is told after each. Raises ValueError: an unknown policy, a job that cannot run."""
    runs: dict[str, list[Figures]] = {policy: [] for policy in policies}
    for trace in traces:
        for name in policies:
            policy = make_policy(name, conditions.machine, conditions.settings, conditions.refresh_s)
            simulation = simulate(trace, conditions.machine, policy, conditions.scheduler)
            runs[name].append(figures_of(simulation, conditions.crossing))
            done(name)
    return Study(runs)


def clos(leaves: int, per_leaf: int, spines: int) -> Topology:
    """Leaves in equal shares below spines below one core: n0, n1, ..."""
    below = [
        Switch(f"leaf{leaf}", tuple(f"n{leaf * per_leaf + node}" for node in range(per_leaf))) for leaf in range(leaves)
    ]
    share = -(-leaves // spines)
    parts = [below[at : at + share] for at in range(0, leaves, share)]
    above = [Switch(f"spine{n}", (), tuple(leaf.name for leaf in part), 1) for n, part in enumerate(parts)]
    return Topology("tree", (*below, *above, Switch("core", (), tuple(spine.name for spine in above), 2)))


def offered_load(trace: Sequence[TraceJob], nodes: int) -> float:
    """Node-seconds that arrive over node-seconds that there are until the last arrival."""
    span = trace[-1].submit_s - trace[0].submit_s
    return sum(job.nodes * job.run_s for job in trace) / (nodes * span) if span else float("inf")


def scaled(trace: Sequence[TraceJob], nodes: int, load: float) -> list[TraceJob]:
    """The same jobs in the same order, nearer together or further apart, so that the offered load is ``load``."""
    factor = offered_load(trace, nodes) / load
    return [job._replace(submit_s=job.submit_s * factor) for job in trace]


def fitting(trace: Sequence[TraceJob], nodes: int) -> list[TraceJob]:
    """Without the jobs that are larger than the machine."""
    return [job for job in trace if job.nodes <= nodes]
