"""A study as a table for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.table import Table

from aistation_slurm.placement.simulation.figures import Estimate, Figures
from aistation_slurm.placement.simulation.study import Study

__all__ = ["as_json", "tables"]


class Measure(NamedTuple):
    """One line of the table. against: show the ratio to the base too."""

    name: str
    of: Callable[[Figures], float]
    digits: int = 2
    against: bool = True


MEASURES = (
    Measure("leaves over optimum", lambda f: f.over, 3, against=False),
    Measure("mean wait, s", lambda f: f.wait_s, 1),
    Measure("p95 wait, s", lambda f: f.wait_p95_s, 1),
    Measure("utilisation", lambda f: f.utilisation, 3),
    Measure("makespan, s", lambda f: f.makespan_s, 0),
    Measure("free nodes on used leaves", lambda f: f.fragmentation, 2, against=False),
    Measure("node-seconds, slowed", lambda f: f.node_s, 0),
    Measure("updates of pending jobs", lambda f: float(f.corrections), 0, against=False),
)
KEYS = ("over", "wait_s", "wait_p95_s", "utilisation", "makespan_s", "fragmentation", "node_s", "corrections")


def tables(study: Study, title: str) -> list[Table]:
    """The whole, and by size of job. ``x``: times the base."""
    names = list(study.runs)
    runs = len(study.runs[study.base])
    seeds = f"{runs} traces, ± half of the 95 % interval" if runs > 1 else "one trace"
    whole = _table(f"{title} ({seeds}; x: against {study.base})", "", *names)
    for measure in MEASURES:
        whole.add_row(measure.name, *(_cell(study, name, measure) for name in names))
    sized = _table(
        "by nodes of the job",
        "nodes",
        "jobs",
        *(f"{name}: wait, s" for name in names),
        *(f"{name}: leaves" for name in names),
    )
    for size in study.sizes:
        wait = Measure("", _of_size(size, "wait_s"), 1)
        over = Measure("", _of_size(size, "over"), 2, against=False)
        cells = [_cell(study, name, measure) for measure in (wait, over) for name in names]
        sized.add_row(size, str(study.jobs(size)), *cells)
    return [whole, sized]


def _table(title: str, *columns: str) -> Table:
    made = Table(title=title)
    for name in columns:
        made.add_column(name)
    return made


def _of_size(size: str, key: str) -> Callable[[Figures], float]:
    return lambda figures: float(getattr(figures.by_size[size], key)) if size in figures.by_size else math.nan


def _cell(study: Study, policy: str, measure: Measure) -> str:
    text = study.value(policy, measure.of).text(measure.digits)
    if measure.against and policy != study.base and text != "-":
        text += f" (x {study.against(policy, measure.of).text(2)})"
    return text


def as_json(study: Study, **about: Any) -> dict[str, Any]:
    """policies -> figures with their intervals, and the ratio to the base; null where a figure does not exist."""
    shown: dict[str, Any] = {**about, "base": study.base, "policies": {}}
    for name, runs in study.runs.items():
        found: dict[str, Any] = {"traces": len(runs)}
        for key, measure in zip(KEYS, MEASURES):
            found[key] = _numbers(study.value(name, measure.of))
            if measure.against:
                found[key]["against_base"] = _numbers(study.against(name, measure.of))
        found["by_size"] = {}
        for size in study.sizes:
            of: dict[str, Any] = {"jobs": study.jobs(size)}
            for key in ("wait_s", "wait_p95_s", "over"):
                of[key] = _numbers(study.value(name, _of_size(size, key)))
                if key != "over":
                    of[key]["against_base"] = _numbers(study.against(name, _of_size(size, key)))
            found["by_size"][size] = of
        shown["policies"][name] = found
    return shown


def _numbers(estimate: Estimate) -> dict[str, Any]:
    return {
        "mean": None if math.isnan(estimate.value) else estimate.value,
        "half_95": None if math.isnan(estimate.half) else estimate.half,
    }
