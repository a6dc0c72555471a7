"""The one place that starts Slurm's commands: deadline, own process group, plain locale, clear errors."""

from __future__ import annotations

import mmap
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import SlurmRefused, SlurmUnavailable

__all__ = ["run", "run_raw"]

SHOWN_MAX = 100
"""Of one argument in a message: a comment of a kilobyte would hide what was said to it."""
READ_BYTES = 1 << 18
KILL_WAIT_S = 2.0
"""A killed command that does not go (state D) is left to init after this long."""

_STEERING = ("SQUEUE_", "SINFO_", "SCONTROL_", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
"""Variables by which a profile would choose other jobs, another cluster or another form of time for these commands."""

# What Slurm's client commands print when the controller, or the way to it, is at fault and not the request.
_UNREACHABLE = (
    "Unable to contact slurm controller",
    "Unexpected message received",  # scontrol 22.05 after its retries, with slurmctld down
    "Socket timed out",
    "Connection refused",
    "connect failure",
    "Zero Bytes were transmitted",
    "Unable to establish controller machine",
    "Unable to establish configuration source",
    "Unable to process configuration file",
    "Could not establish a configuration source",
    "Protocol authentication error",
    "Munged communication error",
    "If munged is up",
    "standby mode",
    "Unable to find plugin",
    "unrecognized option",
)


def run(argv: Sequence[str], *, timeout_s: float, conf: str = "", env: Optional[dict[str, str]] = None) -> str:
    """Run one Slurm command and return its standard output as text.

    Raises SlurmUnavailable (no such command, no slurm.conf, no answer within ``timeout_s`` seconds; whether a change was
    made is then not known) and SlurmRefused (the controller answered and said no). The whole process group ends with the
    command.
    """
    return str(run_raw(argv, timeout_s=timeout_s, conf=conf, env=env), "utf-8", "replace")


def run_raw(
    argv: Sequence[str], *, timeout_s: float, conf: str = "", env: Optional[dict[str, str]] = None
) -> memoryview:
    """The same, as the bytes that were printed, held once: squeue's JSON of a large cluster is tens of megabytes."""
    inherited = env if env is not None else os.environ
    environment = {key: value for key, value in inherited.items() if not key.startswith(_STEERING)}
    environment.update(LC_ALL="C", SLURM_TIME_FORMAT="%s")
    if conf:
        environment["SLURM_CONF"] = conf
    named = environment.get("SLURM_CONF", "")
    if named and not os.path.exists(named):
        # Slurm's commands would look for a configless controller by DNS for many seconds first
        raise SlurmUnavailable(f"{named}: no such slurm.conf; check slurm.conf in aistation.toml and $SLURM_CONF")
    name = Path(argv[0]).name
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as exc:
        raise SlurmUnavailable(f"cannot start {argv[0]}: {exc.strerror}; is Slurm's client package installed?") from exc
    try:
        out, err = _outputs(process, time.monotonic() + timeout_s)
    except BaseException as exc:
        _end(process)
        if isinstance(exc, TimeoutError):
            raise SlurmUnavailable(f"{name} did not answer within {timeout_s:g} s") from exc
        raise
    if process.returncode == 0:
        return out
    said = " ".join(str(err or out, "utf-8", "replace").split())
    said = said or f"exit code {process.returncode} and no message"
    if process.returncode < 0 or any(text in said for text in _UNREACHABLE):
        raise SlurmUnavailable(f"{name}: {said}")
    asked = " ".join([name, *(word if len(word) <= SHOWN_MAX else f"{word[:SHOWN_MAX]}..." for word in argv[1:])])
    raise SlurmRefused(f"{asked}: {said}")


class _Buffer:
    """Grows, and goes back to the system when it is dropped: malloc keeps a freed block of many megabytes for the next."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, READ_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._used = 0

    def read(self, fd: int) -> bool:
        """Take what is there; False at its end."""
        if len(self._map) - self._used < READ_BYTES:
            self._map.resize(2 * len(self._map))
        with memoryview(self._map) as whole, whole[self._used : self._used + READ_BYTES] as free:
            count = os.readv(fd, [free])
        self._used += count
        return count > 0

    def content(self) -> memoryview:
        return memoryview(self._map)[: self._used]


def _outputs(process: subprocess.Popen[bytes], deadline: float) -> tuple[memoryview, memoryview]:
    """Both outputs to their ends, and the exit code taken. Raises TimeoutError.

    Not ``communicate``: it holds everything that was printed three times over.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    found = {process.stdout.fileno(): _Buffer(), process.stderr.fileno(): _Buffer()}
    with selectors.DefaultSelector() as selector:
        for fd in found:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                raise TimeoutError
            for key, _ in ready:
                if not found[key.fd].read(key.fd):
                    selector.unregister(key.fd)
    out, err = found.values()
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    _close(process)
    return out.content(), err.content()


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the group; wait for it, but not for ever."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(timeout=KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        pass
    _close(process)
