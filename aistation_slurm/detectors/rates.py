"""Counters by delta and rate over the looks of one boot. Pure.

A counter that went down was reset (driver reload, GPU reset): what it shows now is what was counted since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import msgspec

from aistation_slurm.probes.nvml import GpuSnapshot

__all__ = ["WINDOW_S", "GpuLook", "Look", "gpu_looks", "growth", "increase", "span_s", "times_seen"]

WINDOW_S = 600.0
"""Rates are taken over the looks of this time."""

LOADED_PERCENT = 50
"""Utilisation from which a GPU counts as under load: only then do clocks and link speed have to be up."""


class GpuLook(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one look keeps of one GPU. throttle: bits of the clock event reasons. thermal_ns: time held down by heat.

    slow_link, slow_clock: below their maximum although the GPU was under load; None where it was not, or is not known.
    lanes: width of the PCIe link.
    """

    throttle: Optional[int] = None
    thermal_ns: Optional[int] = None
    counters: dict[str, int] = {}
    slow_link: Optional[bool] = None
    slow_clock: Optional[bool] = None
    lanes: Optional[int] = None


class Look(msgspec.Struct, frozen=True):
    """One earlier look. time: unix seconds. gpus: by PCI address. stuck: processes in state D,
    ``pid:start ticks`` -> name; None where it did not look at processes."""

    time: float
    gpus: dict[str, GpuLook] = {}
    stuck: Optional[dict[str, str]] = None


def gpu_looks(gpus: Sequence[GpuSnapshot]) -> dict[str, GpuLook]:
    """What is kept of these GPUs for the looks to come."""
    return {g.pci: _keep(g) for g in gpus if g.pci and not g.lost}


def _keep(gpu: GpuSnapshot) -> GpuLook:
    counters = dict(gpu.nvlink_errors)
    if gpu.pcie_replays is not None:
        counters["pcie_replay"] = gpu.pcie_replays
    return GpuLook(gpu.throttle, gpu.thermal_ns, counters, slow_link(gpu), slow_clock(gpu), gpu.pcie_width)


def slow_link(gpu: GpuSnapshot) -> Optional[bool]:
    """Idle cards lower the speed of their link, so it says something only under load."""
    if gpu.utilization is None or gpu.utilization < LOADED_PERCENT or not gpu.pcie_gen or not gpu.pcie_max_gen:
        return None
    return gpu.pcie_gen < gpu.pcie_max_gen


def slow_clock(gpu: GpuSnapshot) -> Optional[bool]:
    """Below half of the maximum under load, with no policy (power cap, application clocks, ...) that asks for it."""
    if gpu.utilization is None or gpu.utilization < LOADED_PERCENT or not gpu.sm_clock or not gpu.sm_clock_max:
        return None
    policy = (gpu.throttle or 0) & ~0x1
    return not policy and gpu.sm_clock < gpu.sm_clock_max / 2


def growth(earlier: Sequence[Look], pci: str, read: Callable[[GpuLook], Optional[int]], now: Optional[int]) -> int:
    """How much a counter grew from the oldest of these looks until now, resets counted from 0."""
    if now is None:
        return 0
    values = [read(look.gpus[pci]) for look in earlier if pci in look.gpus]
    known = [v for v in values if v is not None] + [now]
    return sum(increase(old, new) for old, new in zip(known, known[1:]))


def increase(old: int, new: int) -> int:
    return new - old if new >= old else new


def times_seen(earlier: Sequence[Look], pci: str, read: Callable[[GpuLook], Optional[bool]]) -> tuple[int, int]:
    """(looks that saw it, looks that could tell)."""
    told = [read(look.gpus[pci]) for look in earlier if pci in look.gpus]
    known = [value for value in told if value is not None]
    return sum(known), len(known)


def span_s(earlier: Sequence[Look], now: float) -> float:
    return now - earlier[0].time if earlier else 0.0
