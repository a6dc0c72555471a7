"""What a run of a trace was worth, and several runs against those of stock Slurm on the same traces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aistation_slurm.placement.simulation.engine import Record, Simulation
from aistation_slurm.placement.simulation.machine import Machine, count

__all__ = [
    "CROSSING",
    "Estimate",
    "Figures",
    "SizeFigures",
    "estimate",
    "figures_of",
    "mean",
    "ratio",
    "size_class",
    "slowed",
]

CROSSING = 0.15
"""Stated slow-down of a job all of whose ring crosses leaves without need; see :func:`slowed`.

Dong et al., HPCA 2025 (https://arxiv.org/abs/2406.04594): training jobs with a moderate share of communication ran about 15 %
faster once collisions on the paths above the leaves were removed. A site's own figure is better: it depends on what it trains.
"""
T95 = (
    0,
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.2,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.1,
    2.09,
)
"""Student's t for a two-sided 95 % interval, by degrees of freedom."""


class Estimate(NamedTuple):
    """A mean over seeds; half: of its 95 % interval, nan with one seed."""

    value: float
    half: float

    def text(self, digits: int = 2) -> str:
        if math.isnan(self.value):
            return "-"
        spread = f" ±{self.half:.{digits}f}" if not math.isnan(self.half) else ""
        return f"{self.value:.{digits}f}{spread}"


class SizeFigures(NamedTuple):
    """Jobs of one class of sizes. over: leaf switches over the fewest that the nodes need, mean."""

    jobs: int
    wait_s: float
    wait_p95_s: float
    over: float


class Figures(NamedTuple):
    """One run. over: of jobs of several nodes; utilisation: share of node-seconds in use up to the last submission.

    makespan_s: first submission to last end; fragmentation: share of free nodes on leaves that are partly in use, mean over time
    up to the last submission; node_s: node-seconds with the stated slow-down of jobs that cross leaves; corrections: updates of
    pending jobs.
    """

    over: float
    wait_s: float
    wait_p95_s: float
    utilisation: float
    makespan_s: float
    fragmentation: float
    node_s: float
    corrections: int
    by_size: dict[str, SizeFigures]


def size_class(nodes: int) -> str:
    """1, 2, 3-4, 5-8, 9-16, ..."""
    if nodes <= 2:
        return str(nodes)
    top = 1 << (nodes - 1).bit_length()
    return f"{top // 2 + 1}-{top}"


def slowed(machine: Machine, record: Record, crossing: float) -> float:
    """Run time under the model: ``run * (1 + crossing * (1 - fewest / spanned))``.

    A ring over a job's nodes crosses leaves once a leaf; the share of crossings that a better place would have saved is
    ``1 - fewest / spanned``. ``crossing`` is what a job loses whose every edge is such a one.
    """
    spanned = machine.spanned(record.nodes)
    return record.job.run_s * (1 + crossing * (1 - machine.fewest[record.job.nodes] / spanned))


def figures_of(simulation: Simulation, crossing: float = CROSSING) -> Figures:
    machine, records = simulation.machine, simulation.records
    first = min(record.job.submit_s for record in records)
    last = max(record.job.submit_s for record in records)
    classes: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: r.job.nodes):
        classes.setdefault(size_class(record.job.nodes), []).append(record)

    def over(chosen: Iterable[Record]) -> float:
        return mean(machine.spanned(r.nodes) / machine.fewest[r.job.nodes] for r in chosen if r.job.nodes > 1)

    def inside(record: Record) -> float:
        return min(last, record.start_s + record.job.run_s) - min(last, record.start_s)

    busy = sum(record.job.nodes * inside(record) for record in records)
    return Figures(
        over=over(records),
        wait_s=mean(record.wait_s for record in records),
        wait_p95_s=_p95([record.wait_s for record in records]),
        utilisation=busy / (len(machine.nodes) * (last - first)) if last > first else math.nan,
        makespan_s=max(record.start_s + record.job.run_s for record in records) - first,
        fragmentation=_fragmentation(machine, records, first, last),
        node_s=sum(record.job.nodes * slowed(machine, record, crossing) for record in records),
        corrections=simulation.corrections,
        by_size={
            name: SizeFigures(len(of), mean(r.wait_s for r in of), _p95([r.wait_s for r in of]), over(of))
            for name, of in classes.items()
        },
    )


def _fragmentation(machine: Machine, records: Sequence[Record], first: float, last: float) -> float:
    changes = [(r.start_s, 1, r.nodes) for r in records] + [(r.start_s + r.job.run_s, 0, r.nodes) for r in records]
    free, before, shares, times = machine.all, first, 0.0, 0.0
    for at, starts, nodes in sorted(changes):
        at = min(at, last)
        if at > before and free:
            whole = sum(size for size, leaf in zip(machine.sizes, machine.leaves) if free & leaf == leaf)
            shares += (1 - whole / count(free)) * (at - before)
            times += at - before
        before = max(before, at)
        free = free & ~nodes if starts else free | nodes
    return shares / times if times else math.nan


def mean(values: Iterable[float]) -> float:
    """nan of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else math.nan


def _p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else math.nan


def _t95(runs: int) -> float:
    return T95[runs - 1] if runs - 1 < len(T95) else 2.0


def estimate(values: Sequence[float]) -> Estimate:
    """Mean over seeds with its 95 % interval."""
    known = [value for value in values if not math.isnan(value)]
    if len(known) < 2:
        return Estimate(mean(known), math.nan)
    middle = mean(known)
    variance = sum((value - middle) ** 2 for value in known) / (len(known) - 1)
    return Estimate(middle, _t95(len(known)) * math.sqrt(variance / len(known)))


def ratio(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """Mean of ``values`` over mean of ``base``, seed by seed paired; the interval by leaving one pair out at a time (jackknife)."""
    pairs = [(a, b) for a, b in zip(values, base) if not (math.isnan(a) or math.isnan(b))]
    above, below = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    if not below:
        return Estimate(math.nan, math.nan)
    if len(pairs) < 2 or any(below == b for _, b in pairs):
        return Estimate(above / below, math.nan)
    without = [(above - a) / (below - b) for a, b in pairs]
    runs = len(pairs)
    variance = (runs - 1) / runs * sum((one - above / below) ** 2 for one in without)
    return Estimate(above / below, _t95(runs) * math.sqrt(variance))
