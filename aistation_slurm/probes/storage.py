"""Mounts and NVMe drives, from /proc/mounts, /etc/fstab and /sys; and whether a mount answers, asked in a child."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

import msgspec

from aistation_slurm.probes import pending

__all__ = ["Answer", "MountPoint", "NvmeDrive", "ask_mounts", "read_drives", "read_fstab", "read_mounts"]

MOUNT_DEADLINE_S = 3.0
MOUNTS_BUDGET_S = 9.0


class MountPoint(msgspec.Struct, frozen=True):
    """A line of /proc/mounts or of /etc/fstab, escapes resolved."""

    path: str
    type: str
    options: tuple[str, ...] = ()
    source: str = ""


class Answer(msgspec.Struct, frozen=True):
    """Of one mount to statvfs. error: why not, in words; late: it did not answer in time, twice: also not the time before."""

    path: str
    error: str = ""
    late: bool = False
    twice: bool = False


class NvmeDrive(msgspec.Struct, frozen=True):
    """state: live, resetting, dead, ... transport: pcie, rdma, tcp. width: lanes of its PCIe link; None unknown."""

    name: str
    state: str
    transport: str = "pcie"
    model: str = ""
    width: Optional[int] = None


def read_mounts(root: Path) -> Optional[list[MountPoint]]:
    """None where the tree does not tell. Later mounts hide earlier ones of the same path."""
    for path in ("proc/mounts", "proc/self/mounts", "proc/1/mounts"):
        lines = _lines(root / path)
        if lines:
            return list({m.path: m for m in map(_parse, lines) if m is not None}.values())
    return None


def read_fstab(root: Path) -> list[MountPoint]:
    """What is mounted at boot: neither swap nor what may be missing (noauto, nofail, automounts)."""
    found = [_parse(line) for line in _lines(root / "etc/fstab")]
    optional = {"noauto", "nofail", "x-systemd.automount"}
    return [
        m
        for m in found
        if m is not None and m.path.startswith("/") and not optional & set(m.options) and m.type != "swap"
    ]


def _parse(line: str) -> Optional[MountPoint]:
    """``server:/home /home nfs4 rw,relatime,vers=4.2 0 0``; blanks in names are ``\\040``."""
    fields = [] if line.lstrip().startswith("#") else line.split()
    if len(fields) < 3:
        return None
    source, path = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), f) for f in fields[:2])
    options = tuple(fields[3].split(",")) if len(fields) > 3 else ()
    return MountPoint(path.rstrip("/") or "/", fields[2], options, source)


def ask_mounts(paths: Sequence[str], state_dir: Path, boot: str) -> list[Answer]:
    """One child for each path, since one that hangs must hide no other; all together within nine seconds or so."""
    left, found = MOUNTS_BUDGET_S, []
    for path in paths:
        if left <= 0:
            found.append(Answer(path, "not asked: other mounts did not answer", late=True))
            continue
        name = "mount" + re.sub(r"[^\w.]+", "-", path)
        deadline = min(MOUNT_DEADLINE_S, left)
        result, blocked = pending.call(name, _asker(path), deadline, state_dir, boot)
        if result.late:
            left -= min(deadline, result.blocked_s)
        error = result.error or str(result.value or "")
        found.append(Answer(path, error, result.late, blocked is not None and blocked.looks >= 2))
    return found


def _asker(path: str) -> Callable[[Callable[[str], None]], str]:
    def ask(step: Callable[[str], None]) -> str:
        step(f"statvfs({path})")
        try:
            os.statvfs(path)
            os.stat(path)
        except OSError as exc:
            return exc.strerror or str(exc)
        return ""

    return ask


def read_drives(root: Path) -> Optional[list[NvmeDrive]]:
    """None where the kernel has no NVMe driver."""
    try:
        folders = sorted((root / "sys/class/nvme").iterdir())
    except OSError:
        return None
    found = []
    for folder in folders:
        state = _line(folder / "state")
        if not re.fullmatch(r"nvme\d+", folder.name) or not state:
            continue
        lanes = _line(folder / "device" / "current_link_width")
        width = int(lanes) if lanes.isdecimal() and 0 < int(lanes) <= 32 else None
        transport = _line(folder / "transport") or "pcie"
        found.append(NvmeDrive(folder.name, state, transport, _line(folder / "model"), width))
    return found


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return []


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
