"""How far back the kernel log counts on this node: ``<state_dir>/klog-since``, seconds since boot.

The log keeps an Xid until the next boot, also when the GPU was reset since. So when somebody gives a node back that we had
drained, everything older is dealt with (shared/cases/008).
"""

from __future__ import annotations

from pathlib import Path

from aistation_slurm.config import Config
from aistation_slurm.detectors.kernel_events import Event
from aistation_slurm.node.health import kernel_events
from aistation_slurm.node.state import boot_id, write_file

__all__ = ["CHECKS", "events", "forget_past", "since"]

CHECKS = ("gpu.xid",)
"""Checks that tell of the past. A GPU that is lost still is; a GPU that had an Xid may be well again."""


def events(config: Config) -> list[Event]:
    """The kernel events of this boot that still count. A time that is not in seconds since boot always counts."""
    cut = since(config.node.state_dir)
    return [event for event in kernel_events(config) if _seconds(event.time) > cut]


def since(state_dir: str) -> float:
    """Seconds since boot; -1 where everything counts."""
    try:
        boot, seconds = (Path(state_dir) / "klog-since").read_text(encoding="ascii").split()
        return float(seconds) if boot == boot_id() else -1.0
    except (OSError, ValueError):
        return -1.0


def forget_past(config: Config) -> None:
    """From now on only messages newer than the newest one there is count. Raises OSError."""
    newest = max((_seconds(event.time) for event in kernel_events(config)), default=-1.0)
    if newest != float("inf"):
        write_file(f"{config.node.state_dir}/klog-since", f"{boot_id() or '-'} {newest:.6f}\n".encode("ascii"))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")
