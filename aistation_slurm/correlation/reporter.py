"""A node's agent reports its correlated findings in the node's Comment (:mod:`aistation_slurm.correlation.published`).

Transitions only, at the moment of ``breaker.spread_s`` that the node's name decides: a thousand nodes with one cause make two
requests each, spread, and no more. Better is believed and told more slowly than worse, so that a report follows another by no
less than a minute on average, and one of a new fault never waits because of one that all was well.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.correlation.published import comment_with, moment_s, render, segment_of, shown
from aistation_slurm.detectors.rules import rule_of
from aistation_slurm.errors import SlurmError
from aistation_slurm.findings import Finding, Scope, Status
from aistation_slurm.node.drain import drain_lock, look
from aistation_slurm.slurm.client import SlurmClient

__all__ = ["Reporter", "correlated"]

log = logging.getLogger(__name__)

WORSE_AGAIN_S = 60.0
WELL_AFTER_S = 120.0
RETRY_S = 10.0
WELL_LOOKS = 3


def correlated(findings: Iterable[Finding], config: Config) -> list[Finding]:
    """The failed findings that the watchdog judges beside those of other nodes, in a settled order.

    Those that this node drains itself for (``[checks] action = "drain"``) and those that are only to be reported are not among
    them.
    """

    def wanted(finding: Finding) -> bool:
        rule = rule_of(finding.check, config.checks)
        return (
            finding.status is Status.FAIL
            and finding.scope is Scope.SHARED
            and any(fnmatchcase(finding.check, pattern) for pattern in config.breaker.checks)
            and (rule is None or rule.action != "report")
        )

    return sorted((f for f in findings if wanted(f)), key=lambda f: (f.check, f.subject))


class Reporter:
    """Keeps one node's report true. ``see`` takes each complete look, ``act`` makes the request when it is time."""

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        name: Callable[[], str],
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        host: str = "",
    ) -> None:
        """name: Slurm's certain name of this node; may raise SlurmError. host: decides the moment; empty: the host name."""
        self._config, self._client, self._name = config, client, name
        self._monotonic, self._clock = monotonic, clock
        self._found: list[Finding] = []
        self._keys: Optional[frozenset[tuple[str, str]]] = None
        """Of what Slurm shows; None where that is not known, as after a start."""
        self._well = 0
        self._due: Optional[float] = None
        self._told_at = float("-inf")
        """When findings were published last."""
        self._moment_s = moment_s(host or platform.node(), config.breaker.spread_s)
        self._said = ""

    def reconfigure(self, config: Config) -> None:
        """New settings, read at SIGHUP."""
        self._config = config

    def see(self, findings: Iterable[Finding]) -> None:
        """One complete look. Makes no request and never raises."""
        found = correlated(findings, self._config)
        self._well = 0 if found else self._well + 1
        keys = frozenset((f.check, f.subject) for f in found)
        if keys == self._keys:
            self._due = None  # it came and went, or went and came, before anything was said
            return
        if not found and self._well < WELL_LOOKS:
            if not self._keys:
                self._found, self._due = [], None  # gone before anything was said
            return
        turned = bool(found) != bool(self._found)
        self._found = found
        if (self._due is None or turned) and self._config.enforcing(self._config.agent):
            pause_s = WORSE_AGAIN_S if found else WELL_AFTER_S
            self._due = max(self._monotonic() + self._moment_s, self._told_at + pause_s)

    def act(self) -> None:
        """The request, if it is time. Never raises for Slurm's sake."""
        if self._due is None or self._monotonic() < self._due:
            return
        try:
            self._publish(self._found)
        except SlurmError as exc:
            self._due = self._monotonic() + RETRY_S + self._moment_s
            if str(exc) != self._said:
                self._said = str(exc)
                log.warning("what this node found is not yet published: %s", exc)

    @property
    def due_in_s(self) -> Optional[float]:
        """Seconds until ``act`` has something to do; None: nothing."""
        return None if self._due is None else max(0.0, self._due - self._monotonic())

    def _publish(self, found: list[Finding]) -> None:
        with drain_lock(self._config.node.state_dir):  # gate and grade write the same field under it
            name = self._name()
            node = look(self._client, name)
            there = shown(node.comment)
            keys = frozenset((f.check, f.subject) for f in found)
            same = frozenset((p.check, p.subject) for p in there) & keys
            # of what stays, the time at which it began stays too; what was reported before a boot is nobody's word any more
            stays = same and there[0].since >= (node.boot_time or 0)
            since = there[0].since if stays else int(self._clock())
            segment = render([(f.check, f.subject, f.evidence) for f in found], since)
            if (segment_of(node.comment) or "") != segment:
                self._client.update_node(name, Comment=comment_with(node.comment, segment))
                log.warning("%s: published %s", name, segment or "that all is well again")
        self._keys, self._said, self._due = keys, "", None
        if found:
            self._told_at = self._monotonic()
