"""Calls into a driver that may leave a child in state D, remembered over looks and over processes.

``<state_dir>/<name>-child`` holds the one blocked child of each kind of call. While it is blocked nobody starts another
(they would only pile up), and how long it has not moved is what tells a hung driver from a slow one.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from aistation_slurm.probes.child import ChildResult, Step, process_state, run_child, switches

__all__ = ["Blocked", "call"]


@dataclass(frozen=True)
class Blocked:
    """A child of ours in state D inside one call. Seconds by the monotonic clock.

    blocked_s: since it entered the call. still_s: since when no look has seen it move. looks: how often it was seen so.
    """

    step: str
    pid: int
    blocked_s: float
    still_s: float
    looks: int


@dataclass
class _Memo:
    pid: int
    ticks: int
    entered: float
    still: float
    switches: int
    looks: int
    boot: str
    step: str

    def blocked(self, now: float) -> Blocked:
        return Blocked(self.step, self.pid, now - self.entered, now - self.still, self.looks)


def call(
    name: str, function: Callable[[Step], Any], deadline_s: float, state_dir: Path, boot_id: str
) -> tuple[ChildResult, Optional[Blocked]]:
    """Make the call in a child, or look again at the one that still is in it. ``name`` is one word, such as ``nvml``."""
    path = state_dir / f"{name}-child"
    memo = _read(path, boot_id)
    if memo is not None:
        state, ticks = process_state(memo.pid)
        if ticks == memo.ticks and state == "D":
            return _again(path, memo)
        if ticks == memo.ticks and state not in ("", "Z"):
            _kill(memo.pid)
        _forget(path)
    result = run_child(function, deadline_s)
    if not (result.late and result.pid):
        return result, None
    entered = time.monotonic() - result.blocked_s
    memo = _Memo(
        result.pid,
        result.start_ticks,
        entered,
        entered,
        switches(result.pid),
        1,
        boot_id or "-",
        result.step or "start",
    )
    _write(path, memo)
    return result, memo.blocked(time.monotonic())


def _again(path: Path, memo: _Memo) -> tuple[ChildResult, Blocked]:
    now, count = time.monotonic(), switches(memo.pid)
    if count != memo.switches:
        memo.switches, memo.still = count, now
    memo.looks += 1
    _write(path, memo)
    error = f"{memo.step} is blocked in the kernel for {now - memo.entered:.0f} s"
    result = ChildResult(
        error=error, late=True, step=memo.step, pid=memo.pid, start_ticks=memo.ticks, blocked_s=now - memo.entered
    )
    return result, memo.blocked(now)


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _read(path: Path, boot_id: str) -> Optional[_Memo]:
    try:
        fields = path.read_text(encoding="utf-8").split(maxsplit=7)
        memo = _Memo(
            int(fields[0]), int(fields[1]), float(fields[2]), float(fields[3]), int(fields[4]), int(fields[5]), fields[6],
            fields[7].strip(),
        )  # fmt: skip
    except (OSError, ValueError, IndexError):
        return None
    return memo if memo.boot == (boot_id or "-") else None


def _write(path: Path, memo: _Memo) -> None:
    """Best effort: without a place to remember it, each look is a first look, which never counts as a hang."""
    text = f"{memo.pid} {memo.ticks} {memo.entered:.3f} {memo.still:.3f} {memo.switches} {memo.looks} {memo.boot} {memo.step}\n"
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        _forget(partial)


def _forget(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
