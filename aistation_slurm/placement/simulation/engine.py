"""Time passing: jobs arrive, the main scheduler and backfill start them, they end.

The main scheduler (``schedule()`` of Slurm 22.05) goes by priority at every submission and every end, and stops at the first job
that cannot start; backfill runs every ``bf_interval_s``. ``--switches=N@wait`` is as slurmctld does it: the clock starts when the
job is first tested, a test that gives more leaves fails until the wait is over, and so does a test of a later time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Protocol

from aistation_slurm.placement.simulation.backfill import Plan, Running, not_before, will_run
from aistation_slurm.placement.simulation.machine import Machine, count

__all__ = ["Change", "Pending", "Policy", "Record", "Scheduler", "Simulation", "TraceJob", "simulate"]


class TraceJob(NamedTuple):
    """One job of a trace. Times in seconds; submit_s from the start of the trace; limit_s: its time limit, at least run_s."""

    job_id: int
    submit_s: float
    nodes: int
    run_s: float
    limit_s: float


@dataclass(frozen=True)
class Scheduler:
    """slurmctld's settings (SchedulerParameters), its defaults. turnover_s: a node's epilog, until its next job may start."""

    bf_interval_s: float = 30.0
    bf_resolution_s: float = 60.0
    bf_window_s: float = 86400.0
    bf_max_job_test: int = 500
    turnover_s: float = 0.0
    size_weight: float = 0.0
    """Seconds of age that each node of a job is worth in priority (PriorityWeightJobSize over PriorityWeightAge); 0 is FIFO."""


@dataclass
class Pending:
    """A job in the queue, with what placement asked for. tested: since when the wait for switches counts."""

    job: TraceJob
    switches: int = 0
    wait_s: float = 0.0
    excluded: int = 0
    tested: Optional[float] = None


class Change(NamedTuple):
    """An update of a pending job, as ``scontrol update JobId= Switches=N@wait ExcNodeList=`` makes it."""

    job_id: int
    switches: int
    wait_s: float
    excluded: int


class Record(NamedTuple):
    """A job that ran. nodes: as a set of the machine."""

    job: TraceJob
    start_s: float
    nodes: int

    @property
    def wait_s(self) -> float:
        return self.start_s - self.job.submit_s


class Policy(Protocol):
    """What is done to jobs. tree: whether slurmctld has topology/tree. refresh_s: seconds between refreshes, 0 for none."""

    name: str
    tree: bool
    refresh_s: float

    def submitted(self, pending: Pending, simulation: Simulation) -> None:
        """Called at submission, as job_submit.lua is: may set switches, wait_s and excluded."""

    def refresh(self, simulation: Simulation) -> Iterable[Change]:
        """Called every ``refresh_s``, as the watchdog is; changes that matter most first."""


@dataclass
class Simulation:
    """The state at ``now``. free: nodes without a job; running: by job id, as (job, start, nodes)."""

    machine: Machine
    scheduler: Scheduler
    policy: Policy
    now: float = 0.0
    free: int = 0
    queue: list[Pending] = field(default_factory=list)
    running: dict[int, tuple[TraceJob, float, int]] = field(default_factory=dict)
    leaving: dict[int, tuple[float, int]] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    corrections: int = 0

    def __post_init__(self) -> None:
        self.free = self.machine.all

    def ordered(self) -> list[Pending]:
        """The queue by priority."""
        weight = self.scheduler.size_weight
        if not weight:
            return list(self.queue)
        return sorted(self.queue, key=lambda p: (p.job.submit_s - weight * p.job.nodes, p.job.job_id))

    def limited(self, pending: Pending) -> bool:
        """Whether it still waits for few switches; starts that clock."""
        if not (self.policy.tree and pending.switches):
            return False
        if pending.tested is None:
            pending.tested = self.now
        return self.now - pending.tested < pending.wait_s

    def pick(self, pending: Pending, usable: int, limited: bool) -> int:
        """The nodes that slurmctld would give the job, 0 where it would not start on these."""
        machine, number = self.machine, pending.job.nodes
        if not self.policy.tree:
            return machine.line_pick(usable, number)
        if limited and not machine.can_hold(usable, number, pending.switches):
            return 0
        chosen = machine.tree_pick(usable, number)
        return 0 if limited and machine.spanned(chosen) > pending.switches else chosen

    def try_now(self, pending: Pending, usable: int) -> bool:
        usable &= self.free & ~pending.excluded
        limited = self.limited(pending)
        if count(usable) < pending.job.nodes:
            return False
        chosen = self.pick(pending, usable, limited)
        if not chosen:
            return False
        self.free &= ~chosen
        self.queue.remove(pending)
        self.running[pending.job.job_id] = (pending.job, self.now, chosen)
        self.records.append(Record(pending.job, self.now, chosen))
        return True


def simulate(
    trace: Sequence[TraceJob], machine: Machine, policy: Policy, scheduler: Scheduler = Scheduler()
) -> Simulation:
    """Run ``trace`` (by submit time) to its end. Raises ValueError for a job that no machine of this size can run."""
    for job in trace:
        if not 0 < job.nodes <= len(machine.nodes):
            raise ValueError(f"job {job.job_id} asks for {job.nodes} nodes; there are {len(machine.nodes)}")
    state = Simulation(machine, scheduler, policy)
    for _ in _steps(state, trace):
        pass
    return state


ARRIVE, END, FREE, BACKFILL, REFRESH = range(5)
"""Kinds of events; at one instant, ends come before what the scheduler does with them."""
_ORDER = {END: 0, FREE: 1, ARRIVE: 2, REFRESH: 3, BACKFILL: 4}


def _steps(state: Simulation, trace: Sequence[TraceJob]) -> Iterator[float]:
    """Yields the time after every event."""
    scheduler, policy = state.scheduler, state.policy
    events: list[tuple[float, int, int, int]] = []
    for at, job in enumerate(trace):
        heapq.heappush(events, (job.submit_s, _ORDER[ARRIVE], ARRIVE, at))
    started = 0
    changed = True
    begin = trace[0].submit_s if trace else 0.0
    heapq.heappush(events, (begin + scheduler.bf_interval_s, _ORDER[BACKFILL], BACKFILL, 0))
    if policy.refresh_s:
        heapq.heappush(events, (begin, _ORDER[REFRESH], REFRESH, 0))
    arrivals = len(trace)
    expiry = 0.0
    while events:
        now, _, kind, which = heapq.heappop(events)
        state.now = now
        if kind == ARRIVE:
            arrivals -= 1
            pending = Pending(trace[which])
            policy.submitted(pending, state)
            state.queue.append(pending)
            _schedule(state)
            changed = True
        elif kind == END:
            _, _, nodes = state.running.pop(which)
            if scheduler.turnover_s:
                state.leaving[which] = (now + scheduler.turnover_s, nodes)
                heapq.heappush(events, (now + scheduler.turnover_s, _ORDER[FREE], FREE, which))
            else:
                state.free |= nodes
                if not (events and events[0][0] == now and events[0][2] == END):
                    _schedule(state)
            changed = True
        elif kind == FREE:
            state.free |= state.leaving.pop(which)[1]
            if not (events and events[0][0] == now and events[0][2] == FREE):
                _schedule(state)
            changed = True
        elif kind == REFRESH:
            changed |= _apply(state, policy.refresh(state))
            if arrivals or state.queue:
                heapq.heappush(events, (now + policy.refresh_s, _ORDER[REFRESH], REFRESH, 0))
        else:
            if state.queue and (changed or now >= expiry):
                _backfill(state)
                changed = False
                expiry = min(
                    (
                        p.tested + p.wait_s
                        for p in state.queue
                        if p.switches and p.tested is not None and p.tested + p.wait_s > now
                    ),
                    default=float("inf"),
                )
            if arrivals or state.queue:
                heapq.heappush(events, (now + scheduler.bf_interval_s, _ORDER[BACKFILL], BACKFILL, 0))
        for record in state.records[started:]:
            heapq.heappush(events, (now + record.job.run_s, _ORDER[END], END, record.job.job_id))
        started = len(state.records)
        yield now


def _apply(state: Simulation, changes: Iterable[Change]) -> bool:
    """At most 10 updates a second, as the product does."""
    most = max(1, int(10 * state.policy.refresh_s))
    by_id = {pending.job.job_id: pending for pending in state.queue}
    done = 0
    for change in changes:
        pending = by_id.get(change.job_id)
        if pending is None:
            continue
        if done >= most:
            break
        pending.switches, pending.wait_s, pending.excluded = change.switches, change.wait_s, change.excluded
        done += 1
    state.corrections += done
    return done > 0


def _schedule(state: Simulation) -> None:
    """The main scheduler: in order of priority, until one does not start."""
    for pending in state.ordered():
        if not state.try_now(pending, state.machine.all):
            return


RETRIES = 1000
"""Times that one job is tried later in a cycle; slurmctld goes on until bf_max_time."""


def _backfill(state: Simulation) -> None:
    now, settings = state.now, state.scheduler
    plan = Plan(now, settings.bf_window_s, state.machine.all)
    running = _running(state)
    resolution = settings.bf_resolution_s
    for pending in state.ordered()[: settings.bf_max_job_test]:
        job = pending.job
        allowed = state.machine.all & ~pending.excluded
        if count(allowed) < job.nodes:
            continue
        later = 0.0
        limited = state.limited(pending)
        fits = (lambda open_, p=pending: bool(state.pick(p, open_, True))) if limited else None
        # no plan before that time can let it start: what slurmctld tries one by one is passed over
        earliest = plan.last_change(not_before(job.nodes, allowed, state.free, running))
        for _ in range(RETRIES):
            from_ = later
            begin = max(from_, now)
            usable, later = plan.usable(begin, begin + job.limit_s, allowed, job.nodes)
            found = will_run(job.nodes, usable, state.free, running, now, fits) if usable else None
            if found is None:
                if later:
                    later = max(later, earliest)
                    continue
                break
            start = max(found[0], from_)
            if start <= now:
                if state.try_now(pending, usable):
                    plan.reserve(now, _floor(now + job.limit_s, resolution), state.records[-1].nodes)
                    running = _running(state)
                break
            if later and start > later:
                later = max(later, earliest)
                continue
            if start > now + settings.bf_window_s:
                break
            chosen = state.pick(pending, found[1], limited)
            low, high = _floor(start, resolution), _floor(start + job.limit_s, resolution)
            if plan.overlaps(low, high, chosen):
                later = start
                continue
            plan.reserve(low, high, chosen)
            break


def _floor(time: float, resolution: float) -> float:
    return time - time % resolution


def _running(state: Simulation) -> list[Running]:
    """By the end that the scheduler expects, soonest first."""
    jobs = [Running(start + job.limit_s, nodes) for job, start, nodes in state.running.values()]
    jobs += [Running(end, nodes) for end, nodes in state.leaving.values()]
    return sorted(jobs)
