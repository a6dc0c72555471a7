"""Clock, services and processes of the running machine, and of a captured tree what /proc tells of processes."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import msgspec

from aistation_slurm.probes.command import run

__all__ = ["Census", "Clock", "blocked_now", "parse_tracking", "read_census", "read_clock", "read_services"]

COMMAND_DEADLINE_S = 5.0
_CHRONYC = ("/usr/bin/chronyc", "/usr/sbin/chronyc")
_SYSTEMCTL = ("/usr/bin/systemctl", "/bin/systemctl")
_TIMEDATECTL = ("/usr/bin/timedatectl", "/bin/timedatectl")
_STA_UNSYNC = 0x40
_KERNEL_THREAD = 0x00200000


class Clock(msgspec.Struct, frozen=True):
    """synchronized: None where nobody could be asked. offset_s: of the system's time, None where not told. source: who said."""

    synchronized: Optional[bool]
    offset_s: Optional[float] = None
    source: str = ""


class Census(msgspec.Struct, frozen=True):
    """blocked: user processes in state D, ``pid:start ticks`` -> name. zombies: their number; names of some of them."""

    blocked: dict[str, str] = {}
    zombies: int = 0
    names: tuple[str, ...] = ()
    total: int = 0


def read_clock() -> Clock:
    """The kernel first (adjtimex costs nothing), then chrony, then timedatectl."""
    kernel = _adjtimex()
    if kernel is not None and kernel.synchronized:
        return kernel
    for path in _CHRONYC:
        if os.access(path, os.X_OK):
            ended = run([path, "-n", "-c", "tracking"], COMMAND_DEADLINE_S)
            told = parse_tracking(ended.output) if ended.code == 0 else None
            if told is not None:
                return told
    for path in _TIMEDATECTL:
        if os.access(path, os.X_OK):
            ended = run([path, "show", "-p", "NTPSynchronized", "--value"], COMMAND_DEADLINE_S)
            if ended.code == 0 and ended.output.strip() in ("yes", "no"):
                return Clock(ended.output.strip() == "yes", source="timedatectl")
    return kernel or Clock(None)


def parse_tracking(text: str) -> Optional[Clock]:
    """``chronyc -c tracking``, 14 fields: the fifth is the offset of the system's time in seconds, the last the leap status.

    ``A29FC801,162.159.200.1,4,1764565200.1,0.000012,...,64.2,Normal``
    """
    fields = text.strip().split(",")
    if len(fields) < 14:
        return None
    try:
        offset = float(fields[4])
    except ValueError:
        return None
    return Clock(fields[13] != "Not synchronised", offset, "chronyc")


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 40),
    )


def _adjtimex() -> Optional[Clock]:
    """Only reads: modes is 0."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        timex = _Timex()
        if libc.adjtimex(ctypes.byref(timex)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return Clock(not timex.status & _STA_UNSYNC, source="the kernel")


def read_services(units: Sequence[str]) -> dict[str, str]:
    """Unit -> active, inactive, failed, ... ; ``?`` and why, where systemd could not be asked."""
    if not units:
        return {}
    path = next((p for p in _SYSTEMCTL if os.access(p, os.X_OK)), "")
    if not path:
        return dict.fromkeys(units, "? no systemctl on this machine")
    ended = run([path, "is-active", "--", *units], COMMAND_DEADLINE_S)
    states = ended.output.split()
    if ended.error or len(states) != len(units):
        return dict.fromkeys(units, f"? {ended.error or 'systemd does not answer'}")
    return dict(zip(units, states))


def blocked_now(root: Path) -> Optional[int]:
    """``procs_blocked`` of /proc/stat: processes that wait for I/O; cheaper than a look at each of them."""
    match = re.search(r"^procs_blocked (\d+)", _text(root / "proc/stat"), re.MULTILINE)
    return int(match.group(1)) if match else None


def read_census(root: Path) -> Optional[Census]:
    """One pass over /proc/PID/stat; None where there are no processes to see."""
    try:
        pids = [name for name in os.listdir(root / "proc") if name.isdecimal()]
    except OSError:
        return None
    blocked, zombies, seen = {}, [], 0
    for pid in pids:
        text = _text(root / "proc" / pid / "stat")
        fields = text.rpartition(")")[2].split()
        if len(fields) < 20:
            continue
        seen += 1
        name = text.partition("(")[2].rpartition(")")[0]
        if fields[0] == "Z":
            zombies.append(name)
        elif fields[0] == "D" and not _kernel_thread(fields[6]):
            blocked[f"{pid}:{fields[19]}"] = name
    return Census(blocked, len(zombies), tuple(dict.fromkeys(zombies))[:3], seen) if seen else None


def _kernel_thread(flags: str) -> bool:
    return flags.isdecimal() and bool(int(flags) & _KERNEL_THREAD)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
