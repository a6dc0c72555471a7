"""How long Slurm itself takes to end a job's processes: before that, no node is given up for processes that are still ending.

From ``scontrol show config``: KillWait between SIGTERM and SIGKILL (at least 5 s, slurmd's own minimum), UnkillableStepTimeout
for what SIGKILL does not end at once, and the Epilog, which keeps a node COMPLETING after its last process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.recovery.clock import Clock
from aistation_slurm.slurm.command import run

__all__ = ["KillTime", "kill_time_s"]

RENEWED_S = 60.0
"""An ``scontrol reconfigure`` counts after this long. It is only asked while a job is COMPLETING for long."""
KILL_WAIT_LEAST_S = 5.0
UNSET = 65534
"""``NO_VAL16``: how a timeout that is not set is printed, where it is not NONE or INFINITE."""
EPILOG_S = 60.0
"""Of an Epilog without a limit (PrologEpilogTimeout; EpilogTimeout since 25.05); ours takes less."""
_LINE = re.compile(r"(\w+)(?:\[\d+\])?\s*= ?(.*)")


def kill_time_s(text: str) -> float:
    """From the output of ``scontrol show config``. Raises SlurmUnavailable where it does not tell KillWait.

    "KillWait                = 30 sec", "Epilog                  = (null)", "PrologEpilogTimeout     = 65534"
    """
    keys = {match[1]: match[2].strip() for match in map(_LINE.match, text.splitlines()) if match}
    if not re.match(r"\d+", keys.get("KillWait", "")):
        raise SlurmUnavailable("scontrol show config printed no KillWait")
    wait_s = max(_seconds(keys, "KillWait", 30.0), KILL_WAIT_LEAST_S)
    epilog = keys.get("Epilog", "(null)") not in ("", "(null)", "(none)")
    limit_s = _seconds(keys, "EpilogTimeout", _seconds(keys, "PrologEpilogTimeout", EPILOG_S))
    return wait_s + _seconds(keys, "UnkillableStepTimeout", 60.0) + (limit_s if epilog else 0.0)


def _seconds(keys: Mapping[str, str], name: str, otherwise: float) -> float:
    match = re.match(r"\d+", keys.get(name, ""))
    return otherwise if match is None or int(match[0]) >= UNSET else float(match[0])


class KillTime:
    """Slurm's answer, renewed once a minute while it is needed."""

    def __init__(self, settings: Slurm, clock: Clock, runner: Callable[..., str] = run) -> None:
        self._settings, self._clock, self._runner = settings, clock, runner
        self._known_s = 0.0
        self._until = float("-inf")

    def least_s(self) -> float:
        """Seconds from the end of a job until its processes cannot be said to be still ending.

        Raises SlurmUnavailable, SlurmRefused: then nothing is known, and no node is given up.
        """
        if self._clock.monotonic() >= self._until:
            argv = (str(Path(self._settings.bin_dir) / "scontrol"), "show", "config")
            text = self._runner(argv, timeout_s=self._settings.timeout_s, conf=self._settings.conf)
            self._known_s = kill_time_s(text)
            self._until = self._clock.monotonic() + RENEWED_S
        return self._known_s
