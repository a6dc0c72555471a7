"""One function in a forked child that may block for ever, watched by a deadline that always holds.

A blocked ioctl or sysfs read leaves a process in state D, which no signal ends. So the parent never waits for the child,
only for its words; the child says each step before it takes it, so that the one that hung has a name. A child in state D is
left alone, and looked at again later (probes/pending.py).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

__all__ = ["ChildResult", "Step", "process_state", "run_child", "switches"]

Step = Callable[[str], None]

ORPHAN_LIFE_S = 600
"""A sleeping child whose parent was killed before the deadline ends by itself."""


@dataclass(frozen=True)
class ChildResult:
    """value: what the function returned (JSON); None where it did not. error: why, in words.

    late: the deadline passed at ``step``, which had then lasted ``blocked_s``. pid and start_ticks name the child where it was
    left (state D); 0 where it was ended.
    """

    value: Any = None
    error: str = ""
    late: bool = False
    step: str = ""
    pid: int = 0
    start_ticks: int = 0
    blocked_s: float = 0.0


_left: set[int] = set()
"""Children in state D that this process left; collected when they have ended."""


def process_state(pid: int) -> tuple[str, int]:
    """State letter and start time (clock ticks since boot) of a process, from /proc/PID/stat; ("", 0) where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0


def switches(pid: int) -> int:
    """How often the process was put on or off a CPU: unchanged between two looks, it has not moved. -1 where unknown."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    return sum(int(n) for n in re.findall(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE))


def run_child(function: Callable[[Step], Any], deadline_s: float) -> ChildResult:
    """Call ``function(step)`` in a child of its own session; its result must be fit for JSON.

    At the deadline a child in state D is left (killing would say nothing and change nothing); any other is killed.
    """
    for pid in list(_left):
        if _reap(pid, 0.0):
            _left.discard(pid)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12+ warns of fork beside threads; the child only reads files and calls one C library, then exits
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _child(function, writer)
    os.close(writer)
    try:
        words = _listen(reader, time.monotonic() + deadline_s)
    finally:
        os.close(reader)
    step = words["step"]
    if "value" in words or "error" in words:
        _collect(pid)
        return ChildResult(words.get("value"), words.get("error", ""), step=step)
    blocked_s = time.monotonic() - words["since"]
    state, ticks = process_state(pid)
    if state == "D":
        _left.add(pid)
        text = f"{step} is blocked in the kernel"
        return ChildResult(error=text, late=True, step=step, pid=pid, start_ticks=ticks, blocked_s=blocked_s)
    _kill(pid)
    _collect(pid)
    return ChildResult(
        error=f"{step} did not return within {deadline_s:g} s", late=True, step=step, blocked_s=blocked_s
    )


def _listen(reader: int, deadline: float) -> dict[str, Any]:
    """What the child said until it was done or time was up: the last step, since when, and perhaps value or error."""
    words: dict[str, Any] = {"step": "start", "since": time.monotonic()}
    buffer = b""
    while "value" not in words and "error" not in words:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return words
        chunk = os.read(reader, 65536)
        if not chunk:
            words["error"] = f"the child ended without an answer at step {words['step']}"
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            words.update(json.loads(line), since=time.monotonic())
    return words


def _child(function: Callable[[Step], Any], writer: int) -> None:
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(ORPHAN_LIFE_S)
        out = fcntl.fcntl(writer, fcntl.F_DUPFD, 3)
        null = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        _close_others(out)

        def say(**words: Any) -> None:
            data = json.dumps(words).encode() + b"\n"
            while data:
                data = data[os.write(out, data) :]

        try:
            say(value=function(lambda name: say(step=name)))
            code = 0
        except BaseException as exc:
            say(error=f"{type(exc).__name__}: {exc}")
    finally:
        os._exit(code)


def _close_others(keep: int) -> None:
    """A child that hangs must not hold its parent's locks, pipes and sockets."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the folder's own


def _kill(pid: int) -> None:
    for send in (os.killpg, os.kill):  # its own session, unless it was stopped before setsid
        try:
            send(pid, signal.SIGKILL)
            return
        except (ProcessLookupError, PermissionError):
            continue


def _collect(pid: int) -> None:
    if not _reap(pid, 0.5):
        _left.add(pid)


def _reap(pid: int, patience_s: float) -> bool:
    """Collect the child if it ends soon; never waits for one that does not. True when there is nothing left to collect."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
