"""One cycle of sched/backfill: start what delays nobody, plan the rest.

Follows ``_attempt_backfill`` (sched/backfill/backfill.c) and ``_will_run_test`` (select/cons_common/job_test.c) of Slurm 22.05.8:
jobs by priority; each is tested with the nodes that no earlier plan takes; running jobs are taken away by their time limits,
several at once in windows that double; a job that cannot start gets a reservation at its planned time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from aistation_slurm.placement.simulation.machine import count

__all__ = ["Plan", "Running", "not_before", "will_run"]

WINDOW_S = 30.0


class Running(NamedTuple):
    """A running job as the scheduler sees it. end: by its time limit."""

    end: float
    nodes: int


class Plan:
    """Nodes that are free of plans, by time (``node_space``): spans without gaps, from now up to the end of the window."""

    def __init__(self, now: float, window_s: float, nodes: int) -> None:
        self._begins, self._ends, self._free = [now], [now + window_s], [nodes]

    def usable(self, start: float, end: float, nodes: int, need: int) -> tuple[int, float]:
        """What of ``nodes`` no plan takes within start..end (0 where that is less than ``need``), and when more may be free.

        The second is 0 where it never gets more.
        """
        found, later = nodes, 0.0
        begins, free = self._begins, self._free
        last = len(free) - 1
        for at in range(bisect_right(self._ends, start), last + 1):
            here = found & free[at]
            if not later and at < last and nodes & free[at + 1] & ~here:
                later = self._ends[at]
            if begins[at] > end:
                break
            if here != found:
                found = here
                if later and count(found) < need:
                    return 0, later
        return (found if count(found) >= need else 0), later

    def last_change(self, before: float) -> float:
        """The last time before that one at which plans change; 0 for none."""
        at = bisect_left(self._ends, before)
        return self._ends[at - 1] if at else 0.0

    def overlaps(self, start: float, end: float, nodes: int) -> bool:
        for at in range(bisect_right(self._ends, start), len(self._free)):
            if self._begins[at] >= end:
                return False
            if nodes & ~self._free[at]:
                return True
        return False

    def reserve(self, start: float, end: float, nodes: int) -> None:
        self._cut(start)
        self._cut(end)
        for at in range(bisect_right(self._ends, start), len(self._free)):
            if self._begins[at] >= end:
                return
            self._free[at] &= ~nodes

    def _cut(self, time: float) -> None:
        """Let a span begin at that time."""
        at = bisect_right(self._ends, time)
        if at < len(self._ends) and self._begins[at] < time:
            self._begins.insert(at + 1, time)
            self._ends.insert(at, time)
            self._free.insert(at, self._free[at])


def not_before(number: int, usable: int, free: int, running: Sequence[Running]) -> float:
    """Before that time too few nodes are free, whatever is planned; 0 where there are enough now."""
    there = count(free & usable)
    if there >= number:
        return 0.0
    for end, nodes in running:
        there += count(nodes & usable)
        if there >= number:
            return end
    return 0.0


def will_run(
    number: int, usable: int, free: int, running: Sequence[Running], now: float, fits: Optional[Callable[[int], bool]]
) -> Optional[tuple[float, int]]:
    """When a job of ``number`` nodes could start, and the ``usable`` nodes that are free then; None for never.

    fits: whether it would start on some of these nodes, asked where they are enough; None: it always would. running: soonest
    end first.
    """
    open_ = free & usable
    if count(open_) >= number and (fits is None or fits(open_)):
        return now, open_
    window, limit = WINDOW_S, 0.0
    at, last = 0, len(running)
    while at < last:
        end, nodes = running[at]
        at += 1
        if not nodes & usable:
            continue
        if not limit:
            limit = end + WINDOW_S - end % WINDOW_S
        open_ |= nodes & usable
        if at < last and running[at].end <= limit + window:
            continue
        window *= 2
        while at < last and running[at].end > limit + window:
            window *= 2
        if count(open_) >= number and (fits is None or fits(open_)):
            return max(end, now + 1.0), open_
    return None
