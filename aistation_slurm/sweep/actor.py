"""What a sweep changes: drains and returns to service, one node after the other, each by the node's own rules.

A drain is made by the node: `aistation check --act` runs there, under its lock, with its memory of what an administrator gave
back, its breaker, its mode and its ``[checks]``. The sweep decides only whether and when it may.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from aistation_slurm.config import Config
from aistation_slurm.correlation.marker import open_until
from aistation_slurm.errors import SlurmError, SlurmUnavailable
from aistation_slurm.findings import is_our_reason
from aistation_slurm.node.breaker import breaker_open
from aistation_slurm.node.drain import Outcome, resume_node
from aistation_slurm.slurm.client import Node, SlurmClient
from aistation_slurm.sweep.answers import NodeAnswer, judge, plain
from aistation_slurm.sweep.fanout import Fanout
from aistation_slurm.sweep.plan import not_passed, not_returnable, plan_drains
from aistation_slurm.sweep.targets import Target

__all__ = ["Actor", "Deed"]

MINUTE_S = 60.0
RESPONDS_S = 60.0
CHECK = ("check", "--json")
ACT = ("check", "--act", "--json")
FULL = ("check", "--profile", "full", "--json")
LAST = ("check", "--profile", "full", "--act", "--json")
"""The last of the passes publishes the node's state too, so that the gate does not refuse the next job for what is over."""


@dataclass(frozen=True)
class Deed:
    """kind: ``drained``, ``not drained``, ``would drain``, ``returned``, ``not returned``, ``would return``."""

    kind: str
    node: str
    text: str

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "node": self.node, "text": self.text}


@dataclass
class Actor:
    """ask: one command on nodes, as Fanout.ask. dry: nothing is changed. say: progress for a person."""

    config: Config
    client: SlurmClient
    fanout: Fanout
    dry: bool
    say: Callable[[str], None] = lambda text: None
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    _drained_at: list[float] = field(default_factory=list)

    def drain(self, answers: Sequence[NodeAnswer], targets: Sequence[Target]) -> list[Deed]:
        """Slurm is read anew before each drain; where it stops answering, nothing more is done.

        Raises SlurmUnavailable and SlurmRefused for the first look only.
        """
        todo = [answer for answer in answers if answer.drains]
        if not todo:
            return []
        of = {target.name: target for target in targets}
        plan = self._plan(todo)
        deeds = [Deed("not drained", name, why) for name, why in plan.held.items()]
        for name, finding in plan.drains.items():
            text = " ".join(part for part in (finding.check, finding.subject, finding.evidence) if part)
            if self.dry:
                deeds.append(Deed("would drain", name, text))
                continue
            self._wait_for_rate()
            try:
                again = self._plan(todo)
                if name not in again.drains:
                    deeds.append(Deed("not drained", name, again.held.get(name, "it is drained by now")))
                    continue
                deeds.append(self._drain(of[name]))
            except SlurmError as exc:
                deeds.append(Deed("not drained", name, str(exc)))
        return deeds

    def _plan(self, todo: Sequence[NodeAnswer]) -> Any:
        nodes, now = self.client.nodes(), time.time()
        opened = {partition for partition, until in open_until(self.client.reservations()).items() if until > now}
        if breaker_open(self.config.node.state_dir, now):
            opened |= {partition for node in nodes for partition in node.partitions}
        return plan_drains(todo, nodes, opened, self.config.sweep)

    def _drain(self, target: Target) -> Deed:
        answer = self.fanout.ask([target], ACT)[target.name]
        after = self._look(target.name)
        if after.drained and is_our_reason(after.reason):
            self._drained_at.append(self.monotonic())
            return Deed("drained", target.name, after.reason)
        if after.drained:
            return Deed("not drained", target.name, f"drained by someone else: {after.reason}")
        said = plain(answer.err.decode("utf-8", "replace"))[-200:]
        seen = judge(target, answer)
        return Deed("not drained", target.name, said or f"the node did not: it is {seen.status.value} by now")

    def _wait_for_rate(self) -> None:
        most = self.config.sweep.drains_per_min
        recent = [at for at in self._drained_at if self.monotonic() - at < MINUTE_S]
        if len(recent) >= most:
            wait = MINUTE_S - (self.monotonic() - recent[-most])
            self.say(f"{most} nodes were drained in this minute; waiting {wait:.0f} s")
            self.sleep(wait)

    def give_back(self, targets: Sequence[Target]) -> list[Deed]:
        """Our own drains among the targets, after as many passes as configured. Raises SlurmError for the first look."""
        nodes = {node.name: node for node in self.client.nodes()}
        reasons: dict[str, str] = {}
        deeds = []
        for target in targets:
            node = nodes.get(target.name)
            if node is None or not node.drained or not is_our_reason(node.reason):
                continue
            why = not_returnable(node, self.config.sweep)
            if why:
                deeds.append(Deed("not returned", node.name, why))
            else:
                reasons[node.name] = node.reason
        left = [target for target in targets if target.name in reasons]
        passes = 1 if self.dry else self.config.sweep.passes
        for number in range(1, passes + 1):
            if number > 1 and left:
                self.sleep(self.config.sweep.pass_every_s)
            left = self._one_pass(left, reasons, number, passes, deeds)
        for target in left:
            if self.dry:
                deeds.append(
                    Deed("would return", target.name, f"passes now; {self.config.sweep.passes} passes are needed")
                )
            else:
                deeds.append(self._resume(target, reasons[target.name]))
        return deeds

    def _one_pass(
        self, left: Sequence[Target], reasons: dict[str, str], number: int, passes: int, deeds: list[Deed]
    ) -> list[Target]:
        if not left:
            return []
        self.say(f"pass {number} of {passes}: {len(left)} nodes")
        still = []
        try:
            nodes = {node.name: node for node in self.client.nodes([target.name for target in left])}
        except SlurmError as exc:
            deeds += [Deed("not returned", target.name, str(exc)) for target in left]
            return []
        for target in left:
            why = self._changed(nodes.get(target.name), reasons[target.name])
            if why:
                deeds.append(Deed("not returned", target.name, why))
            else:
                still.append(target)
        answers = self.fanout.ask(still, LAST if number == passes and not self.dry else FULL)
        passed = []
        for target in still:
            why = not_passed(judge(target, answers[target.name]), reasons[target.name])
            if why:
                deeds.append(Deed("not returned", target.name, f"pass {number} of {passes}: {why}"))
            else:
                passed.append(target)
        return passed

    def _changed(self, node: Optional[Node], reason: str) -> str:
        if node is None or not node.drained:
            return "somebody gave it back meanwhile"
        if node.reason != reason:
            return f"left alone: the reason was changed meanwhile: {node.reason}"
        return not_returnable(node, self.config.sweep)

    def _resume(self, target: Target, reason: str) -> Deed:
        """Read, resume, read again."""
        name = target.name
        try:
            why = self._changed(self._look(name), reason)
            if why:
                return Deed("not returned", name, why)
            result = resume_node(self.client, name, reason, self.config.node.state_dir)
            if result.outcome is not Outcome.RESUMED:
                return Deed("not returned", name, f"left alone: the reason was changed meanwhile: {result.reason}")
            after = self._settled(name)
        except SlurmError as exc:
            return Deed("not returned", name, f"whether it is back is not known: {exc}")
        if after.drained:
            return Deed("not returned", name, f"drained again in the same moment: {after.reason}")
        if not after.responding:
            shown = "+".join([after.state, *sorted(after.flags)])
            return Deed("not returned", name, f"the drain is gone, but Slurm shows it {shown}: is slurmd running?")
        return Deed("returned", name, f"{self.config.sweep.passes} passes; its drain was {reason}")

    def _settled(self, name: str) -> Node:
        """The node after it was resumed. One that was DOWN is NOT_RESPONDING until slurmctld has heard its slurmd again."""
        deadline = self.monotonic() + RESPONDS_S
        node = self._look(name)
        while not node.drained and not node.responding and self.monotonic() < deadline:
            self.sleep(1.0)
            node = self._look(name)
        return node

    def _look(self, name: str) -> Node:
        found = next((node for node in self.client.nodes([name]) if node.name == name), None)
        if found is None:
            raise SlurmUnavailable(f"Slurm showed no node {name}")
        return found
