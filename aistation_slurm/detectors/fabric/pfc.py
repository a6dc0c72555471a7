"""``fabric.pfc``: pause storms, and flow control settings that differ between the HCAs of a node. Warnings.

An HCA that *sends* pause for long cannot take what arrives (a stuck PCIe slot, a hung GPU) and holds up its switch; pause
that is *received* is congestion elsewhere, no fault of this node. Counters: ``ethtool -S`` of mlx5 (durations in
microseconds; storm events by the device's own stall watermark), and pause frames of drivers without durations (bnxt_en, ice).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Optional

from aistation_slurm.config import Fabric
from aistation_slurm.detectors.fabric.flap import span
from aistation_slurm.detectors.fabric.history import CounterHistory, risen
from aistation_slurm.detectors.fabric.judged import most_common
from aistation_slurm.detectors.fabric.verdict import HCAS, verdict
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["COUNTERS", "STATISTICS", "WINDOW_S", "pause_counters", "pause_finding", "setting_findings"]

CHECK = "fabric.pfc"
WINDOW_S = 1800.0
LEAST_S = 20.0
"""A share of less time than this says nothing."""

STORMS, PAUSED_US, FRAMES = "pause_storms", "pause_sent_us", "pause_frames_sent"
COUNTERS = (STORMS, PAUSED_US, FRAMES)
FRAMES_PER_S = 1000.0
"""One pause frame holds a 100 Gb/s link for at most 335 us: 65535 quanta of 512 bit times."""

_SUMMED = {
    STORMS: r"tx_pause_storm_(?:warning|error)_events",
    PAUSED_US: r"tx_prio[0-7]_pause_duration|tx_global_pause_duration",
    FRAMES: r"tx_pfc_frames|tx_pause_frames|tx_priority_[0-7]_xoff(?:\.nic)?",
}

STATISTICS = "|".join(_SUMMED.values())
"""Pattern of the drivers' names that are of use here."""


def pause_counters(statistics: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The three sums out of a port's interface (of a bond, of each slave); those that no driver tells are left out."""
    found: dict[str, int] = {}
    for name, pattern in _SUMMED.items():
        values = [v for one in statistics for key, v in one.items() if re.fullmatch(pattern, key)]
        if values:
            found[name] = sum(values)
    return found


def pause_finding(port: PortSnapshot, history: CounterHistory, limits: Fabric) -> Optional[Finding]:
    """None where the driver tells nothing of pauses, or not long enough."""
    seen_s = min(history.time - history.since, WINDOW_S)
    if not any(name in history.last for name in COUNTERS) or seen_s <= 0:
        return None
    storms = round(risen(history, STORMS, WINDOW_S))
    share = 100 * risen(history, PAUSED_US, WINDOW_S) / 1e6 / seen_s
    frames = risen(history, FRAMES, WINDOW_S) / seen_s
    long_enough = seen_s >= LEAST_S
    if storms or (long_enough and share >= limits.pause_percent):
        seen = f"sends pause {share:.0f} % of the time, {storms} pause storm events in {span(seen_s)}"
        text = f"{seen}; limit {limits.pause_percent:g} %"
        return verdict(CHECK, Status.WARN, port, text, Action.INSPECT)
    if long_enough and PAUSED_US not in history.last and frames >= FRAMES_PER_S:
        text = f"sends {frames:.0f} pause frames a second over {span(seen_s)}, limit {FRAMES_PER_S:g}"
        return verdict(CHECK, Status.WARN, port, text, Action.INSPECT)
    return verdict(CHECK, Status.OK, port, f"pause sent {share:.1f} % of the time, no storm in {span(seen_s)}")


def setting_findings(ports: Sequence[PortSnapshot]) -> list[Finding]:
    """ECN and traffic class against most ports of the same model; ports: those that jobs use."""
    known = [p for p in ports if p.kind == "roce" and p.settings]
    out: list[Finding] = []
    for port in known:
        like = [p for p in known if p.model == port.model]
        for name, value in port.settings.items():
            usual = most_common([p for p in like if name in p.settings], lambda p, key=name: p.settings[key])  # type: ignore[misc]
            if usual is not None and value != usual:
                text = f"{name}: {value}, expected {usual} as most of its kind have it"
                out.append(verdict(CHECK, Status.WARN, port, text, Action.INSPECT))
    if known and not out:
        told = sorted({f"{name} {value}" for p in known for name, value in p.settings.items()})
        out.append(verdict(CHECK, Status.OK, HCAS, "; ".join(told)))
    return out
