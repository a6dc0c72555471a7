"""What the counters of a port rose by, from look to look. Pure: the caller keeps the history and tells the time.

A counter that is lower than before was cleared, or its driver was loaded anew (error counters stop and do not wrap, see
rdma_counters.HIGHEST; others have 64 bits): its new value is a new baseline. So is the first value of a boot. A rise is
kept with the time it fell into, so that a window can be asked about; between looks that lie further apart than the
window, a rise counts for its share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

__all__ = ["CounterHistory", "Rise", "advance", "risen"]

_MERGE_S = 600.0
"""Rises are kept as one while they lie within this: a counter that never rests stays a short list."""


@dataclass(frozen=True)
class Rise:
    """By ``amount``, somewhere from ``begin`` to ``end``. Seconds by the caller's clock."""

    begin: float
    end: float
    amount: int


@dataclass(frozen=True)
class CounterHistory:
    """since: of the first look. time: of the last one, with the values then. moved, moved_s: what rose between the last two."""

    since: float
    time: float
    last: dict[str, int] = field(default_factory=dict)
    rises: dict[str, list[Rise]] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    moved_s: float = 0.0


def advance(
    old: Optional[CounterHistory],
    values: Mapping[str, int],
    now: float,
    windows: Mapping[str, float],
    settled: bool = True,
) -> CounterHistory:
    """The history with one more look. windows: seconds that rises of a counter are kept for; others only move the baseline.

    settled: False while the node has just booted; its fabric is coming up, and rises do not count.
    """
    if old is not None and now == old.time and dict(values) == old.last:
        return old
    if old is None or now <= old.time:
        # a clock that stands or goes back is another node's, or another boot's
        return CounterHistory(now, now, dict(values))
    moved = {name: value - old.last[name] for name, value in values.items() if value >= old.last.get(name, value + 1)}
    rises: dict[str, list[Rise]] = {}
    for name, window in windows.items():
        kept = [rise for rise in old.rises.get(name, ()) if rise.end > now - window]
        if settled and moved.get(name, 0) > 0:
            kept = _with(kept, Rise(old.time, now, moved[name]))
        if kept:
            rises[name] = kept
    return CounterHistory(old.since, now, {**old.last, **values}, rises, moved, now - old.time)


def risen(history: CounterHistory, name: str, window_s: float) -> float:
    """Rise of the counter in the window that ends with the last look."""
    start = history.time - window_s
    total = 0.0
    for rise in history.rises.get(name, ()):
        length = rise.end - rise.begin
        total += rise.amount * (min(1.0, (rise.end - start) / length) if length > 0 else 1.0)
    return total


def _with(rises: list[Rise], new: Rise) -> list[Rise]:
    if rises and new.end - rises[-1].begin <= _MERGE_S:
        return [*rises[:-1], Rise(rises[-1].begin, new.end, rises[-1].amount + new.amount)]
    return [*rises, new]
