"""Our own drains: set one, or give a node back, without ever touching what somebody else set.

Slurm's node updates have no compare-and-set, so: read before, write, read after; one node-local lock keeps agent, gate
and ``aistation check --act`` of one node apart. Who wrote a reason is judged by its exact text alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.correlation.marker import breaker_says_no
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.findings import Finding, Status, drain_reason, is_our_reason
from aistation_slurm.node import acted, history
from aistation_slurm.node.health import NodeReport
from aistation_slurm.node.lock import DrainLock
from aistation_slurm.slurm.client import Node, SlurmClient

__all__ = [
    "HANG",
    "DrainResult",
    "Outcome",
    "conclusive",
    "drain_for",
    "drain_lock",
    "drain_node",
    "fatal",
    "look",
    "resume_node",
]

log = logging.getLogger(__name__)

LOCK_WAIT_S = 15.0
HANG = "gpu.driver_hang"
FIRST = ("gpu.lost", HANG, "gpu.xid")
"""The order in which findings give the node's reason when there are several."""


class Outcome(Enum):
    """What is true of the node afterwards."""

    SET = "set"
    """Drained with our reason, by this call."""
    ALREADY_OURS = "already ours"
    """Was drained by AIStation before (perhaps for another finding); the reason stays."""
    LEFT_TO_OTHERS = "left to others"
    """Drained by someone else, or in the moment of our own request; their reason stays."""
    RESUMED = "resumed"
    NOT_OURS = "not ours"
    """Not resumed: not drained, or the reason is not exactly the one that was asked for."""


@dataclass(frozen=True)
class DrainResult:
    """``reason`` is the text that now stands on the node."""

    outcome: Outcome
    reason: str

    @property
    def drained(self) -> bool:
        """True where no new job will start on the node."""
        return self.outcome in (Outcome.SET, Outcome.ALREADY_OURS, Outcome.LEFT_TO_OTHERS)


@contextmanager
def drain_lock(state_dir: str) -> Iterator[None]:
    """Nobody else on this node changes its drain or its Comment meanwhile. Raises SlurmUnavailable where another does for long."""
    with DrainLock(state_dir, LOCK_WAIT_S) as held:
        if not held:
            raise SlurmUnavailable(f"{state_dir}/drain.lock: held for more than {LOCK_WAIT_S:g} s by another process")
        yield


def drain_node(client: SlurmClient, name: str, reason: str, state_dir: str) -> DrainResult:
    """Drain with ``reason`` unless the node is drained already.

    Raises SlurmUnavailable (also when another process on this node holds the lock too long) and SlurmRefused; nothing is
    changed then, or the next call finds what was.
    """
    with drain_lock(state_dir):
        before = look(client, name)
        if before.drained:
            ours = is_our_reason(before.reason)
            return DrainResult(Outcome.ALREADY_OURS if ours else Outcome.LEFT_TO_OTHERS, before.reason)
        client.drain(name, reason)
        after = look(client, name)
        if after.drained and after.reason == reason:
            return DrainResult(Outcome.SET, reason)
        if after.drained:
            log.warning("%s: drained by someone else in the same moment; their reason stays: %s", name, after.reason)
            return DrainResult(Outcome.LEFT_TO_OTHERS, after.reason)
        raise SlurmUnavailable(
            f"{name} is not drained although the controller accepted it; somebody resumed it at once?"
        )


def resume_node(client: SlurmClient, name: str, reason: str, state_dir: str) -> DrainResult:
    """Give the node back if its reason still is exactly ``reason``, a text of ours.

    Raises SlurmUnavailable and SlurmRefused as :func:`drain_node` does; ValueError for a reason that is not ours.
    """
    if not is_our_reason(reason):
        raise ValueError(f"not a reason of AIStation: {reason!r}; only our own drains are ever taken back")
    with drain_lock(state_dir):
        before = look(client, name)
        if not before.drained or before.reason != reason:
            return DrainResult(Outcome.NOT_OURS, before.reason)
        client.resume(name)
        return DrainResult(Outcome.RESUMED, "")


def drain_for(report: NodeReport, config: Config, client: SlurmClient) -> str:
    """What ``aistation check --act`` does: drain for the most telling fatal finding. What was done, "" for nothing.

    Raises SlurmUnavailable and SlurmRefused.
    """
    found = fatal(report.findings)
    state_dir = config.node.state_dir
    present = {(f.check, f.subject) for f in found}
    known = acted.read(state_dir)
    if known - present and conclusive(report):
        known &= present
        _remember(state_dir, known)
    if not found:
        return ""
    new = [f for f in found if (f.check, f.subject) not in known]
    reason = drain_reason((new or found)[0], node=report.node, boot_id=report.boot_id)
    if not config.enforcing(config.agent):
        return f"observe mode: would drain {report.node}: {reason}"
    if not new:
        return _look_for_return(report.node, reason, config, client)
    if breaker_says_no(client, report.node, state_dir, time.time()):
        return f"the mass-drain breaker is open: {report.node} is not drained for {reason}"
    result = drain_node(client, report.node, reason, state_dir)
    if is_our_reason(result.reason):
        _remember(state_dir, known | present)
        _note_drained(config)
    return f"{report.node} drained ({result.outcome.value}): {result.reason}"


def _look_for_return(name: str, reason: str, config: Config, client: SlurmClient) -> str:
    """Everything found was drained for before: an administrator who gave the node back is not argued with."""
    if look(client, name).drained:
        _note_drained(config)
        return ""
    try:
        acted.write(config.node.state_dir, history.given_back(config, acted.read(config.node.state_dir)))
    except OSError as exc:
        log.warning("%s: %s", config.node.state_dir, exc)
    return f"{name} was drained for this and somebody gave it back since; not drained again: {reason}"


def _remember(state_dir: str, keys: AbstractSet[acted.Key]) -> None:
    try:
        acted.write(state_dir, keys)
    except OSError as exc:
        log.warning("%s/acted: %s", state_dir, exc)


def _note_drained(config: Config) -> None:
    try:
        history.note_drained(config)
    except OSError as exc:
        log.warning("%s/klog-drained: %s", config.node.state_dir, exc)


def conclusive(report: NodeReport) -> bool:
    """Whether a fault that this look does not show has gone away: not where driver or bus could not be asked."""
    return not any(f.status is Status.UNKNOWN and f.check in (HANG, "gpu.lost") for f in report.findings)


def fatal(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that a node drains itself for, the most telling first.

    ``gpu.driver_hang`` fails only once it was seen twice, ``probe.hang_confirm_s`` apart (node/health.py).
    """
    found = [f for f in findings if f.drains]
    return sorted(found, key=lambda f: FIRST.index(f.check) if f.check in FIRST else len(FIRST))


def look(client: SlurmClient, name: str) -> Node:
    """The node as Slurm shows it now. Raises SlurmUnavailable, also where Slurm shows no such node."""
    found: Optional[Node] = next((n for n in client.nodes([name]) if n.name == name), None)
    if found is None:
        raise SlurmUnavailable(f"Slurm showed no node {name}; is SLURMD_NODENAME or the host name right?")
    return found
