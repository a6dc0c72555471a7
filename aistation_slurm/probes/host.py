"""Host facts: memory, disks, boot, and whether this process sees the whole node."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from aistation_slurm.probes.child import run_child

__all__ = ["Disk", "Memory", "boot_id", "inside_job", "node_name", "read_disks", "read_memory", "uptime_s"]


@dataclass(frozen=True)
class Memory:
    """KiB, from /proc/meminfo."""

    total: int
    available: int


@dataclass(frozen=True)
class Disk:
    """A path's file system; error where it could not be asked (or did not answer in time). Percent of 0..100."""

    path: str
    free_percent: float = 0.0
    inodes_free_percent: float = 100.0
    error: str = ""


def node_name() -> str:
    """Slurm's name of this node (slurmd gives it to its scripts), else the short host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


def boot_id(root: Path = Path("/")) -> str:
    """Random id of this boot; empty where it cannot be read."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "" if root == Path("/") else boot_id()


def uptime_s() -> float:
    """Seconds since boot; infinity where unknown, so that nothing is excused by a fresh boot."""
    try:
        return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return float("inf")


def read_memory(root: Path) -> Optional[Memory]:
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    if "MemTotal" not in values or "MemAvailable" not in values:
        return None
    return Memory(int(values["MemTotal"]), int(values["MemAvailable"]))


def read_disks(paths: Sequence[str], deadline_s: float = 3.0) -> list[Disk]:
    """statvfs in a child: a hung mount must not hang the check. A path that does not exist is left out."""

    def ask(step: Callable[[str], None]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in paths:
            step(path)
            try:
                stat = os.statvfs(path)
            except FileNotFoundError:
                continue
            except OSError as exc:
                found.append({"path": path, "error": exc.strerror})
                continue
            free = 100.0 * stat.f_bavail / stat.f_blocks if stat.f_blocks else 100.0
            inodes = 100.0 * stat.f_favail / stat.f_files if stat.f_files else 100.0
            found.append({"path": path, "free_percent": free, "inodes_free_percent": inodes})
        return found

    result = run_child(ask, deadline_s)
    if result.value is None:
        return [Disk(result.step, error=result.error)]
    return [Disk(**row) for row in result.value]


def inside_job() -> bool:
    """True inside a job's step, where a device cgroup may hide the node's other devices. Slurm's own scripts are outside."""
    if os.environ.get("SLURM_SCRIPT_CONTEXT"):
        return False
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="ascii", errors="replace")
    except OSError:
        groups = ""
    if re.search(r"/job_\d+", groups):
        return True
    return bool(os.environ.get("SLURM_JOB_ID")) and bool(
        os.environ.get("SLURM_PROCID") or os.environ.get("SLURM_STEP_ID")
    )
