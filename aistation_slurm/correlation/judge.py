"""The watchdog's part: reads what nodes report, drains the single ones, names common causes, opens and closes the breaker."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.correlation.decide import Cause, Decision, Drain, OpenPartition, decide
from aistation_slurm.correlation.marker import open_until, put_marker, remove_marker
from aistation_slurm.correlation.view import Leaves, Token, settle_of, tokens, views
from aistation_slurm.errors import SlurmError, SlurmRefused
from aistation_slurm.findings import Action, Finding, Scope, Status, drain_reason
from aistation_slurm.node.drain import drain_node
from aistation_slurm.recovery.clock import Clock
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Node, SlurmClient

__all__ = ["Judge"]

log = logging.getLogger(__name__)

MINUTE_S = 60.0
BUSY_S = 5.0
REMEMBERED_S = 30 * 86400.0
"""A node that was given back with a finding still reported is not drained for that occurrence for so long."""
DRAINED = "correlated_drain"
_TOLD = re.compile(r" \(reported since ([0-9]{1,12})\)$")
LONGEST = 400


class Judge:
    """``step()`` at each of the watchdog's cycles; it looks every ``breaker.look_s`` seconds."""

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        journal: Journal,
        clock: Clock,
        leaves: Optional[Callable[[int, float], Mapping[str, str]]] = None,
    ) -> None:
        """leaves: replaced in tests; number of nodes and monotonic time -> leaf switch by node."""
        self._config, self._settings = config, config.breaker
        self._client, self._journal, self._clock = client, journal, clock
        self._act = config.enforcing(config.watchdog) and self._settings.mode != "observe"
        self._lock_dir = str(Path(config.watchdog.journal).parent)
        self._leaves = leaves or Leaves(config).of
        self._next = float("-inf")
        self._seen: Optional[dict[Token, float]] = None
        self._dealt: set[Token] = set()
        self._held: dict[Token, float] = {}
        """What was not alone -> monotonic time until which it is not judged alone: nodes of one cause get well one by one."""
        self._drains: list[float] = []
        self._causes: dict[str, tuple[int, int]] = {}
        """Where -> number of nodes told of, number at the last look."""
        self._open: dict[str, float] = {}
        """Partition -> monotonic time at which the breaker's cause was there last."""
        self._marked: dict[str, float] = {}
        """Partition -> unix time until which nodes are told that the breaker is open."""
        self._would: set[Token] = set()
        self._said = ""

    def step(self, *, busy: bool = False) -> None:
        """Look, if it is time. busy: a recovery is under way, which goes first for a while.

        Raises JournalError only: what Slurm does not answer is asked again later.
        """
        now = self._clock.monotonic()
        if now < self._next + (BUSY_S if busy else 0.0):
            return
        self._next = now + self._settings.look_s
        try:
            self.look(self._client.nodes())
            self._said = ""
        except SlurmError as exc:
            if str(exc) != self._said:
                self._said = str(exc)
                log.warning("what nodes report cannot be judged now: %s", exc)

    def look(self, nodes: Sequence[Node]) -> Decision:
        """Judge and act. Raises SlurmUnavailable and JournalError."""
        now = self._clock.now()
        self._remember(nodes, now)
        assert self._seen is not None
        reported = any(tokens(node) for node in nodes)
        leaf_of = self._leaves(len(nodes), self._clock.monotonic()) if reported else {}
        held = {token for token, until in self._held.items() if until > self._clock.monotonic()}
        seen = views(nodes, leaf_of, self._settings, now, self._seen, self._dealt, held)
        self._drains = [time for time in self._drains if now - MINUTE_S < time <= now]
        decision = decide(seen, self._settings, settle_of(self._config), now, len(self._drains))
        self._hold({name for cause in decision.causes for name in cause.nodes})
        sizes: dict[str, int] = {}
        for view in seen:
            sizes[view.leaf] = sizes.get(view.leaf, 0) + 1
        self._tell_causes(decision.causes, sizes, now)
        self._tell_open(decision.open, nodes, now)
        for drain in decision.drains:
            self._drain(drain, next(node for node in nodes if node.name == drain.node), now)
        return decision

    # ---- memory

    def _remember(self, nodes: Sequence[Node], now: float) -> None:
        """When each report was first seen here, and which a person has seen under a drain."""
        first = self._seen is None
        if first:
            self._dealt = self._drained_before(now)
            for partition, until in open_until(self._client.reservations()).items():
                self._marked[partition] = until
                self._open[partition] = self._clock.monotonic()
        before = self._seen or {}
        self._seen = {}
        for node in nodes:
            for token in tokens(node):
                # after a start the node's own time has to do, so that nothing old seems to have come together
                self._seen[token] = before.get(token, min(float(token.since), now) if first else now)
                if node.drained:
                    self._dealt.add(token)
        self._would &= self._seen.keys()
        self._held = {token: until for token, until in self._held.items() if token in self._seen}
        if first:
            # what the watchdog before this one knew of them is lost
            settle = settle_of(self._config)
            self._hold({t.node for t, since in self._seen.items() if now - since >= settle.of(t.check)})

    def _hold(self, names: set[str]) -> None:
        until = self._clock.monotonic() + self._settings.together_s
        self._held.update({token: until for token in self._seen or () if token.node in names})

    def _drained_before(self, now: float) -> set[Token]:
        found = set()
        for row in self._journal.incidents(since=now - REMEMBERED_S, limit=100000):
            told = _TOLD.search(row["text"]) if row["kind"] == DRAINED else None
            check, _, rest = row["text"].partition("ais:")[2].partition(" ")
            if told is not None and check:
                found.add(Token(row["node"], check, rest.partition(" ")[0], int(told[1])))
        return found

    # ---- saying

    def _tell_causes(self, causes: Sequence[Cause], sizes: Mapping[str, int], now: float) -> None:
        before, self._causes = self._causes, {}
        for cause in causes:
            told, last = before.get(cause.where, (0, 0))
            count = len(cause.nodes)
            if told == 0 or (count > told and count == last):  # at once, and again when no more come
                told = count
                leaf = cause.where.rpartition(" ")[2]
                of = f" of {sizes[leaf]}" if cause.where.startswith("leaf switch ") and leaf in sizes else ""
                who = hostlist.fold(cause.nodes)
                text = f"{cause.where}: {count}{of} nodes report {', '.join(cause.checks)} together ({_cut(who)})"
                self._say(
                    "common_cause", f"{text}: one cause, so no node is drained for it; look at {cause.where}", now
                )
            self._causes[cause.where] = (told, count)
        for where in before.keys() - self._causes.keys():
            self._say("common_cause_over", f"{where}: fewer nodes report something now", now)

    def _tell_open(self, opened: Sequence[OpenPartition], nodes: Sequence[Node], now: float) -> None:
        monotonic = self._clock.monotonic()
        for entry in opened:
            if entry.partition not in self._open:
                stop = "nobody is drained" if entry.everything else "the watchdog and gates drain nobody"
                text = (
                    f"the mass-drain breaker opens for partition {entry.partition}: {entry.would} nodes would go "
                    f"({entry.drained} drained in {self._settings.window_s:g} s), {entry.limit} may: {stop} there"
                )
                self._say("breaker_open", text, now)
            self._open[entry.partition] = monotonic
            if entry.everything and self._act:
                self._mark(entry.partition, nodes, now)
        for partition, last in list(self._open.items()):
            if monotonic - last >= self._settings.calm_s:
                if partition in self._marked and self._act:
                    remove_marker(self._client, partition)
                    del self._marked[partition]
                del self._open[partition]
                self._say("breaker_closed", f"the mass-drain breaker closes for partition {partition}", now)

    def _mark(self, partition: str, nodes: Sequence[Node], now: float) -> None:
        """Renewed at half its time."""
        if self._marked.get(partition, 0.0) - now > self._settings.open_s / 2:
            return
        member = next(node.name for node in nodes if partition in node.partitions)
        until = now + self._settings.open_s
        try:
            put_marker(self._client, partition, member, until)
            self._marked[partition] = until
        except SlurmRefused as exc:
            log.warning("nodes cannot be told that the breaker is open for %s: %s", partition, exc)

    def _say(self, kind: str, text: str, now: float, node: str = "") -> None:
        said = text if self._act else f"observe only: {text}"
        log.warning("%s%s", f"{node}: " if node else "", said)
        self._journal.note(now, kind, said, node=node)

    # ---- acting

    def _drain(self, drain: Drain, node: Node, now: float) -> None:
        found = drain.found
        token = next((t for t in tokens(node) if (t.check, t.subject) == (found.check, found.subject)), None)
        finding = Finding(found.check, Status.FAIL, found.subject, found.evidence, Action.INSPECT, Scope.SHARED)
        reason = drain_reason(finding, node=node.name, boot_id=str(node.boot_time))
        told = f" (reported since {token.since})" if token is not None else ""
        if not self._act:
            if token is not None and token not in self._would:
                self._would.add(token)
                self._say(DRAINED, f"would drain, no other node shares it: {reason}", now, node.name)
            return
        self._drains.append(now)
        try:
            result = drain_node(self._client, node.name, reason, self._lock_dir)
        except (SlurmRefused, OSError) as exc:
            self._say("note", f"is not drained ({exc}): {reason}", now, node.name)
            return
        if token is not None:
            self._dealt.add(token)
        self._say(DRAINED, f"drained ({result.outcome.value}), no other node shares it: {reason}{told}", now, node.name)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
