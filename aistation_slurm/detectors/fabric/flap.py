"""``fabric.flap``: a link that goes down again and again, and comes back each time.

Counted are ``link_downed`` and, of an Ethernet port, the carrier losses of its interface, since an earlier look: what a
counter says since boot proves nothing. A loss counts for ``fabric.flap_window_s``; then the finding clears by itself.
Limits: peers act at 3 in 12 h (GPUd) and 5 in 24 h (AzureHPC NHC); "more than 10" is a strong flap (soperator#481).
"""

from __future__ import annotations

from typing import Optional

from aistation_slurm.config import Fabric
from aistation_slurm.detectors.fabric.history import CounterHistory, risen
from aistation_slurm.detectors.fabric.verdict import verdict
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.rdma import PortSnapshot
from aistation_slurm.probes.rdma_counters import HIGHEST

__all__ = ["CARRIER", "COUNTERS", "flap_finding"]

CHECK = "fabric.flap"
CARRIER = "carrier_down_count"
COUNTERS = ("link_downed", CARRIER)


def flap_finding(port: PortSnapshot, history: CounterHistory, limits: Fabric) -> Optional[Finding]:
    """None where the port has no such counter. The two counters see the same losses: the larger one counts."""
    there = [name for name in COUNTERS if name in history.last]
    if not there:
        return None
    name = max(there, key=lambda n: risen(history, n, limits.flap_window_s))
    downs = round(risen(history, name, limits.flap_window_s))
    seen_s = min(history.time - history.since, limits.flap_window_s)
    if downs >= limits.flap_warn:
        status = Status.FAIL if downs > limits.flap_fail else Status.WARN
        limit = f"limit {limits.flap_warn} in {span(limits.flap_window_s)}"
        text = f"flapping: went down {downs} times in {span(seen_s)}, {limit} ({name})"
        return verdict(CHECK, status, port, text, Action.CHECK_CABLE)
    if history.last[name] == HIGHEST.get(name):
        text = f"{name} stands at {history.last[name]}, where it stops: losses cannot be counted until it is cleared (perfquery -R)"
        return verdict(CHECK, Status.OK, port, text)
    if not history.moved_s:
        return verdict(CHECK, Status.OK, port, f"{name} {history.last[name]}, the baseline from now on")
    return verdict(CHECK, Status.OK, port, f"went down {downs} times in {span(seen_s)}")


def span(seconds: float) -> str:
    """``12 h``, ``8.3 min``, ``30 s``."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{round(seconds, 1):g} s"
