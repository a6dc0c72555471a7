"""Which controller host acts, where slurm.conf names more than one: the first ``SlurmctldHost`` that answers.

``scontrol ping`` says UP of a slurmctld in standby too, so a backup takes its turn only with a proof that it is in control:
all before it are DOWN, and ``scontrol show config`` is answered, which a slurmctld in standby does not do (22.05 to 26.05).
"""

from __future__ import annotations

import logging
import math
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.recovery.clock import Clock
from aistation_slurm.slurm.command import run

__all__ = ["FRESH_S", "Controller", "Primary", "Turn", "read_controllers", "turn_of"]

log = logging.getLogger(__name__)

STANDBY_LOOK_S = 10.0
ACTING_LOOK_S = 30.0
"""While nothing is to be done: before a change is made, the answer has to be FRESH_S young."""
ALONE_LOOK_S = 3600.0
"""A backup controller that is added to slurm.conf is noticed by then, or at SIGHUP."""
RETRY_S = 5.0
FRESH_S = 2.0
PROOF_S = 3.0
"""A slurmctld in control answers the proof at once; in standby, Slurm's command waits for half of SlurmctldTimeout."""

_LINE = re.compile(r"Slurmctld\((?:primary|backup\d*)\) at (\S+) is (UP|DOWN)")


@dataclass(frozen=True)
class Controller:
    """One ``SlurmctldHost``, in slurm.conf's order. up: its slurmctld answers, in control or in standby."""

    host: str
    up: bool


class Turn(Enum):
    """ALONE: no backup is configured. CANDIDATE: all before this host are DOWN; it is in control, or will be soon."""

    ALONE = "alone"
    FIRST = "first"
    CANDIDATE = "candidate"
    STANDBY = "standby"
    STRANGER = "stranger"
    """This host is no controller."""
    UNKNOWN = "unknown"


def read_controllers(text: str) -> tuple[Controller, ...]:
    """The lines of ``scontrol ping``, which also end ``scontrol show config``; the same from 18.08 to 26.05.

    "Slurmctld(primary) at ctl1 is DOWN" / "Slurmctld(backup) at ctl2 is UP"; the third on is "backup2" and so on.
    """
    return tuple(Controller(host, state == "UP") for host, state in _LINE.findall(text))


def turn_of(controllers: Sequence[Controller], names: Sequence[str]) -> Turn:
    """The turn of the host that has these names. Exactly one host can be FIRST or CANDIDATE by the same answer."""
    if not controllers:
        return Turn.UNKNOWN
    if len(controllers) == 1:
        return Turn.ALONE
    place = next((i for i, one in enumerate(controllers) if set(one.host.split(",")) & set(names)), None)
    if place is None:
        return Turn.STRANGER
    if any(one.up for one in controllers[:place]):
        return Turn.STANDBY
    if not controllers[place].up:
        return Turn.UNKNOWN
    return Turn.CANDIDATE if place else Turn.FIRST


def host_names() -> tuple[str, ...]:
    """This host as slurmctld compares itself with SlurmctldHost: the host name, and its part before the first dot."""
    name = socket.gethostname()
    return tuple({name, name.split(".", 1)[0]})


class Primary:
    """``acts()`` before anything is done. Whatever is not known for certain, with a backup configured, is a no."""

    def __init__(
        self, settings: Slurm, clock: Clock, names: Sequence[str] = (), runner: Callable[..., str] = run
    ) -> None:
        """names: of this host; empty: its own. runner: starts one command (``slurm.command.run``)."""
        self._settings, self._clock, self._runner = settings, clock, runner
        self._names = tuple(names) or host_names()
        self._turn = Turn.UNKNOWN
        self._acts = False
        self._looked: Optional[float] = None
        self._next_look = 0.0
        self.state = "not known yet which controller is in control"
        """For people: why it acts, or why it does not."""
        self.detour_s = 0.0
        """What every request takes longer now, since the controllers before this host do not answer: Slurm's commands
        try each of them first, for TCPTimeout (2 s) where the host is off. An answer is that much younger than it seems."""

    def acts(self, max_age_s: float = ACTING_LOOK_S) -> bool:
        """True where this host's watchdog may act, by an answer at most this old (of a no: STANDBY_LOOK_S).

        Blocks for one bounded request when it has to ask; two where a take-over may have happened.
        """
        now = self._clock.monotonic()
        old = self._looked is None or now >= self._next_look
        if old or (self._acts and self._turn is not Turn.ALONE and now - (self._looked or 0.0) > max_age_s):
            self._look()
        return self._acts

    def ask_again(self) -> None:
        """Slurm's configuration may have changed: the next ``acts()`` asks. Safe in a signal handler."""
        self._looked = None

    # ---- asking

    def _look(self) -> None:
        asked = self._clock.monotonic()
        try:
            controllers = read_controllers(self._scontrol("ping"))
            took_s = self._clock.monotonic() - asked
            turn = turn_of(controllers, self._names)
            if turn is Turn.CANDIDATE and self._turn is not Turn.CANDIDATE:
                # once: as long as none before it comes back, it keeps the control that it has
                turn, controllers = self._proof(controllers, PROOF_S + 2 * took_s)
        except SlurmUnavailable as exc:
            self._settle_unknown(str(exc))
            return
        if turn is Turn.UNKNOWN:
            down = ", ".join(one.host for one in controllers if not one.up)
            why = f"{down} does not answer, and this host is not in control yet" if down else "scontrol named none"
            self._settle_unknown(why)
            return
        acts = turn in (Turn.ALONE, Turn.FIRST, Turn.CANDIDATE)
        pause_s = ALONE_LOOK_S if turn is Turn.ALONE else ACTING_LOOK_S if acts else STANDBY_LOOK_S
        self.detour_s = took_s if turn is Turn.CANDIDATE else 0.0
        self._settle(turn, acts, pause_s, self._words(turn, controllers))

    def _proof(self, controllers: tuple[Controller, ...], limit_s: float) -> tuple[Turn, tuple[Controller, ...]]:
        """A request that only a slurmctld in control answers, and who was there right after it."""
        try:
            controllers = read_controllers(self._scontrol("show", "config", limit_s=limit_s))
        except SlurmUnavailable:
            return Turn.UNKNOWN, controllers
        return turn_of(controllers, self._names), controllers

    def _settle_unknown(self, why: str) -> None:
        """One controller stays one controller while it does not answer; of several, not to act is right."""
        if self._turn is Turn.ALONE:
            self._settle(Turn.ALONE, True, ALONE_LOOK_S, self.state)
        else:
            words = f"stands by until it is known which controller is in control: {why}"
            self._settle(Turn.UNKNOWN, False, RETRY_S, words)

    def _settle(self, turn: Turn, acts: bool, pause_s: float, state: str) -> None:
        again = turn is self._turn and (turn is Turn.UNKNOWN or state == self.state)
        if turn is not Turn.ALONE and (not again or self._looked is None):
            log.log(logging.WARNING if turn in (Turn.UNKNOWN, Turn.STRANGER) else logging.INFO, "%s", state)
        self._turn, self._acts, self.state = turn, acts, state
        self._looked = self._clock.monotonic()
        self._next_look = self._looked + pause_s

    def _words(self, turn: Turn, controllers: Sequence[Controller]) -> str:
        hosts = ", ".join(one.host for one in controllers)
        if turn is Turn.ALONE:
            return f"acts: {hosts} is the only controller"
        if turn is Turn.STRANGER:
            return (
                f"stands by: this host ({self._names[0]}) is none of the controllers {hosts}; run the watchdog on those"
            )
        if turn is Turn.STANDBY:
            first = next(one.host for one in controllers if one.up)
            return f"stands by: {first} comes before this host and answers"
        return f"acts: this host is in control (controllers {hosts})"

    def _scontrol(self, *words: str, limit_s: float = math.inf) -> str:
        """Exit code 1 of ``ping`` says that none answers, in the same words as always."""
        path = str(Path(self._settings.bin_dir) / "scontrol")
        limit_s = min(limit_s, self._settings.timeout_s)
        try:
            return self._runner([path, *words], timeout_s=limit_s, conf=self._settings.conf)
        except SlurmRefused as exc:
            return str(exc)
