"""Host findings. Pure. Shared in scope: a full disk or memory is often the work of what runs there, not a sick node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from aistation_slurm.config import Expect
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.host import Disk, Memory

__all__ = ["disk_findings", "memory_findings"]


def memory_findings(memory: Optional[Memory], want: Expect) -> list[Finding]:
    """``host.memory``: a warning, since a running job may use nearly all of it."""
    if memory is None:
        return [Finding("host.memory", Status.UNKNOWN, "memory", "meminfo cannot be read", scope=Scope.SHARED)]
    percent = 100.0 * memory.available / memory.total if memory.total else 0.0
    limit = want.memory_available_percent
    text = f"{percent:.1f} % of {memory.total / 1048576:.0f} GiB available, limit {limit:g} %"
    status = Status.WARN if percent < limit else Status.OK
    return [
        Finding(
            "host.memory",
            status,
            "memory",
            text,
            Action.INSPECT if status is Status.WARN else Action.NONE,
            Scope.SHARED,
        )
    ]


def disk_findings(disks: Sequence[Disk], want: Expect) -> list[Finding]:
    """``host.disk`` per path: space and inodes."""
    out = []
    for disk in disks:
        if disk.error:
            out.append(Finding("host.disk", Status.UNKNOWN, disk.path, disk.error, scope=Scope.SHARED))
            continue
        least = min(disk.free_percent, disk.inodes_free_percent)
        what = "space" if disk.free_percent <= disk.inodes_free_percent else "inodes"
        text = f"{least:.1f} % of {what} free, limit {want.disk_free_percent:g} %"
        failed = least < want.disk_free_percent
        status, action = (Status.FAIL, Action.INSPECT) if failed else (Status.OK, Action.NONE)
        out.append(Finding("host.disk", status, disk.path, text, action, Scope.SHARED))
    return out
