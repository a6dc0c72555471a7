"""Storage of the host: ``host.disk``, ``host.mounts``, ``host.nvme``. Pure.

Mounts and full disks are reported (a server, or what runs there); a dead drive of the node's own fails it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from aistation_slurm.config import Expect, Mount
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.host import Disk
from aistation_slurm.probes.storage import Answer, MountPoint, NvmeDrive

__all__ = ["disk_findings", "mount_findings", "nvme_findings"]


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


def wanted_mounts(want: Expect, fstab: Sequence[MountPoint]) -> list[tuple[Mount, bool]]:
    """What has to be mounted, and whether the site itself said so; fstab's read-only mounts need not be writable."""
    named = [(Mount(m.path.rstrip("/") or "/", m.type, m.writable), True) for m in want.mounts]
    paths = {mount.path for mount, _ in named}
    of_fstab = [(Mount(m.path, "", "ro" not in m.options), False) for m in fstab if m.path not in paths]
    return named + of_fstab


def mount_findings(
    mounts: Optional[Sequence[MountPoint]], fstab: Sequence[MountPoint], answers: Sequence[Answer], want: Expect
) -> Iterator[Finding]:
    """mounts: None where unknown. answers: of the mounts that were asked. A mount that only fstab names is a warning."""
    wanted = wanted_mounts(want, fstab)
    if mounts is None:
        if want.mounts:
            yield Finding("host.mounts", Status.UNKNOWN, "mounts", "/proc/mounts cannot be read", scope=Scope.SHARED)
        return
    there, told = {m.path: m for m in mounts}, {a.path: a for a in answers}
    for mount, named in wanted:
        status, text = _judge(mount, there.get(mount.path), told.get(mount.path))
        if status is Status.FAIL and not named:
            status = Status.WARN
        action = Action.INSPECT if status in (Status.FAIL, Status.WARN) else Action.NONE
        yield Finding("host.mounts", status, mount.path, text, action, Scope.SHARED)


def _judge(mount: Mount, there: Optional[MountPoint], answer: Optional[Answer]) -> tuple[Status, str]:
    if there is None:
        return Status.FAIL, "is not mounted"
    if mount.type and there.type != mount.type:
        return Status.FAIL, f"is {there.type}, expected {mount.type}"
    if mount.writable and "ro" in there.options:
        return Status.FAIL, f"is mounted read-only ({there.source}, {there.type})"
    if answer is not None and answer.late:
        # once may be a busy server; a child that is still blocked at the next look is not
        return (Status.FAIL if answer.twice else Status.UNKNOWN), f"does not answer: {answer.error}"
    if answer is not None and answer.error:
        return Status.FAIL, f"cannot be used: {answer.error}"
    return Status.OK, f"{there.type} from {there.source}"


_PASSING = ("resetting", "connecting", "new")


def nvme_findings(drives: Optional[Sequence[NvmeDrive]], want: Expect) -> Iterator[Finding]:
    check = "host.nvme"
    local = [d for d in drives or () if d.transport == "pcie"]
    if want.nvme is not None and drives is not None and len(local) < want.nvme:
        text = f"{len(local)} drives, expected {want.nvme}"
        yield Finding(check, Status.FAIL, "NVMe drives", text, Action.INSPECT)
    for drive in drives or ():
        scope = Scope.LOCAL if drive.transport == "pcie" else Scope.SHARED
        alike = [d.width or 0 for d in local if d.model == drive.model]
        if drive.state == "dead":
            yield Finding(check, Status.FAIL, drive.name, f"{drive.model} is dead".strip(), Action.INSPECT, scope)
        elif drive.state != "live":
            text = f"is {drive.state}" + ("" if drive.state in _PASSING else ", not live")
            yield Finding(check, Status.WARN, drive.name, text, Action.INSPECT, Scope.SHARED)
        elif drive.width and drive.width < max(alike, default=0):
            text = f"PCIe x{drive.width}, another drive of its kind here has more"
            yield Finding(check, Status.WARN, drive.name, text, Action.INSPECT, Scope.SHARED)
        else:
            yield Finding(check, Status.OK, drive.name, f"live {drive.model}".rstrip(), scope=scope)
