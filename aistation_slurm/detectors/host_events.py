"""What the kernel's messages of this boot say about the host: file systems that stopped, drives, memory. Pure; warnings.

A message is history: the state of the thing itself is judged where the kernel shows it (host_storage.py, host_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aistation_slurm.detectors.kernel_events import Event
from aistation_slurm.findings import Action, Finding, Scope, Status

__all__ = ["findings"]

_CHECKS = {"read_only": "host.mounts", "nvme": "host.nvme", "mce": "host.memory_errors"}


def findings(events: Sequence[Event]) -> Iterator[Finding]:
    """One for each device and what happened to it."""
    told: dict[tuple[str, str, str], int] = {}
    for event in events:
        grave = event.fatal or (event.kind == "mce" and event.severity == "uncorrected")
        if event.kind in _CHECKS and grave and not event.superseded:
            what = event.meaning or f"{event.severity} error"
            key = (_CHECKS[event.kind], event.device or event.kind, what)
            told[key] = told.get(key, 0) + event.count
    for (check, device, what), count in told.items():
        times = f", {count} times" if count > 1 else ""
        text = f"the kernel log of this boot: {what}{times}"
        yield Finding(check, Status.WARN, device, text, Action.INSPECT, Scope.SHARED)
