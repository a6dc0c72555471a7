"""``gpu.driver_hang``: a driver call of ours that does not come back. Pure.

The one blocked call that is a fail, and only where nothing else explains it: the child sits in state D past the
confirmation time from entering the call, was seen so twice, and did not move in between. NVML initialisation without
persistence mode takes many seconds on an 8-GPU node, and such a child moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.pending import Blocked

__all__ = ["finding"]

CHECK, SUBJECT = "gpu.driver_hang", "NVIDIA driver"
MOVING_FACTOR = 6
"""A call that moves now and then but has not come back after this many confirmation times hangs too."""


def finding(blocked: Sequence[Blocked], late: str, confirm_s: float, maintenance: str) -> Finding:
    """blocked: our children in state D. late: of a call that did not answer but could be ended. maintenance: driver, MIG or
    reset work that runs on the node right now, in words."""
    hung = [b for b in blocked if _hangs(b, confirm_s)]
    longest = max(hung or blocked, key=lambda b: b.blocked_s, default=None)
    if longest is None:
        if late:
            return Finding(CHECK, Status.UNKNOWN, SUBJECT, late)
        return Finding(CHECK, Status.OK, SUBJECT, "answers")
    text = f"{longest.step} blocked in the driver for {longest.blocked_s:.0f} s (process {longest.pid} in state D)"
    if maintenance:
        return Finding(CHECK, Status.UNKNOWN, SUBJECT, f"{text} while {maintenance} runs")
    if hung:
        return Finding(CHECK, Status.FAIL, SUBJECT, text, Action.REBOOT)
    return Finding(CHECK, Status.UNKNOWN, SUBJECT, f"{text}, a hang after {confirm_s:g} s and a second look")


def _hangs(blocked: Blocked, confirm_s: float) -> bool:
    return blocked.looks >= 2 and (blocked.still_s >= confirm_s or blocked.blocked_s >= MOVING_FACTOR * confirm_s)
