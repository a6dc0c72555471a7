"""Another program, with a deadline that always holds: its own process group, killed as a group, its output cut."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

__all__ = ["ENVIRONMENT", "Ended", "run", "unsafe"]

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
MOST_BYTES = 64 * 1024


@dataclass(frozen=True)
class Ended:
    """code: exit code, negative for a signal; None where the program could not be started or did not end in time (error
    says so). output: what it wrote to stdout, and with ``stderr=True`` to stderr, cut at 64 KiB."""

    code: Optional[int]
    output: str = ""
    error: str = ""


def unsafe(path: Path, shut: int = stat.S_IWGRP | stat.S_IWOTH) -> str:
    """Why nobody should run what is there with the rights of this process: somebody else could have put it there; "" where safe.

    shut: the mode bits that must not be set.
    """
    try:
        facts = path.stat()
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    if facts.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to uid {facts.st_uid}, not to root"
    return f"{path} may be written by others: chmod go-w" if facts.st_mode & shut else ""


def run(
    argv: Sequence[str], deadline_s: float, environment: Mapping[str, str] = ENVIRONMENT, stderr: bool = False
) -> Ended:
    """Never raises for what the program does, and never waits past the deadline (and half a second to collect it)."""
    until = time.monotonic() + deadline_s
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if stderr else subprocess.DEVNULL,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
        )
    except OSError as exc:
        return Ended(None, error=f"{argv[0]}: {exc.strerror or exc}")
    assert child.stdout is not None
    with child.stdout as pipe:
        output = _listen(child, pipe.fileno(), until)
    code = child.poll()
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    text = output.decode("utf-8", "replace")
    if code is None:
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            pass  # in state D: it is left, and collected by subprocess when it has ended
        return Ended(None, text, f"{argv[0]} did not end within {deadline_s:g} s")
    return Ended(code, text)


def _listen(child: subprocess.Popen[bytes], fd: int, until: float) -> bytes:
    """Until the program has ended: a child of its own may keep the pipe open for longer."""
    os.set_blocking(fd, False)
    output, open_ = b"", True
    while True:
        left = until - time.monotonic()
        ended = child.poll() is not None
        if open_ and select.select([fd], [], [], 0 if ended else max(0.0, min(left, 0.05)))[0]:
            chunk = os.read(fd, MOST_BYTES)
            open_ = bool(chunk)
            output = (output + chunk)[:MOST_BYTES]
            if (not ended or chunk) and left > 0:
                continue
        if ended or left <= 0:
            return output
        if not open_:
            time.sleep(min(left, 0.01))
