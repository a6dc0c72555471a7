"""The watchdog's side of placement, in a thread of its own: it can neither delay a recovery nor end the watchdog.

The watchdog offers what it saw at each poll; the newest offer replaces one that was not yet taken. The thread makes the table,
then corrects pending jobs, at most ``placement.corrections_per_s`` a second; a newer offer ends a round of corrections.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from aistation_slurm.config import Config
from aistation_slurm.errors import AistationError, SlurmRefused
from aistation_slurm.placement.correct import Correction, correction_of, corrections
from aistation_slurm.placement.publisher import Publisher
from aistation_slurm.placement.table import PartitionRow
from aistation_slurm.slurm.client import Job, Node, SlurmClient

__all__ = ["Refresher"]

log = logging.getLogger(__name__)

REFUSED_PAUSE_S = 600.0
"""A job whose correction Slurm refused is left alone for this long."""


class Offer(NamedTuple):
    """One look of the watchdog. nodes: None where it did not ask for them; kept: nodes that the recovery excluded, by job."""

    jobs: Sequence[Job]
    nodes: Optional[Sequence[Node]]
    kept: Mapping[int, frozenset[str]]


class Refresher:
    """``offer`` returns at once. The thread begins with the first offer and ends with the process."""

    def __init__(self, config: Config, client: SlurmClient, publisher: Optional[Publisher] = None) -> None:
        """client: not shared with the watchdog's thread."""
        self._config, self._client = config, client
        self._act = config.enforcing(config.placement)
        self._publisher = publisher or Publisher(config)
        self._offers: list[Offer] = []
        self._news = threading.Event()
        self._rest = threading.Event()
        self._rest.set()
        self._thread: Optional[threading.Thread] = None
        self._refused: dict[int, float] = {}
        self._said: dict[str, str] = {}

    def reconfigure(self, config: Config) -> None:
        """New settings, read at SIGHUP; the next table is made by them."""
        self._config, self._act = config, config.enforcing(config.placement)
        self._publisher = Publisher(config)

    def offer(self, jobs: Sequence[Job], nodes: Optional[Sequence[Node]], kept: Mapping[int, frozenset[str]]) -> None:
        """Take a look over. Does nothing in observe mode."""
        if not self._act:
            return
        self._offers = [Offer(jobs, nodes, kept)]
        self._rest.clear()
        self._news.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="placement", daemon=True)
            self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Until what was offered is done, for a command that ends; False after ``timeout_s``."""
        return self._rest.wait(timeout_s)

    def _work(self) -> None:
        while True:
            if not self._news.is_set():
                self._rest.set()
            self._news.wait()
            self._news.clear()
            offers, self._offers = self._offers, []
            for offer in offers:
                try:
                    self.take(offer)
                except AistationError as exc:
                    self._say(
                        "round", f"placement: {exc}; jobs are placed by the table that is there, or as without one"
                    )
                except Exception:
                    log.exception("placement: unexpected; left out until the next look")
                else:
                    self._say("round", "")

    def take(self, offer: Offer) -> None:
        """One round. Raises TableError and SlurmError; what was begun is taken up by the next one."""
        nodes = self._client.nodes() if offer.nodes is None else offer.nodes
        made = self._publisher.look(nodes, offer.jobs)
        for text in made.said:
            self._say(text, text)
        if self._publisher.write(made):
            log.debug("placement: the decision table is renewed")
        if self._config.placement.correct:
            self._correct(offer, {row.name: row for row in made.partitions})

    def _correct(self, offer: Offer, partitions: Mapping[str, PartitionRow]) -> None:
        now = time.time()
        self._refused = {job_id: at for job_id, at in self._refused.items() if 0 <= now - at < REFUSED_PAUSE_S}
        gap_s = 1.0 / self._config.placement.corrections_per_s
        for planned in corrections(offer.jobs, partitions, now, offer.kept):
            if planned.job.job_id in self._refused:
                continue
            began = time.monotonic()
            fresh = self._client.job(planned.job.job_id)
            kept = offer.kept.get(planned.job.job_id, frozenset())
            # what the watchdog saw is a moment old: another may have written the same fields since
            correction = correction_of(fresh, partitions, now, kept) if fresh is not None else None
            if correction is not None:
                self._apply(correction, partitions, kept)
            if self._news.wait(max(0.0, gap_s - (time.monotonic() - began))):
                return  # what is left is planned anew from the newer look

    def _apply(self, correction: Correction, partitions: Mapping[str, PartitionRow], kept: frozenset[str]) -> None:
        job = correction.job
        try:
            self._client.update_job(job, **correction.fields)
        except SlurmRefused as exc:
            # of an array, the tasks that wait are changed all the same where those that run are refused
            after = self._client.job(job.job_id) if job.array_job_id else None
            if after is None or correction_of(after, partitions, time.time(), kept) is not None:
                self._refused[job.job_id] = time.time()
                log.warning("job %s: could not be corrected (%s): %s", job.argument, correction.text, exc)
                return
        log.info("job %s: %s", job.argument, correction.text)

    def _say(self, key: str, text: str) -> None:
        """Each trouble once, and again after it was over."""
        if text and self._said.get(key) != text:
            log.warning("%s", text)
        if text:
            self._said[key] = text
        else:
            self._said.pop(key, None)
