"""``gpu.throttle``, ``gpu.clocks``, ``gpu.temperature``, ``gpu.power``. Pure.

Warnings all of them: heat and power are often the room's or the rack's doing, and the card protects itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Optional

from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, about
from aistation_slurm.detectors.rates import GpuLook, growth, slow_clock, span_s, times_seen
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.nvml import GpuSnapshot

__all__ = ["HELD", "findings"]

HELD = {0x8: "HW slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake"}
"""nvmlClocksEventReasons bits that mean the hardware protects itself; the other bits are policy or idling."""

_HELD_BITS = sum(HELD)
ENOUGH_LOOKS = 5
"""With fewer looks in the window there is no rate, and one slow moment is said as it is."""


def findings(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    for gpu in facts.working:
        yield from _throttle(facts, gpu, names)
        yield from _slow_clock(facts, gpu, names)
        yield from _temperature(gpu, names)
    yield from _power(facts, names)


def _throttle(facts: GpuFacts, gpu: GpuSnapshot, names: Names) -> Iterator[Finding]:
    check, limit = "gpu.throttle", facts.want.throttle_percent
    if gpu.throttle is None:
        return
    held = [text for bit, text in HELD.items() if gpu.throttle & bit]
    seen, looks = times_seen(facts.earlier, gpu.pci, _held)
    seen, looks, span = seen + bool(held), looks + 1, span_s(facts.earlier, facts.now)
    share = 100.0 * seen / looks
    hot_ns = growth(facts.earlier, gpu.pci, _thermal, gpu.thermal_ns)
    hot = hot_ns / 1e7 / span if span > 0 and looks >= ENOUGH_LOOKS else 0.0
    at = f" at {gpu.temperature} C" if gpu.temperature else ""
    if looks >= ENOUGH_LOOKS and share >= limit:
        what = ", ".join(held) or "HW slowdown"
        text = f"{what}{at}, in {seen} of {looks} looks over {span / 60:.0f} min, limit {limit:g} %"
        yield about(names, gpu.pci, check, Status.WARN, text, Action.INSPECT, Scope.SHARED)
    elif hot >= limit:
        text = f"heat held the clocks down for {hot:.0f} % of {span / 60:.0f} min{at}, limit {limit:g} %"
        yield about(names, gpu.pci, check, Status.WARN, text, Action.INSPECT, Scope.SHARED)
    elif held and looks < ENOUGH_LOOKS:
        yield about(names, gpu.pci, check, Status.WARN, ", ".join(held) + at, Action.INSPECT, Scope.SHARED)
    elif seen:
        text = f"hardware slowdown in {seen} of {looks} looks over {span / 60:.0f} min, limit {limit:g} %"
        yield about(names, gpu.pci, check, Status.OK, text, scope=Scope.SHARED)


def _held(look: GpuLook) -> Optional[bool]:
    return None if look.throttle is None else bool(look.throttle & _HELD_BITS)


def _thermal(look: GpuLook) -> Optional[int]:
    return look.thermal_ns


def _slow_clock(facts: GpuFacts, gpu: GpuSnapshot, names: Names) -> Iterator[Finding]:
    """Under load in every look that could tell, and at least in three: one moment between two kernels says nothing."""
    if not slow_clock(gpu):
        return
    seen, looks = times_seen(facts.earlier, gpu.pci, lambda look: look.slow_clock)
    if looks >= 2 and seen == looks:
        text = (
            f"{gpu.sm_clock} MHz under load in {looks + 1} looks, maximum {gpu.sm_clock_max}, and no policy asks for it"
        )
        yield about(names, gpu.pci, "gpu.clocks", Status.WARN, text, Action.INSPECT, Scope.SHARED)


def _temperature(gpu: GpuSnapshot, names: Names) -> Iterator[Finding]:
    check = "gpu.temperature"
    hot = []
    if gpu.temperature is not None:
        for limit, what in ((gpu.temperature_shutdown, "shuts down"), (gpu.temperature_slowdown, "slows down")):
            if limit and gpu.temperature >= limit:
                hot.append(f"{gpu.temperature} C, the card {what} at {limit} C")
                break
    memory, most = gpu.temperature_memory, gpu.temperature_memory_max
    if memory is not None and most and memory >= most:
        hot.append(f"memory at {memory} C, its limit is {most} C")
    if hot:
        yield about(names, gpu.pci, check, Status.WARN, "; ".join(hot), Action.INSPECT, Scope.SHARED)
    elif gpu.temperature is not None and gpu.temperature_slowdown:
        text = f"{gpu.temperature} C, slows down at {gpu.temperature_slowdown} C"
        yield about(names, gpu.pci, check, Status.OK, text, scope=Scope.SHARED)


def _power(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    """A limit below that of most like cards of the node: one slow card slows every rank of a job."""
    known = [g for g in facts.working if g.power_limit]
    for name in dict.fromkeys(g.name for g in known):
        alike = [g for g in known if g.name == name]
        (usual, owners), *_ = Counter(g.power_limit or 0 for g in alike).most_common(1)
        for gpu in alike:
            limit = gpu.power_limit or 0
            if limit < usual and owners > len(alike) / 2:
                text = f"limited to {limit // 1000} W, most like cards here to {usual // 1000} W"
                yield about(names, gpu.pci, "gpu.power", Status.WARN, text, Action.INSPECT, Scope.SHARED)
            elif gpu.power_default and limit < gpu.power_default and owners <= len(alike) / 2:
                text = f"limited to {limit // 1000} W, default {gpu.power_default // 1000} W"
                yield about(names, gpu.pci, "gpu.power", Status.WARN, text, Action.INSPECT, Scope.SHARED)
