"""``fabric.errors``: error counters that rise too fast, by rate over the last hour. A warning.

Left out on purpose: port_xmit_wait (congestion), port_rcv_switch_relay_errors (multicast), VL15_dropped (management
datagrams), and what a dying peer or an application causes (retries, flushed completions, out of sequence).
"""

from __future__ import annotations

from typing import Optional

from aistation_slurm.config import Fabric
from aistation_slurm.detectors.fabric.flap import span
from aistation_slurm.detectors.fabric.history import CounterHistory, risen
from aistation_slurm.detectors.fabric.verdict import verdict
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.rdma import PortSnapshot
from aistation_slurm.probes.rdma_counters import BYTES_PER_WORD, DATA

__all__ = ["LIMITS", "WINDOW_S", "error_finding", "gbit_per_s", "symbol_limit"]

CHECK = "fabric.errors"
WINDOW_S = 3600.0
LEAST = 10
"""Fewer are never a rate."""

LIMITS = {
    # counter: in an hour. rdma-core's error_thresholds; UFM's minor alarm for xmit_discards; AWS warns of the last two
    "symbol_error": LEAST,  # and a bit error rate, see symbol_limit
    "link_error_recovery": 10,
    "port_rcv_errors": 10,
    "port_rcv_remote_physical_errors": 100,
    "local_link_integrity_errors": 10,
    "excessive_buffer_overrun_errors": 10,
    "port_xmit_discards": 200,
    "port_xmit_constraint_errors": 100,
    "port_rcv_constraint_errors": 100,
    "rx_icrc_encapsulated": 10,
    "rx_roce_error_pkts": 10,
    "rx_drops": 100,
    "retrans_timeout_events": 100,
}


def symbol_limit(rate_gbps: Optional[float], seconds: float, bit_error_rate: float) -> float:
    """Symbol errors that a link of this rate may have in this time; it always sends, idle symbols too."""
    return max(float(LEAST), (rate_gbps or 0.0) * 1e9 * seconds * bit_error_rate)


def gbit_per_s(words: int, seconds: float) -> float:
    """Of a port_xmit_data or port_rcv_data difference."""
    return words * BYTES_PER_WORD * 8 / seconds / 1e9


def error_finding(port: PortSnapshot, history: CounterHistory, limits: Fabric) -> Optional[Finding]:
    """None where the port has none of the counters."""
    there = [name for name in LIMITS if name in history.last]
    if not there and not any(name in history.last for name in DATA):
        return None
    if not history.moved_s:
        return verdict(CHECK, Status.OK, port, "the counters are the baseline from now on")
    seen_s = min(history.time - history.since, WINDOW_S)
    found, worst = [], Status.OK
    for name in there:
        rise, limit = risen(history, name, WINDOW_S), _limit(name, port, seen_s, limits)
        if rise >= limit:
            worst = Status.WARN
        if round(rise) > 0:
            found.append(f"{name} +{rise:.0f}" + (f" (limit {limit:.0f} an hour)" if rise >= limit else ""))
    text = (", ".join(found) if found else "no errors") + f" in {span(seen_s)}{_traffic(history)}"
    return verdict(CHECK, worst, port, text, Action.CHECK_CABLE if worst is Status.WARN else Action.NONE)


def _limit(name: str, port: PortSnapshot, seen_s: float, limits: Fabric) -> float:
    limit = float(limits.errors_per_hour.get(name, LIMITS[name]))
    if name == "symbol_error" and name not in limits.errors_per_hour:
        return symbol_limit(port.rate_gbps, seen_s, limits.bit_error_rate)
    return limit


def _traffic(history: CounterHistory) -> str:
    """``; sent 96 Gb/s (12000000000 bytes), received ...`` between the last two looks."""
    verbs = dict(zip(DATA, ("sent", "received")))
    words = [f"{verb} {_moved(history, name)}" for name, verb in verbs.items() if name in history.moved]
    return f"; {', '.join(words)} in the last {span(history.moved_s)}" if words else ""


def _moved(history: CounterHistory, name: str) -> str:
    words = history.moved[name]
    return f"{gbit_per_s(words, history.moved_s):.1f} Gb/s ({words * BYTES_PER_WORD} bytes)"
