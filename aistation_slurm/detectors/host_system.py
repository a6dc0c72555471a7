"""What runs on the host: ``host.clock``, ``host.blocked``, ``host.zombies``, ``host.services``. Pure, and reported only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from aistation_slurm.config import Expect
from aistation_slurm.detectors.rates import Look
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.system import Census, Clock

__all__ = ["clock_findings", "process_findings", "service_findings"]


def clock_findings(clock: Optional[Clock], want: Expect) -> Iterator[Finding]:
    if clock is None:
        return
    check, subject, limit = "host.clock", "clock", want.clock_offset_s
    if clock.offset_s is not None and abs(clock.offset_s) > limit:
        text = f"off by {clock.offset_s:g} s ({clock.source}), limit {limit:g} s"
        yield Finding(check, Status.WARN, subject, text, Action.INSPECT, Scope.SHARED)
    elif clock.synchronized is False:
        text = f"{clock.source} says that it is not synchronised"
        yield Finding(check, Status.WARN, subject, text, Action.INSPECT, Scope.SHARED)
    elif clock.synchronized is None:
        yield Finding(check, Status.UNKNOWN, subject, "nobody could be asked", scope=Scope.SHARED)
    else:
        offset = "" if clock.offset_s is None else f", off by {clock.offset_s:g} s"
        yield Finding(check, Status.OK, subject, f"synchronised ({clock.source}){offset}", scope=Scope.SHARED)


def process_findings(census: Optional[Census], earlier: Sequence[Look], now: float, want: Expect) -> Iterator[Finding]:
    """A process in state D in every look of the last minutes, too many of them, or too many zombies."""
    if census is None:
        return
    scope, many = Scope.SHARED, len(census.blocked)
    since = {key: now - _since(key, earlier, now) for key in census.blocked}
    stuck = {key: seconds for key, seconds in since.items() if seconds >= want.blocked_s}
    if stuck:
        key, seconds = max(stuck.items(), key=lambda item: item[1])
        more = f", and {len(stuck) - 1} more" if len(stuck) > 1 else ""
        text = f"{census.blocked[key]} ({key.partition(':')[0]}) for {seconds / 60:.0f} min or more in state D{more}"
        yield Finding("host.blocked", Status.WARN, "processes", text, Action.INSPECT, scope)
    elif many > want.blocked_processes:
        text = f"{many} processes in state D, limit {want.blocked_processes}"
        yield Finding("host.blocked", Status.WARN, "processes", text, Action.INSPECT, scope)
    else:
        yield Finding("host.blocked", Status.OK, "processes", f"{many} in state D", scope=scope)
    if census.zombies > want.zombies:
        text = f"{census.zombies} zombies ({', '.join(census.names)}), limit {want.zombies}"
        yield Finding("host.zombies", Status.WARN, "processes", text, Action.INSPECT, scope)
    else:
        yield Finding("host.zombies", Status.OK, "processes", f"{census.zombies} zombies", scope=scope)


def _since(key: str, earlier: Sequence[Look], now: float) -> float:
    """Time of the first of the unbroken row of looks, up to now, that saw it."""
    first = now
    for look in reversed(earlier):
        if look.stuck is None:
            continue  # this one did not look at processes
        if key not in look.stuck:
            break
        first = look.time
    return first


_RUNNING = ("active", "reloading", "refreshing")


def service_findings(states: Mapping[str, str]) -> Iterator[Finding]:
    """states: unit -> systemd's word, or ``? why`` where it could not be asked."""
    for unit, state in states.items():
        if state.startswith("?"):
            yield Finding("host.services", Status.UNKNOWN, unit, state[1:].strip(), scope=Scope.SHARED)
        elif state in _RUNNING:
            yield Finding("host.services", Status.OK, unit, state, scope=Scope.SHARED)
        else:
            status = Status.WARN if state == "activating" else Status.FAIL
            text = f"is {state}, expected active"
            yield Finding("host.services", status, unit, text, Action.UPDATE_SOFTWARE, Scope.SHARED)
