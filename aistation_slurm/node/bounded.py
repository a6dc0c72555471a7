"""Running a command, or one function in a child, under a deadline with the standard library's cheapest parts.

``subprocess`` alone costs the prolog 34 ms; this needs ``os`` and ``select``. A child in state D cannot be waited
for: it is killed (which takes effect when the kernel lets go of it) and left to init, never waited for without limit.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Optional

__all__ = ["PLAIN_ENV", "Outcome", "call", "forks_end_with_us", "run"]

SIGKILL = 9
MAX_OUTPUT = 1 << 24
"""`scontrol show node` of a cluster of 10,000 nodes."""
PLAIN_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class Outcome:
    """``code``: exit code, negative for a signal, None when the deadline passed. ``output``: all that it printed."""

    __slots__ = ("code", "output")

    def __init__(self, code: Optional[int], output: str) -> None:
        self.code = code
        self.output = output


def run(argv: Sequence[str], deadline_s: float, env: Mapping[str, str]) -> Outcome:
    """Run ``argv`` (absolute path, no shell) in its own process group with exactly ``env``.

    stdout and stderr are collected together. Code 127 when it cannot be started. At the deadline the group is killed.
    """

    def start(writer: int) -> None:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.closerange(3, 256)
        try:
            os.execve(argv[0], list(argv), dict(env))
        except OSError as exc:
            os.write(2, f"cannot start {argv[0]}: {exc.strerror}".encode())

    return _fork(start, deadline_s, wait=True)


def call(body: Callable[[int], None], deadline_s: float) -> Outcome:
    """Run ``body(fd)`` in a forked child that may block for ever; what it wrote to ``fd`` by the deadline.

    The code is 0 when the child ended by itself, else None. The child holds none of our streams: slurmd reads the
    prolog's output until its last holder is gone.
    """

    def start(writer: int) -> None:
        null = os.open("/dev/null", os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        body(writer)

    return _fork(start, deadline_s, wait=False)


def forks_end_with_us() -> None:
    """Have the kernel kill every process forked from here on when this one is killed.

    For what :func:`run` starts: probes fork children in sessions of their own, which the kill of our group does not reach, and
    each prolog of a sick node would leave one more (PR_SET_PDEATHSIG, prctl(2)).
    """
    import ctypes

    libc = ctypes.CDLL(None)
    forking = [0]

    def before() -> None:
        forking[0] = os.getpid()

    def in_child() -> None:
        libc.prctl(1, SIGKILL, 0, 0, 0)
        if os.getppid() != forking[0]:
            os._exit(1)  # it was killed in this very moment

    os.register_at_fork(before=before, after_in_child=in_child)


def _fork(start: Callable[[int], None], deadline_s: float, wait: bool) -> Outcome:
    deadline = time.monotonic() + deadline_s
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(reader)
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            start(writer)
        finally:
            os._exit(127 if wait else 0)
    os.close(writer)
    try:
        output, ended = _collect(reader, deadline)
        code = _reap(pid, deadline) if wait else (0 if ended else None)
        if code is None:
            _kill_group(pid)
    finally:
        os.close(reader)
    return Outcome(code, output.decode("utf-8", "replace"))


def _collect(reader: int, deadline: float) -> tuple[bytes, bool]:
    """What comes through the pipe until its end (True) or the deadline (False)."""
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    parts: list[bytes] = []
    size = 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return b"".join(parts), False
        part = os.read(reader, 65536)
        if not part:
            return b"".join(parts), True
        size += len(part)
        if size <= MAX_OUTPUT:
            parts.append(part)


def _reap(pid: int, deadline: float) -> Optional[int]:
    """The exit code, or None when it did not end in time. Its output ends a moment before the process does."""
    pause = 0.0005
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, SIGKILL)
    except OSError:
        try:
            os.kill(pid, SIGKILL)  # the child may not have come to setsid() yet
        except OSError:
            pass
    for _ in range(20):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except OSError:
            return
        time.sleep(0.001)
