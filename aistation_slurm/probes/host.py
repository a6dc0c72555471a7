"""Host facts: memory, disks, boot, and whether this process sees the whole node."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

from aistation_slurm.probes import pending

__all__ = [
    "Disk",
    "Memory",
    "boot_id",
    "captured_name",
    "driver_work",
    "inside_job",
    "node_name",
    "read_disks",
    "read_memory",
    "uptime_s",
]


@dataclass(frozen=True)
class Memory:
    """KiB, from /proc/meminfo. corrupted: pages that the kernel put aside for errors of the hardware."""

    total: int
    available: int
    swap_total: int = 0
    swap_free: int = 0
    corrupted: int = 0


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


def captured_name(root: Path) -> str:
    """Host name that a captured tree tells, else the name of its folder."""
    for path in ("proc/sys/kernel/hostname", "etc/hostname"):
        try:
            name = (root / path).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            continue
        if name:
            return name.split(".")[0]
    return root.resolve().name


def boot_id(root: Path = Path("/")) -> str:
    """Random id of this boot; empty where it cannot be read."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def uptime_s(root: Path = Path("/")) -> float:
    """Seconds since boot; infinity where unknown, so that nothing is excused by a fresh boot."""
    try:
        return float((root / "proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return float("inf")


def driver_work(step: Callable[[str], None] = lambda _: None) -> str:
    """Driver, MIG or reset work that root does on this node right now, in words; "" for none. Call it in a child.

    Only the command lines of matching root processes are read: reading one can block while its process is stuck.
    """
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
            if name not in _WORKERS or folder.stat().st_uid != 0:
                continue
            step(f"command line of {name} {folder.name}")
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[1:]
        except OSError:
            continue
        wanted = _WORKERS[name]
        if not wanted or any(re.match(wanted, word) for word in words):
            return f"{name} {' '.join(words)}".strip()[:60]
    return ""


_WORKERS = {
    # comm: what an argument must look like; "" for any
    "nvidia-smi": r"-r$|--gpu-reset|-mig|--multi-instance-gpu|-pm$|--persistence-mode",
    "modprobe": r"nvidia",
    "insmod": r".*nvidia",
    "rmmod": r"nvidia",
    "nvidia-installe": "",
    "nvidia-mig-part": "",
    "dkms": "",
}


def read_memory(root: Path) -> Optional[Memory]:
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    if "MemTotal" not in values or "MemAvailable" not in values:
        return None
    names = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "HardwareCorrupted")
    return Memory(*(int(values.get(name, 0)) for name in names))


def read_disks(paths: Sequence[str], state_dir: Path, boot: str, deadline_s: float = 3.0) -> list[Disk]:
    """statvfs in a child for each path: a hung mount must not hang the check, nor hide the other paths. A path that does not
    exist is left out. state_dir, boot: as in probes/pending.py."""
    found = []
    for path in paths:
        name = "disk" + re.sub(r"[^\w.]+", "-", path)
        result, _ = pending.call(name, partial(_ask_disk, path), deadline_s, state_dir, boot)
        if result.error:
            found.append(Disk(path, error=result.error))
        elif result.value is not None:
            found.append(Disk(path, **result.value))
    return found


def _ask_disk(path: str, step: Callable[[str], None]) -> Optional[dict[str, Any]]:
    step(f"statvfs of {path}")
    try:
        stat = os.statvfs(path)
    except FileNotFoundError:
        return None
    except OSError as exc:
        return {"error": str(exc.strerror)}
    free = 100.0 * stat.f_bavail / stat.f_blocks if stat.f_blocks else 100.0
    inodes = 100.0 * stat.f_favail / stat.f_files if stat.f_files else 100.0
    return {"free_percent": free, "inodes_free_percent": inodes}


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
