"""The one place that starts Slurm's commands: deadline, own process group, plain locale, clear errors."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import SlurmRefused, SlurmUnavailable

__all__ = ["run"]

SHOWN_MAX = 100
"""Of one argument in a message: a comment of a kilobyte would hide what was said to it."""
KILL_WAIT_S = 2.0
"""A killed command that does not go (state D) is left to init after this long."""

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
    """Run one Slurm command and return its standard output.

    Raises SlurmUnavailable (no such command, no slurm.conf, no answer within ``timeout_s`` seconds; whether a change was
    made is then not known) and SlurmRefused (the controller answered and said no). The whole process group ends with the
    command.
    """
    environment = {**(env if env is not None else os.environ), "LC_ALL": "C"}
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
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as exc:
        raise SlurmUnavailable(f"cannot start {argv[0]}: {exc.strerror}; is Slurm's client package installed?") from exc
    try:
        out, err = process.communicate(timeout=timeout_s)
    except BaseException as exc:
        _end(process)
        if isinstance(exc, subprocess.TimeoutExpired):
            raise SlurmUnavailable(f"{name} did not answer within {timeout_s:g} s") from exc
        raise
    if process.returncode == 0:
        return out
    said = " ".join((err or out).split()) or f"exit code {process.returncode} and no message"
    if process.returncode < 0 or any(text in said for text in _UNREACHABLE):
        raise SlurmUnavailable(f"{name}: {said}")
    asked = " ".join([name, *(word if len(word) <= SHOWN_MAX else f"{word[:SHOWN_MAX]}..." for word in argv[1:])])
    raise SlurmRefused(f"{asked}: {said}")


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the group; wait for it, but not for ever."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.communicate(timeout=KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
