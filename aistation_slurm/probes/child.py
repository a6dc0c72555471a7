"""One function in a forked child that may block for ever, watched by a deadline that always holds.

A blocked ioctl leaves a process in state D, which no signal ends. So the parent never waits for the child, only for its
words; the child says each step before it takes it, so that the one that hung has a name. Such a child is left alone, and
looked at again later: still the same process, still in D, is what tells a hung driver from a slow one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

__all__ = ["ChildResult", "process_state", "run_child"]


@dataclass(frozen=True)
class ChildResult:
    """value: what the function returned (JSON); None where it did not. error: its exception in words.

    late: the deadline passed; then ``pid`` and ``start_ticks`` name the child that is still there and ``step`` what it was at.
    """

    value: Any = None
    error: str = ""
    late: bool = False
    step: str = ""
    pid: int = 0
    start_ticks: int = 0


def process_state(pid: int) -> tuple[str, int]:
    """State letter and start time (clock ticks since boot) of a process, from /proc/PID/stat; ("", 0) where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", 0
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def run_child(function: Callable[[Callable[[str], None]], Any], deadline_s: float) -> ChildResult:
    """Call ``function(step)`` in a child of its own session; its result must be fit for JSON.

    At the deadline a child in state D is left (killing would say nothing and change nothing); any other is killed.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(function, reader, writer)
    os.close(writer)
    step, value, error, done = "start", None, "", False
    buffer = b""
    deadline = time.monotonic() + deadline_s
    try:
        while not done:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([reader], [], [], left)[0]:
                break
            chunk = os.read(reader, 65536)
            if not chunk:
                error, done = error or f"the child ended without an answer at step {step}", True
                break
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                word = json.loads(line)
                step = word.get("step", step)
                if "value" in word or "error" in word:
                    value, error, done = word.get("value"), word.get("error", ""), True
    finally:
        os.close(reader)
    if done:
        _reap(pid)
        return ChildResult(value, error, step=step)
    state, ticks = process_state(pid)
    if state == "D":
        return ChildResult(error=f"{step} is blocked in the driver", late=True, step=step, pid=pid, start_ticks=ticks)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    _reap(pid)
    return ChildResult(error=f"{step} did not return within {deadline_s:g} s", late=True, step=step)


def _child(function: Callable[[Callable[[str], None]], Any], reader: int, writer: int) -> None:
    code = 1
    try:
        os.setsid()
        os.close(reader)
        null = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

        def say(**words: Any) -> None:
            data = json.dumps(words).encode() + b"\n"
            while data:
                data = data[os.write(writer, data) :]

        try:
            say(value=function(lambda name: say(step=name)))
            code = 0
        except BaseException as exc:
            say(error=f"{type(exc).__name__}: {exc}")
    finally:
        os._exit(code)


def _reap(pid: int, patience_s: float = 0.5) -> Optional[int]:
    """Collect the child if it ends soon; never waits for one that does not."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return pid
        except ChildProcessError:
            return None
        time.sleep(0.005)
    return None
