"""What is done to jobs: nothing (topology/none and stock topology/tree), a plain ``--switches``, or what AIStation decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Optional

from aistation_slurm.placement.decision import Row, Settings, decide
from aistation_slurm.placement.occupancy import NodeUse, Occupancy, QueuedJob, Use
from aistation_slurm.placement.simulation.engine import Change, Pending, Policy, Simulation
from aistation_slurm.placement.simulation.machine import Machine, bits

__all__ = ["POLICIES", "Aistation", "Fixed", "Stock", "make_policy"]

PARTITION = "simulated"


class Stock:
    """Slurm alone."""

    refresh_s = 0.0

    def __init__(self, tree: bool = True) -> None:
        self.tree = tree
        self.name = "tree" if tree else "none"

    def submitted(self, pending: Pending, simulation: Simulation) -> None:
        pass

    def refresh(self, simulation: Simulation) -> Iterable[Change]:
        return ()


class Fixed:
    """Every job asks for its optimum of leaf switches, as ``--switches=N@wait`` by hand would."""

    tree, refresh_s = True, 0.0

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.name = f"fixed:{wait_s:g}"

    def submitted(self, pending: Pending, simulation: Simulation) -> None:
        if pending.job.nodes > 1:
            pending.switches = simulation.machine.fewest[pending.job.nodes]
            pending.wait_s = self.wait_s

    def refresh(self, simulation: Simulation) -> Iterable[Change]:
        return ()


class Aistation:
    """:func:`decide` every ``refresh_s``; jobs take what was decided last, and pending ones follow when it changes."""

    tree = True

    def __init__(self, machine: Machine, settings: Settings, refresh_s: float, *, correct: bool = True) -> None:
        self.name = "aistation" if correct else "aistation:uncorrected"
        self.refresh_s = refresh_s
        self._settings, self._correct = settings, correct
        self._occupancy = Occupancy.of(machine.topology, {PARTITION: machine.nodes}, {})
        self._uses: dict[int, tuple[int, float]] = {}
        self._rows: tuple[Row, ...] = ()

    def submitted(self, pending: Pending, simulation: Simulation) -> None:
        row = self._row(pending.job.nodes)
        if row is not None:
            pending.switches, pending.wait_s = row.switches(pending.job.nodes), float(row.wait_s)

    def refresh(self, simulation: Simulation) -> Iterable[Change]:
        self._look(simulation)
        ordered = simulation.ordered()
        queue = [
            QueuedJob(p.job.job_id, PARTITION, p.job.nodes, order, simulation.now - p.job.submit_s, p.job.limit_s)
            for order, p in enumerate(ordered)
        ]
        self._rows = decide(simulation.machine.topology, self._occupancy, queue, self._settings, simulation.now)
        if not self._correct:
            return
        for pending in ordered:
            row = self._row(pending.job.nodes)
            switches = row.switches(pending.job.nodes) if row is not None else 0
            if switches == pending.switches:
                continue
            waited = simulation.now - pending.tested if pending.tested is not None else 0.0
            yield Change(
                pending.job.job_id, switches, waited + row.wait_s if row is not None else 0.0, pending.excluded
            )

    def _row(self, nodes: int) -> Optional[Row]:
        return next((row for row in self._rows if row.first <= nodes <= row.last), None)

    def _look(self, simulation: Simulation) -> None:
        """Take over which nodes are busy, and until when by their jobs' limits."""
        uses = {number: (nodes, start + job.limit_s) for number, (job, start, nodes) in simulation.running.items()}
        uses.update({number: (nodes, end) for number, (end, nodes) in simulation.leaving.items()})
        names = simulation.machine.nodes
        changed: dict[str, NodeUse] = {}
        for number, (nodes, _) in self._uses.items():
            if number not in uses:
                changed.update((names[at], NodeUse(names[at])) for at in bits(nodes))
        for number, (nodes, end) in uses.items():
            if self._uses.get(number) != (nodes, end):
                changed.update((names[at], NodeUse(names[at], Use.BUSY, end)) for at in bits(nodes))
        self._uses = uses
        self._occupancy = self._occupancy.with_nodes(changed.values())


POLICIES = ("none", "tree", "aistation", "aistation:uncorrected")


def make_policy(name: str, machine: Machine, settings: Settings, refresh_s: float) -> Policy:
    """A policy by its name: one of ``POLICIES``, or ``fixed:SECONDS``. Raises ValueError that names the allowed ones."""
    made: dict[str, Callable[[], Policy]] = {
        "none": lambda: Stock(tree=False),
        "tree": Stock,
        "aistation": lambda: Aistation(machine, settings, refresh_s),
        "aistation:uncorrected": lambda: Aistation(machine, settings, refresh_s, correct=False),
    }
    if name in made:
        return made[name]()
    kind, _, wait = name.partition(":")
    if kind == "fixed" and wait.replace(".", "", 1).isdigit():
        return Fixed(float(wait))
    raise ValueError(f"{name!r}: expected one of {', '.join(POLICIES)}, or fixed:SECONDS")
