"""How far back the kernel log counts on this node: ``<state_dir>/klog-since``, seconds since boot.

The log keeps an Xid until the next boot, also when the GPU was reset since. So when somebody gives a node back that we had
drained, what the log held while it was drained (``<state_dir>/klog-drained``) is dealt with (shared/cases/008); a message that
came after the node was given back is a new fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.detectors.kernel_events import Event, find_events
from aistation_slurm.node.acted import Key
from aistation_slurm.node.state import boot_id, write_file
from aistation_slurm.probes.klog import KernelLog, Record

__all__ = ["CHECKS", "events", "given_back", "healed", "newest", "note_drained", "since"]

CHECKS = ("gpu.xid",)
"""Checks that tell of the past. A GPU that is lost still is; a GPU that had an Xid may be well again."""


def events(config: Config) -> list[Event]:
    """The kernel events of this boot that still count. A time that is not in seconds since boot always counts."""
    cut = since(config.node.state_dir)
    # cut before they are made events: a repeated message is one event with its first time
    return find_events([record for record in _records(config) if _seconds(record.time) > cut])


def since(state_dir: str) -> float:
    """Seconds since boot; -1 where everything counts."""
    found = _read(f"{state_dir}/klog-since")
    return -1.0 if found is None else found


def note_drained(config: Config) -> None:
    """The node is drained: what the log holds by now is told to whoever gives it back. Raises OSError."""
    _write(f"{config.node.state_dir}/klog-drained", newest(config))


def given_back(config: Config, keys: Iterable[Key]) -> set[Key]:
    """The node was given back: messages of its drain do not count any more (see the module).

    keys: the faults acted on; returns those that still count as acted on. Raises OSError, and nothing is forgotten.
    """
    cut = _read(f"{config.node.state_dir}/klog-drained")
    _write(f"{config.node.state_dir}/klog-since", newest(config) if cut is None else cut)
    again = {event.pci for event in events(config) if event.drain}
    return {
        (check, subject)
        for check, subject in keys
        if check not in CHECKS and not (check == "gpu.lost" and again & set(subject.split()))
    }


def healed(config: Config, until: float) -> None:
    """A reset has dealt with what the log held at ``until`` (seconds since boot, of :func:`newest`). Raises OSError."""
    if until > since(config.node.state_dir):
        _write(f"{config.node.state_dir}/klog-since", until)


def newest(config: Config) -> float:
    """Seconds since boot of the newest record; -1 where there is none, infinity where its time cannot be read."""
    return max((_seconds(record.time) for record in _records(config)), default=-1.0)


def _records(config: Config) -> list[Record]:
    """None where the log cannot be read."""
    try:
        log = KernelLog(config.probe.kmsg)
    except OSError:
        return []
    try:
        return log.read_new()
    except OSError:
        return []
    finally:
        log.close()


def _read(path: str) -> Optional[float]:
    """None where there is none of this boot."""
    try:
        boot, seconds = Path(path).read_text(encoding="ascii").split()
        return float(seconds) if boot == boot_id() else None
    except (OSError, ValueError):
        return None


def _write(path: str, seconds: float) -> None:
    if seconds != float("inf"):
        write_file(path, f"{boot_id() or '-'} {seconds:.6f}\n".encode("ascii"))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")
