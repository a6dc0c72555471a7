"""What the agent does about a fatal local finding: drain this node, then push its opted-in jobs away where they cannot go on
(detectors/pushing.toml); with any other fault they may finish.

Each finding is acted on once until it goes away. Everything that could not be done (controller down, controller slow)
stays pending and is tried again; everything is said once, not at every try.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.correlation.marker import breaker_says_no
from aistation_slurm.detectors.pushing import pushes
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.findings import Finding, drain_reason, is_our_reason
from aistation_slurm.node import acted, history, jobs
from aistation_slurm.node.drain import Outcome, drain_node
from aistation_slurm.node.requeue import Reach, RequeuedAttempts, held_gpus, requeue_attempt, victims
from aistation_slurm.recovery.front import keep_nodes
from aistation_slurm.slurm.client import Job, SlurmClient

__all__ = ["Reaction"]

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 1.0, 30.0
RETURN_POLL_S = 30.0
AGAIN_S = 3.0
"""Until the look for a returned node when the kernel repeats a fault that was acted on; a storm of lines costs one look."""


@dataclass
class _Pending:
    findings: tuple[Finding, ...]
    reason: str
    drained: bool = False
    told: bool = False
    """The node's reason tells of the first finding; else it is someone else's, or of an earlier fault of ours."""
    unseen: bool = False
    """The node's reason tells whoever gives it back nothing of GPUs."""
    push_only: bool = False
    """Drained for by gate or cron, which push no job: only where the drain still is there."""


class Reaction:
    """Keeps what was acted on and what is still to be done. One per agent; not thread-safe.

    ``gres_of``: device key of a finding -> gres index of that GPU, None where not known. ``own_name``: Slurm's name of this node
    for sure, raising SlurmUnavailable or SlurmRefused; without it ``node`` is that name.
    """

    def __init__(
        self,
        config: Config,
        node: str,
        boot_id: str,
        client: SlurmClient,
        gres_of: Callable[[str], Optional[int]],
        monotonic: Callable[[], float] = time.monotonic,
        own_name: Optional[Callable[[], str]] = None,
    ) -> None:
        self.config = config
        self.node = node
        self.boot_id = boot_id
        self.client = client
        self.gres_of = gres_of
        self.monotonic = monotonic
        self.own_name = own_name
        self.state_dir = config.node.state_dir
        self.done = RequeuedAttempts(Path(self.state_dir) / "requeued")
        self._on_disk = acted.read(self.state_dir)
        self.acted = set(self._on_disk)
        self.unseen: set[acted.Key] = set()
        """Acted on, but under a drain whose reason does not tell of it: told when the node is given back."""
        self.pending: Optional[_Pending] = None
        self.retry_at = 0.0
        self._return_at = 0.0
        self.given_back_at = float("-inf")
        """When somebody's giving the node back was noticed (monotonic): a look that began before tells of what was repaired."""
        self._first = True
        self._retry_s = RETRY_FIRST_S
        self._said: set[str] = set()

    def reconfigure(self, config: Config) -> None:
        """New settings, read at SIGHUP. What is pending stays pending; what was only observed is acted on from now on."""
        observed = not self.config.enforcing(self.config.agent)
        self.config = config
        if observed and config.enforcing(config.agent):
            self.unseen.clear()

    def see(self, findings: Sequence[Finding], *, complete: bool) -> None:
        """Take in the fatal findings of one look and act. ``complete``: the look covered every check."""
        present = {(f.check, f.subject) for f in findings}
        noted = self._noted_by_others()
        if complete:
            self.unseen &= present
            if self.acted - present:
                self.acted &= present
                self._remember()
        elif present & self.acted:
            # the kernel says it again: of a drained node, or of one that was given back and is not well
            self._return_at = min(self._return_at, self.monotonic() + AGAIN_S)
        known = self.acted | self.unseen
        again = [f for f in findings if (f.check, f.subject) in (known if complete and self._first else noted)]
        if present - known:
            waiting = self.pending.findings if self.pending else ()
            had = {(f.check, f.subject) for f in waiting}
            # those noted by others too: their jobs were pushed by nobody
            add = tuple(f for f in findings if (f.check, f.subject) not in (known - noted) | had)
            if add:
                reason = drain_reason((waiting + add)[0], node=self.node, boot_id=self.boot_id)
                before = self.pending or _Pending((), reason)
                self.pending = _Pending(waiting + add, reason, before.drained, before.told, before.unseen)
                self.retry_at = 0.0
        elif again and self.pending is None:
            reason = drain_reason(again[0], node=self.node, boot_id=self.boot_id)
            self.pending = _Pending(tuple(again), reason, push_only=True)
        self._first = self._first and not complete
        self.act()

    def act(self) -> None:
        """Do what is pending, if it is time to try. Never raises for Slurm's sake."""
        if self.pending is None or self.monotonic() < self.retry_at:
            return
        if not self.config.enforcing(self.config.agent):
            self._observe(self.pending)
            return
        try:
            self._be_sure_of_name(self.pending)
            if not self.pending.drained and self._breaker_is_open():
                self._say_once(f"the mass-drain breaker is open: {self.node} is not drained for {self.pending.reason}")
                self._later()
                return
            if self.pending.push_only and not self._drained_by_us(self.pending):
                self._finish(self.pending)
                return
            if not self.pending.drained:
                self._drain(self.pending)
            if self._requeue(self.pending):
                self._finish(self.pending)
                return
        except SlurmUnavailable as exc:
            self._say_once(f"{exc}; trying again until it is done: {self.pending.reason}")
        except SlurmRefused as exc:
            hint = "" if "SLURMD_NODENAME" in str(exc) else " is SLURMD_NODENAME right?"
            self._say_once(f"{exc};{hint} trying again until it is done: {self.pending.reason}")
        except OSError as exc:
            self._say_once(f"{self.state_dir}: {exc}; without its memory the agent requeues nothing")
        self._later()

    def watch_for_return(self) -> None:
        """Notice, at most every 30 s and only on a node with faults that were acted on, that somebody gave it back.

        From then on kernel messages of before do not count: what they told of was repaired, though the log still has them.
        A fault that came while someone else's drain was on the node is drained for now.
        """
        if not (self.acted or self.unseen) or self.pending is not None or self.monotonic() < self._return_at:
            return
        self._return_at = self.monotonic() + RETURN_POLL_S
        if not self.config.enforcing(self.config.agent):
            return
        try:
            node = self.node if self.own_name is None else self.own_name()
            found = next((n for n in self.client.nodes([node]) if n.name == node), None)
        except (SlurmUnavailable, SlurmRefused):
            return
        if found is None:
            return
        try:
            if found.drained:
                history.note_drained(self.config)
                return
            if self.unseen:
                log.warning(
                    "%s was given back by somebody who cannot have known of a fault that came meanwhile", self.node
                )
                self.unseen.clear()
                return
            log.warning("%s was given back by somebody; kernel messages of before count as dealt with", self.node)
            self.acted = history.given_back(self.config, self.acted)
            self.given_back_at = self.monotonic()
            self._remember()
        except OSError as exc:
            self._say_once(f"{self.state_dir}: {exc}")

    def _noted_by_others(self) -> set[acted.Key]:
        """Faults that gate or cron drained for since our last look: acted on, but no job was pushed away."""
        on_disk = acted.read(self.state_dir)
        noted = on_disk - self._on_disk - self.acted
        self._on_disk = on_disk
        self.acted |= noted
        self.unseen -= noted
        return set(noted)

    def _breaker_is_open(self) -> bool:
        return breaker_says_no(self.client, self.node, self.state_dir, time.time())

    def _be_sure_of_name(self, pending: _Pending) -> None:
        name = self.node if self.own_name is None else self.own_name()
        if name != self.node:
            self.node = name
            pending.reason = drain_reason(pending.findings[0], node=name, boot_id=self.boot_id)

    def _drained_by_us(self, pending: _Pending) -> bool:
        found = next((n for n in self.client.nodes([self.node]) if n.name == self.node), None)
        pending.drained = found is not None and found.drained and is_our_reason(found.reason)
        pending.told = found is not None and found.reason == pending.reason
        return pending.drained

    def _drain(self, pending: _Pending) -> None:
        result = drain_node(self.client, self.node, pending.reason, self.state_dir)
        pending.drained = True
        pending.told = result.reason == pending.reason
        pending.unseen = not result.reason.startswith("ais:gpu.") and not pending.told
        if result.outcome is Outcome.SET:
            log.warning("%s drained: %s", self.node, result.reason)
        else:
            log.warning(
                "%s is drained (%s: %s); found %s", self.node, result.outcome.value, result.reason, pending.reason
            )

    def _requeue(self, pending: _Pending) -> bool:
        """True when no job is left that should get away."""
        pushing = _pushing(pending)
        if not self.config.agent.requeue or not pushing:
            return True
        records = jobs.read_all(self.state_dir)
        reach = self._reach(pushing)
        everyone = self.client.jobs()
        left = [
            job
            for job in victims(everyone, self.node, records, reach)
            if (job.job_id, job.start_time or 0) not in self.done
        ]

        def keep(job: Job) -> str:
            return keep_nodes(self.client, job, (self.node,), self.config.front, everyone)

        complete = True
        for job in left:
            note = self._note(pushing, held_gpus(job, records.get(job.job_id)))
            sent = requeue_attempt(self.client, job, self.node, self.done, self.monotonic, note, keep)
            complete = complete and sent
        # one that was not sent either went away by itself or could not be looked at in time: look again
        return complete

    def _note(self, findings: Sequence[Finding], held: Optional[frozenset[int]]) -> str:
        """The check to note in the job itself: the node's one reason may tell of another fault."""

        def concerns(finding: Finding) -> bool:
            return self._reach([finding]).concerns(held)

        return next((f.check for f in findings if concerns(f)), findings[0].check)

    def _reach(self, findings: Sequence[Finding]) -> Reach:
        """Findings name a GPU by its PCI address, Slurm by its gres index; one that cannot be mapped may be anybody's."""
        if not all(f.check.startswith("gpu.") for f in findings):
            return Reach(whole_node=True)
        found = [self.gres_of(f.device) if f.device else None for f in findings]
        known = [index for index in found if index is not None]
        return Reach(whole_node=False, gres=frozenset(known) if len(known) == len(found) else None)

    def _observe(self, pending: _Pending) -> None:
        log.warning("observe mode: would drain %s: %s", self.node, pending.reason)
        pending.unseen = True  # nobody was told; the gate, which may enforce, must not take it for dealt with
        pushing = _pushing(pending)
        if self.config.agent.requeue and pushing:
            records, reach = jobs.read_all(self.state_dir), self._reach(pushing)
            try:
                would = [job.argument for job in victims(self.client.jobs(), self.node, records, reach)]
                log.warning("observe mode: would requeue %s", ", ".join(would) or "no job")
            except (SlurmUnavailable, SlurmRefused) as exc:
                log.warning("observe mode: which jobs would be requeued is not known: %s", exc)
        self._finish(pending)

    def _finish(self, pending: _Pending) -> None:
        keys = {(f.check, f.subject) for f in pending.findings}
        if pending.unseen:
            self.unseen |= keys
        else:
            self.acted |= keys
            try:
                history.note_drained(self.config)
            except OSError as exc:
                self._say_once(f"{self.state_dir}/klog-drained: {exc}")
        self._return_at = self.monotonic() + RETURN_POLL_S
        self.pending = None
        self._retry_s = RETRY_FIRST_S
        self._said.clear()
        self._remember()

    def _remember(self) -> None:
        try:
            acted.write(self.state_dir, self.acted)
            self._on_disk = frozenset(self.acted)
        except OSError as exc:
            self._say_once(f"{self.state_dir}/acted: {exc}")

    def _later(self) -> None:
        self.retry_at = self.monotonic() + self._retry_s
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)


def _pushing(pending: _Pending) -> tuple[Finding, ...]:
    """Those of the findings with which no job can go on."""
    return tuple(f for f in pending.findings if pushes(f.check, f.evidence))
