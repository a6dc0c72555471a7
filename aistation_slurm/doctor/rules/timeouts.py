"""Slurm's time limits against AIStation's own: the gate's budget, the epilog's, the watchdog's poll and patience."""

from __future__ import annotations

from collections.abc import Iterator

from aistation_slurm.doctor.hooks import paths_of
from aistation_slurm.doctor.model import Item, Severity, Site
from aistation_slurm.node.cleanup import BUDGET_S as EPILOG_BUDGET_S

__all__ = ["judge"]

NO_LIMIT = 65533
"""From here on Slurm's 16-bit seconds mean "unset"."""
SPLIT_SINCE = (25, 5)
"""PrologTimeout and EpilogTimeout."""
SCRIPT_LIMIT_S = 60
RECORD_S = 60
SLOW_DEATH_S = 600
SHORTEST_UNKILLABLE_S = 60
LONG_KILL_WAIT_S = 60


def judge(site: Site) -> Iterator[Item]:
    budget = site.config.gate.budget_s
    if paths_of(site, "Prolog"):
        yield from _script(site, "Prolog", "the gate", budget)
        yield from _message(site, budget)
    if paths_of(site, "Epilog"):
        yield from _script(site, "Epilog", "the epilog", EPILOG_BUDGET_S)
    yield from _record(site)
    yield from _processes(site)
    yield from _dead_nodes(site)


def _script(site: Site, which: str, ours: str, needs_s: float) -> Iterator[Item]:
    own = f"{which}Timeout"
    key = own if site.version >= SPLIT_SINCE and site.conf.get(own) is not None else "PrologEpilogTimeout"
    limit = site.number(key, NO_LIMIT)
    if 0 < limit < NO_LIMIT and limit <= needs_s:
        yield site.advise(
            f"timeouts.{which.lower()}",
            Severity.ERROR,
            key,
            f"{key}={limit} s is not more than the {needs_s:g} s that {ours} may take",
            f"Slurm kills {which} at that time and drains the node, though nothing is wrong with it",
            str(max(SCRIPT_LIMIT_S, int(2 * needs_s))),
        )


def _message(site: Site, budget: float) -> Iterator[Item]:
    limit = site.number("MessageTimeout", 10)
    if limit <= budget:
        yield site.advise(
            "timeouts.message",
            Severity.ERROR,
            "MessageTimeout",
            f"MessageTimeout={limit} s is not more than gate.budget_s, {budget:g} s",
            "slurmd calls a Prolog that runs for longer hung, and srun and salloc give up waiting for it",
            str(int(budget) + 2),
            "or lower gate.budget_s in aistation.toml",
        )
    start = site.number("BatchStartTimeout", 10)
    if start <= budget:
        yield site.advise(
            "timeouts.batch_start",
            Severity.ERROR,
            "BatchStartTimeout",
            f"BatchStartTimeout={start} s is not more than gate.budget_s, {budget:g} s",
            "slurmctld takes a batch job that is still in its gate for lost and ends it when the node registers",
            str(int(budget) + 2),
        )


def _record(site: Site) -> Iterator[Item]:
    poll = site.config.watchdog.poll_s
    needed = int(max(RECORD_S, 2 * poll))
    age = site.number("MinJobAge", 300)
    if 0 < age < needed:
        yield site.advise(
            "timeouts.min_job_age",
            Severity.ERROR,
            "MinJobAge",
            f"MinJobAge={age} s, and the watchdog looks every {poll:g} s",
            "the record of a failed job is gone before the watchdog can requeue it, where its event was lost or the watchdog was "
            f"away; {needed} s are the least",
            "300",
        )


def _processes(site: Site) -> Iterator[Item]:
    wait = site.number("KillWait", 30)
    if wait > LONG_KILL_WAIT_S:
        yield site.advise(
            "timeouts.kill_wait",
            Severity.NOTE,
            "KillWait",
            f"KillWait={wait} s",
            "a rank that does not heed SIGTERM, as one that hangs in a collective, delays the restart of its job by that long",
            "30",
        )
    limit = site.number("UnkillableStepTimeout", 60)
    if limit < SHORTEST_UNKILLABLE_S:
        yield site.advise(
            "timeouts.unkillable_step",
            Severity.WARNING,
            "UnkillableStepTimeout",
            f"UnkillableStepTimeout={limit} s",
            "a process with much GPU or pinned memory takes longer to end after SIGKILL; Slurm then drains healthy nodes with "
            "`Kill task failed`",
            "180",
        )


def _dead_nodes(site: Site) -> Iterator[Item]:
    limit = site.number("SlurmdTimeout", 300)
    if limit == 0:
        yield site.advise(
            "timeouts.slurmd",
            Severity.ERROR,
            "SlurmdTimeout",
            "SlurmdTimeout=0: no node is ever taken for dead",
            "AIStation presumes no node dead before Slurm does, so the jobs of a dead node would never be restarted",
            "300",
        )
    elif limit > SLOW_DEATH_S:
        yield site.advise(
            "timeouts.slurmd",
            Severity.NOTE,
            "SlurmdTimeout",
            f"SlurmdTimeout={limit} s",
            "the jobs of a node that dies wait that long: AIStation presumes no node dead before Slurm does",
        )
