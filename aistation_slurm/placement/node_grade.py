"""A node's agent publishes the grade of the node's fabric, in the node's Comment (:mod:`aistation_slurm.placement.grade`).

Transitions only, at most one a minute and node, since every update of a node makes all of Slurm's clients fetch all nodes again.
Better is believed more slowly than worse: a link that flaps must not make jobs come and go.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.correlation.published import moment_s
from aistation_slurm.errors import SlurmError
from aistation_slurm.findings import Finding, Status
from aistation_slurm.node.drain import drain_lock, look
from aistation_slurm.placement.grade import ADMIN, comment_with_grade, degraded
from aistation_slurm.slurm.client import SlurmClient

__all__ = ["NodeGrade", "grade_of_findings"]

log = logging.getLogger(__name__)

EVERY_S = 60.0
JITTER_S = 15.0
WELL_LOOKS = 3


def grade_of_findings(findings: Iterable[Finding], warnings: tuple[str, ...]) -> Optional[str]:
    """Why the fabric is degraded (``fabric.errors@mlx5_3/1``); None where it is not.

    Any fail of the fabric counts, and a warning of the checks (shell patterns) in ``warnings``.
    """
    bad = [
        f
        for f in findings
        if (f.status is Status.FAIL and f.check.startswith("fabric."))
        or (f.status is Status.WARN and any(fnmatchcase(f.check, pattern) for pattern in warnings))
    ]
    if not bad:
        return None
    first = min(bad, key=lambda f: (-f.status.rank, f.check, f.subject))
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"{first.check}@{first.subject}{more}"


class NodeGrade:
    """Keeps one node's published grade true to its reports."""

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        name: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        host: str = "",
    ) -> None:
        """name: Slurm's certain name of this node; may raise SlurmError. host: decides the moment of ``breaker.spread_s`` at
        which a change is published, so that many nodes with one cause do not ask at once; empty: at once.
        """
        self._settings, self._client, self._name, self._clock = config.placement, client, name, clock
        self._state_dir = config.node.state_dir
        self._act = config.enforcing(config.agent)
        self._published: Optional[bool] = None
        """Whether Slurm shows it as degraded; None: not known yet."""
        self._well = 0
        self._next = 0.0
        self._moment_s = moment_s(host, config.breaker.spread_s) if host else 0.0
        self._why: Optional[str] = None
        self._due: Optional[float] = None
        self._said = ""

    def reconfigure(self, config: Config) -> None:
        """New settings, read at SIGHUP."""
        self._settings, self._act = config.placement, config.enforcing(config.agent)

    def see(self, findings: Iterable[Finding]) -> None:
        """One complete report. Makes no request while nothing changes; never raises for Slurm's sake."""
        why = grade_of_findings(findings, self._settings.degraded)
        self._well = 0 if why is not None else self._well + 1
        settled = why is not None or self._well >= WELL_LOOKS
        if not self._act or not settled or self._published == (why is not None) or self._clock() < self._next:
            self._due = None
            return
        self._why = why
        if self._due is None:
            self._due = self._clock() + self._moment_s
        self.act()

    def act(self) -> None:
        """Publish what was seen last, if its moment has come."""
        if self._due is None or self._clock() < self._due:
            return
        self._due = None
        self._next = self._clock() + EVERY_S + random.uniform(0.0, JITTER_S)
        try:
            self._publish(self._why)
        except SlurmError as exc:
            if str(exc) != self._said:
                self._said = str(exc)
                log.warning("the grade of this node's fabric is not yet published: %s", exc)

    def _publish(self, why: Optional[str]) -> None:
        with drain_lock(self._state_dir):  # the gate writes the same field under it
            name = self._name()
            node = look(self._client, name)
            there = degraded(node.comment)
            if (there is not None) != (why is not None) and not (there or "").startswith(ADMIN):
                self._client.update_node(name, Comment=comment_with_grade(node.comment, why))
                log.warning("fabric of %s: %s", name, f"degraded ({why})" if why is not None else "well again")
        self._published = why is not None
        self._said = ""
