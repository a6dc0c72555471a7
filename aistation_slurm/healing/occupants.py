"""Who is on this node: jobs, steps, and processes that hold a GPU. In words; empty where it is empty for sure.

A GPU is held by whoever has its device file open, which /proc tells also where NVML answers no more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from aistation_slurm.config import Config
from aistation_slurm.node import processes
from aistation_slurm.probes import pending
from aistation_slurm.probes.nvml import NvmlSnapshot
from aistation_slurm.slurm.client import Node

__all__ = ["in_slurm", "on_node"]

DEADLINE_S = 5.0
SYSTEM_UID = 1000
"""First uid of people (login.defs, UID_MIN): only below it a name makes a process one of the driver's own services."""
_BUSY_WORDS = "COMPLETING MAINTENANCE POWERED_DOWN POWERING_DOWN POWERING_UP POWER_DOWN POWER_UP POWER_DRAIN"
BUSY = frozenset(_BUSY_WORDS.split())
"""A job's epilog, an administrator's maintenance reservation, or power that is being switched."""
_GPU_FILE = re.compile(r"/dev/nvidia\d+")


def in_slurm(node: Node) -> str:
    """Why Slurm says that the node is not empty; "" where it is. A job whose epilog runs still counts."""
    if node.state not in ("IDLE", "DOWN") or node.flags & BUSY:
        return f"Slurm shows it {'+'.join([node.state, *sorted(node.flags)])}"
    return ""


def on_node(config: Config, boot: str, nvml: NvmlSnapshot) -> str:
    """Steps and GPU processes of this node. What cannot be told counts as occupied."""
    told = [(g.pci, p.pid) for g in nvml.gpus for p in g.processes]

    own = _own_blocked(config.node.state_dir)

    def body(step: Callable[[str], None]) -> list[str]:
        return _look(told, config.epilog.protect, own, step)

    result, _ = pending.call("heal-processes", body, DEADLINE_S, Path(config.node.state_dir), boot)
    if result.value is None:
        return f"its processes could not be told: {result.error}"
    found: list[str] = result.value
    return "; ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _own_blocked(state_dir: str) -> frozenset[int]:
    """Children of our own looks that sit in a driver call for ever (probes/pending.py): the fault, not a user of the node."""
    found = set()
    for path in Path(state_dir).glob("*-child"):
        try:
            found.add(int(path.read_text(encoding="ascii", errors="replace").split()[0]))
        except (OSError, ValueError, IndexError):
            continue
    return frozenset(found)


def _look(
    told: Sequence[tuple[str, int]], protect: Sequence[str], own: frozenset[int], step: Callable[[str], None]
) -> list[str]:
    """In a child: reading /proc of a stuck process can block."""
    step("processes in /proc")
    live = processes.live_jobs()
    found = [f"job {job} has a step here" for job in sorted(live)]
    holders = {pid: pci for pci, pid in told}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in holders and (held := _gpu_file(int(entry))):
            holders[int(entry)] = held
    for pid, held in sorted(holders.items()):
        if os.getppid() in (pid, _parent(pid)):
            continue  # this program, or another child of it that looks at the GPUs
        step(f"process {pid}")
        facts = processes.read_process(pid)
        if facts is None or (pid in own and facts.uid == 0):
            continue
        tied = facts.cgroup_jobs or facts.ancestor_jobs
        service = any(fnmatchcase(facts.name, p) or fnmatchcase(facts.program, p) for p in protect)
        if not (service and facts.uid < SYSTEM_UID and not tied):
            found.append(f"process {pid} ({facts.name}, uid {facts.uid}) holds {held}")
    return found


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def _gpu_file(pid: int) -> str:
    """The GPU device file that the process has open; "" for none."""
    folder = f"/proc/{pid}/fd"
    try:
        for fd in os.listdir(folder):
            try:
                target = os.readlink(f"{folder}/{fd}")
            except OSError:
                continue
            if _GPU_FILE.fullmatch(target):
                return target
    except OSError:
        pass
    return ""
