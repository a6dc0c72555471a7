"""Time as the watchdog sees it, so that tests can move it."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Wall time is for what is written down and compared with Slurm; monotonic time for when to look again."""

    def now(self) -> float:
        """Unix seconds. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
