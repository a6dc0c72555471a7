"""The agent's part of healing: a thread of its own, since a reset takes minutes and must not delay the watch over the node.

Off unless ``[healing] enabled``. A node without a drain of ours costs no request: it is asked for once after the agent's start,
then only while a fault was acted on here or a case is open.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.errors import AistationError
from aistation_slurm.healing.cards import Cards, identities
from aistation_slurm.healing.healer import Healer
from aistation_slurm.node import acted, nodelog
from aistation_slurm.node.health import NodeReport
from aistation_slurm.probes.nvml import NvmlSnapshot
from aistation_slurm.slurm.client import SlurmClient

__all__ = ["HealWatch"]

log = logging.getLogger(__name__)

SLOWEST_S = 300.0
"""Between tries while the controller or the history's disk gives no answer."""


class HealWatch:
    """``start`` and ``stop`` with the agent; check and publish as in :class:`Healer`."""

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        own_name: Callable[[], str],
        check: Callable[[], NodeReport],
        publish: Callable[[NodeReport], object],
    ) -> None:
        self.config = config
        self._healer = Healer(config, client, own_name, check, publish, self._say)
        self._stop = threading.Event()
        self._open = True
        self._said: set[str] = set()
        self._own_name = own_name
        self._nvml: Optional[NvmlSnapshot] = None

    def reconfigure(self, config: Config) -> None:
        """New settings, read at SIGHUP."""
        self.config = self._healer.config = config

    def learn(self, report: NodeReport) -> None:
        """A look of the agent's: who its GPUs are is kept by the thread, since the disk may be a slow one."""
        if report.nvml.gpus:
            self._nvml = report.nvml

    def start(self) -> None:
        """Begin, where the site wants it; ends with the process, or with :meth:`stop`."""
        if self.config.healing.enabled:
            threading.Thread(target=self._work, name="heal", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def due(self) -> bool:
        """Whether there may be a drain of ours to look at. Reads one small file."""
        return self._open or bool(acted.read(self.config.node.state_dir))

    def step(self) -> bool:
        """One step; False where it could not be made and is to be tried again later."""
        try:
            self._open = self._healer.step().open
        except AistationError as exc:
            if str(exc) not in self._said:
                self._said.add(str(exc))
                self._say(str(exc))
            return False
        self._said.clear()
        return True

    def _work(self) -> None:
        every = self.config.healing.every_s
        wait = every * random.random()  # a rack that boots does not ask in one moment
        while not self._stop.wait(wait):
            wait = every
            self._keep_cards()
            if not self.due():
                continue
            try:
                if not self.step():
                    wait = min(max(every, 2 * wait), SLOWEST_S)
            except Exception:
                # a bug here must not end healing for good, nor the agent
                log.exception("healing: internal error; going on")
                wait = SLOWEST_S

    def _keep_cards(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        try:
            Cards(self.config.healing.dir, self._own_name()).learn(identities(nvml))
        except AistationError:
            pass  # Slurm does not say who this node is; the next look brings them again

    def _say(self, text: str) -> None:
        nodelog.say("heal", text, self.config.node.state_dir)
