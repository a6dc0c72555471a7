"""The person who repairs nodes and gives them back, a step at each look."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Optional

from tests.cluster.torture.history import Deed, History
from tests.cluster.torture.site import Site

REPAIR_S = 12.0
"""A repair takes longer than the watchdog needs to see the drain: once a node is given back, Slurm no longer tells of it."""
RETURN_S = 8.0
"""A node that was rebooted is given back after this long, for the same reason."""
PATIENCE_S = 25.0
"""A sick node is taken out of service by a reboot after this long, whoever still runs there."""
OUT_OF_SERVICE = ("DOWN", "FAIL")


@dataclass
class Care:
    """One node under repair. stage: sick, off, booting, return. heals_at: a fault that goes away by itself."""

    node: str
    stage: str
    since: float
    reboot: bool = True
    off_s: float = 0.0
    heals_at: Optional[float] = None
    boot: Optional[Future[None]] = None
    asked: float = 0.0
    deeds: list[Deed] = field(default_factory=list)


class Operator:
    """``admin`` holds the drains of people, node -> reason: those are not ended here."""

    def __init__(self, site: Site, history: History, say: Callable[[str], None]) -> None:
        self.site, self.history, self._say = site, history, say
        self.care: dict[str, Care] = {}
        self.admin: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(1)
        self.round = 0

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def well(self) -> list[str]:
        """Nodes that nobody cares for."""
        return [name for name in self.site.names if name not in self.care]

    def take(self, node: str, stage: str, **more: Any) -> Care:
        self.care[node] = Care(node, stage, time.time(), **more)
        return self.care[node]

    def cut_power(self, node: str, off_s: float) -> None:
        """A power cut; the node is switched on again after a while."""
        self._say(f"power cut {node}")
        self.history.do(Deed(self.round, time.time(), "power cut", node))
        self.site.kill_node(node)
        care = self.care.get(node) or self.take(node, "off")
        care.stage, care.since, care.off_s, care.heals_at = "off", time.time(), off_s, None

    def work(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """One look at every node under care. nodes: as Slurm shows them; empty while it cannot be asked."""
        for care in list(self.care.values()):
            getattr(self, f"_{care.stage}")(care, nodes.get(care.node))

    def _sick(self, care: Care, shown: Optional[Mapping[str, Any]]) -> None:
        now = time.time()
        if care.heals_at is not None:
            if now >= care.heals_at:
                self.site.heal(care.node)
                self._next(care, "return")
            return
        idle = shown is not None and "DRAIN" in shown["flags"] and shown["state"] == "IDLE"
        if now < care.since + (REPAIR_S if idle else PATIENCE_S):
            return
        # a node that is given back under words that tell nothing of a GPU is drained for it once more, and rightly so
        told = shown is not None and str(shown["reason"]).startswith("ais:") and care.node not in self.admin
        if care.reboot or not idle or not told:
            self.cut_power(care.node, 0.0)
        else:
            self.site.heal(care.node)
            for mark in (self.site.dir / "shared/broken").glob(f"{care.node}.*"):
                mark.unlink()
            self._next(care, "return")

    def _off(self, care: Care, shown: Optional[Mapping[str, Any]]) -> None:
        if time.time() >= care.since + care.off_s:
            care.boot = self._pool.submit(self.site.boot, care.node)
            self._next(care, "booting")

    def _booting(self, care: Care, shown: Optional[Mapping[str, Any]]) -> None:
        if care.boot is not None and care.boot.done():
            care.boot.result()
            self._next(care, "return")

    def _return(self, care: Care, shown: Optional[Mapping[str, Any]]) -> None:
        """Until Slurm has it in service. A person's drain is that person's to end."""
        now = time.time()
        if shown is None or now < care.since + RETURN_S:
            return
        if "NOT_RESPONDING" in shown["flags"] or not self.site.is_on(care.node):
            return
        drained = "DRAIN" in shown["flags"]
        if shown["state"] in OUT_OF_SERVICE or (drained and care.node not in self.admin):
            if now >= care.asked + 2.0:
                care.asked = now
                self.site.try_run("scontrol", "update", f"NodeName={care.node}", "State=RESUME")
            return
        if care.node in self.admin and not drained:
            self.drain(care.node, self.admin[care.node])
        for deed in self.history.open(care.node):
            if deed.kind != "admin drain":
                deed.until = now
        del self.care[care.node]

    def drain(self, node: str, reason: str) -> bool:
        """As an administrator. False where the controller is away."""
        done, _ = self.site.try_run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
        if done:
            self.admin[node] = reason
        return done

    def _next(self, care: Care, stage: str) -> None:
        care.stage, care.since = stage, time.time()
