"""Time passes as under slurmctld: the main scheduler stops at the first job that cannot start, backfill goes on, waits end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from aistation_slurm.placement.decision import Settings
from aistation_slurm.placement.simulation.backfill import Plan, Running, not_before, will_run
from aistation_slurm.placement.simulation.engine import Change, Pending, Scheduler, Simulation, TraceJob, simulate
from aistation_slurm.placement.simulation.machine import Machine, bits
from aistation_slurm.placement.simulation.policy import Aistation, Fixed, Stock, make_policy
from aistation_slurm.placement.simulation.study import Conditions, clos, study
from aistation_slurm.placement.simulation.synthetic import Workload, make

TWO = Machine(clos(2, 4, 1))
SOON = Scheduler(bf_interval_s=2.0, bf_resolution_s=1.0)


def job(number: int, at: float, nodes: int, run: float, limit: float = 60.0) -> TraceJob:
    return TraceJob(number, at, nodes, run, max(limit, run))


def starts(
    jobs: Sequence[TraceJob], machine: Machine = TWO, scheduler: Scheduler = SOON, wait_s: float = -1
) -> dict[int, float]:
    policy = Stock() if wait_s < 0 else Fixed(wait_s)
    return {r.job.job_id: r.start_s for r in simulate(jobs, machine, policy, scheduler).records}


def test_first_in_first_out_and_at_once_where_there_is_room() -> None:
    assert starts([job(1, 0, 6, 10), job(2, 1, 6, 10), job(3, 2, 6, 10)]) == {1: 0, 2: 10, 3: 20}


def test_a_small_job_is_backfilled_only_where_its_limit_ends_before_the_planned_start() -> None:
    first, waiting = job(1, 0, 6, 50, limit=100), job(2, 1, 8, 10)
    assert starts([first, waiting, job(3, 2, 2, 5, limit=60)]) == {1: 0, 3: 2, 2: 50}
    # its limit is longer than the first job's: it would delay the second, and so comes after it
    assert starts([first, waiting, job(3, 2, 2, 5, limit=200)])[3] == 60


def test_switches_wait_then_spread() -> None:
    # one node of each leaf is free: two nodes on one leaf are there at 40 only
    held = [job(1, 0, 3, 40), job(2, 0, 3, 50)]
    assert starts([*held, job(3, 1, 2, 5)])[3] == 1
    assert starts([*held, job(3, 1, 2, 5)], wait_s=1000)[3] == 40
    assert 11 <= starts([*held, job(3, 1, 2, 5)], wait_s=10)[3] <= 14


def test_a_node_needs_its_turnover() -> None:
    slow = Scheduler(bf_interval_s=2.0, turnover_s=3.0)
    assert starts([job(1, 0, 8, 10), job(2, 1, 8, 10)], scheduler=slow)[2] == 13


def test_large_jobs_first_where_size_counts() -> None:
    jobs = [job(1, 0, 8, 10), job(2, 1, 1, 10), job(3, 2, 8, 10)]
    assert starts(jobs)[2] == 10
    sized = Scheduler(bf_interval_s=2.0, size_weight=100.0)
    assert starts(jobs, scheduler=sized)[3] == 10


def test_no_node_twice_and_all_jobs_run() -> None:
    machine = Machine(clos(4, 4, 2))
    trace = make(Workload(jobs=150, load=1.1, sizes=(1, 2, 4, 8), shares=(0.4, 0.3, 0.2, 0.1)), 16, 3)
    for name in ("none", "tree", "fixed:5", "aistation", "aistation:uncorrected"):
        records = simulate(trace, machine, make_policy(name, machine, Settings(), 2.0), SOON).records
        assert len(records) == len(trace)
        assert all(len(bits(r.nodes)) == r.job.nodes and r.start_s >= r.job.submit_s for r in records)
        changes = sorted(
            [(r.start_s + r.job.run_s, 0, r.nodes) for r in records] + [(r.start_s, 1, r.nodes) for r in records]
        )
        busy = 0
        for _, begins, nodes in changes:
            assert not begins or not busy & nodes
            busy = busy | nodes if begins else busy & ~nodes


def test_the_same_seed_gives_the_same_run() -> None:
    trace = make(Workload(jobs=60), 8, 1)
    small = [one for one in trace if one.nodes <= 8]
    one, other = (simulate(small, TWO, Aistation(TWO, Settings(), 2.0), SOON).records for _ in range(2))
    assert one == other


def test_aistation_never_lets_a_job_of_half_a_leaf_cross_leaves_while_that_is_soon_had() -> None:
    machine = Machine(clos(8, 8, 2))
    trace = make(Workload(jobs=200, load=0.9, sizes=(1, 2, 4), shares=(0.5, 0.3, 0.2)), 64, 5)
    crossing = {}
    for name in ("tree", "aistation"):
        records = simulate(trace, machine, make_policy(name, machine, Settings(), 2.0), SOON).records
        crossing[name] = sum(1 for r in records if machine.spanned(r.nodes) > 1)
    assert crossing["aistation"] == 0 < crossing["tree"]


class Excluding:
    """Keeps every job off the first leaf until it is corrected at 10 s."""

    name, tree, refresh_s = "excluding", True, 10.0

    def submitted(self, pending: Pending, simulation: Simulation) -> None:
        pending.excluded = simulation.machine.leaves[0]

    def refresh(self, simulation: Simulation) -> Iterable[Change]:
        return [Change(p.job.job_id, 0, 0.0, 0) for p in simulation.queue if p.excluded] if simulation.now >= 10 else []


def test_excluded_nodes_are_not_used_until_they_are_lifted() -> None:
    run = simulate([job(1, 0, 4, 100), job(2, 1, 4, 10)], TWO, Excluding(), SOON)
    assert [(r.start_s, bits(r.nodes)) for r in run.records] == [(0, [4, 5, 6, 7]), (10, [0, 1, 2, 3])]
    assert run.corrections == 1


def test_a_job_that_is_too_large_is_an_error() -> None:
    with pytest.raises(ValueError, match="asks for 9 nodes; there are 8"):
        simulate([job(1, 0, 9, 1)], TWO, Stock())


@pytest.mark.parametrize("name", ["", "fixed:", "fixed:x", "best"])
def test_an_unknown_policy_names_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="none, tree, aistation"):
        make_policy(name, TWO, Settings(), 1.0)


# ---- the plan of one backfill cycle


def test_the_plan_knows_what_is_reserved_when() -> None:
    plan = Plan(0.0, 1000.0, 0b1111)
    plan.reserve(100.0, 200.0, 0b0011)
    # as slurmctld, which looks one span further than the job lasts
    assert plan.usable(0.0, 50.0, 0b1111, 1) == (0b1111, 200.0)
    assert plan.usable(300.0, 350.0, 0b1111, 1) == (0b1111, 0.0)
    assert plan.usable(0.0, 150.0, 0b1111, 1) == (0b1100, 200.0)
    assert plan.usable(0.0, 150.0, 0b1111, 3) == (0, 200.0)
    assert plan.overlaps(150.0, 160.0, 0b0001)
    assert not plan.overlaps(200.0, 300.0, 0b0001)
    assert plan.last_change(150.0) == 100.0


def test_when_a_job_will_run_by_the_limits_of_those_that_run() -> None:
    running = [Running(30.0, 0b0001), Running(500.0, 0b0010), Running(900.0, 0b0100)]
    assert will_run(1, 0b1111, 0b1000, running, 10.0, None) == (10.0, 0b1000)
    assert will_run(2, 0b1111, 0b1000, running, 10.0, None) == (30.0, 0b1001)
    assert will_run(4, 0b1111, 0b1000, running, 10.0, None) == (900.0, 0b1111)
    assert will_run(4, 0b0111, 0b0000, running, 10.0, None) is None
    assert not_before(3, 0b1111, 0b1000, running) == 500.0


def test_the_policy_keeps_its_promises_on_a_short_trace() -> None:
    """The aims, on few and short traces; docs/decisions/0014-placement-policy.md has the figures of many and long ones."""
    machine = Machine(clos(16, 8, 4))
    for load, most in ((0.9, 1.10), (1.1, 1.25)):
        workload = Workload(jobs=300, load=load)
        made = [make(workload, 128, seed) for seed in range(3)]
        found = study(made, ("tree", "aistation"), Conditions(machine, SOON, refresh_s=2.0))
        assert found.value("tree", lambda f: f.over).value > most
        assert found.value("aistation", lambda f: f.over).value <= most
        assert found.against("aistation", lambda f: f.wait_s).value <= 1.1
        assert found.against("aistation", lambda f: f.utilisation).value >= 0.98
