"""After a failed attempt the first node of the job reads the end of its output, as the user, and says what it saw.

The words go into the node's Comment (a job that has ended takes no more), where the watchdog finds them when it asks whose
fault it was. The agent does it, so that the epilog need not wait. Three requests to the controller, and only for an
opted-in job that failed.
"""

from __future__ import annotations

import logging
import os
import pwd
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

from aistation_slurm.config import Config
from aistation_slurm.detectors.job_output import OutputVerdict, judge_output
from aistation_slurm.errors import AistationError, SlurmUnavailable
from aistation_slurm.node import jobs
from aistation_slurm.node.drain import LOCK_WAIT_S
from aistation_slurm.node.hang_job import WatchedJob, show_job
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.lock import DrainLock
from aistation_slurm.probes.child import Step, run_child
from aistation_slurm.probes.user import Credentials
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import SlurmClient

__all__ = ["EndedJobs", "read_ends", "say_what_it_said"]

log = logging.getLogger(__name__)

TAIL_BYTES = 256 * 1024
DEADLINE_S = 5.0
SETTLED_S = 10.0
"""An epilog runs while its job is COMPLETING; its exit code may not be known to the controller yet."""
LOOK_AGAIN_S = 0.5
"""The first pause; each next one is twice as long."""


class EndedJobs:
    """Works off the records that epilogs leave behind, in a thread of its own that ends when there are none."""

    def __init__(self, config: Config, client: SlurmClient, own_name: Callable[[], str]) -> None:
        self._config, self._client, self._own_name = config, client, own_name
        self._thread: Optional[threading.Thread] = None

    def reconfigure(self, config: Config) -> None:
        """New settings, read at SIGHUP."""
        self._config = config

    def look(self) -> None:
        """After an epilog has asked for a refresh. Never waits."""
        if self._thread is not None and self._thread.is_alive():
            return  # it takes what is new before it ends, or the next epilog's request does
        records = jobs.take_ended(self._config.node.state_dir)
        if records and self._config.enforcing(self._config.agent):
            self._thread = threading.Thread(target=self._work, args=(records,), name="output", daemon=True)
            self._thread.start()

    def _work(self, records: list[JobRecord]) -> None:
        while records:
            for record in records:
                try:
                    said = say_what_it_said(self._config, self._client, record, self._own_name())
                except AistationError as exc:
                    said = f"what its output says could not be noted: {exc}"
                except Exception:
                    log.exception("job %d: its output could not be judged", record.job_id)
                    continue
                if said:
                    log.info("job %d: %s", record.job_id, said)
            records = jobs.take_ended(self._config.node.state_dir)


def say_what_it_said(config: Config, client: SlurmClient, record: JobRecord, own_name: str) -> str:
    """A line for the log, "" where there is nothing to say. Raises SlurmUnavailable and SlurmRefused."""
    if not record.opted_in or record.uid <= 0 or not own_name:
        return ""
    watched = _ended(config, record, own_name)
    if watched is None:
        return ""
    text, error = read_ends(watched.outputs, record.uid)
    if error:
        return f"its output could not be read: {error}"
    verdict = judge_output(text)
    if not verdict.kind:
        return ""
    job = watched.job
    # the gate, which may be refusing the node's next job this moment, writes to the same field
    with DrainLock(config.node.state_dir, LOCK_WAIT_S) as held:
        if not held:
            raise SlurmUnavailable(f"the node's Comment is being changed for more than {LOCK_WAIT_S:g} s")
        present = next((node.comment for node in client.nodes([own_name]) if node.name == own_name), None)
        if present is None or "\ufffd" in present:
            return "what its output says is not noted: the node's Comment could not be written back as it was"
        noted = tags.comment_with_said(present, job.job_id, job.restart_cnt, verdict.kind, verdict.rank)
        client.update_node(own_name, Comment=noted)
    return f"its output tells of {_words(verdict)}"


def _ended(config: Config, record: JobRecord, own_name: str) -> Optional[WatchedJob]:
    """The job where this attempt of it has failed; None for one that did not, that runs again, or on all nodes but its first.

    Those ask once: a thousand nodes that wait for their job's end would all ask the one controller.
    """
    deadline = time.monotonic() + SETTLED_S
    pause = LOOK_AGAIN_S
    while True:
        watched = show_job(config.slurm, record.job_id)
        if watched is None or watched.job.restart_cnt != record.restart_count:
            return None
        if watched.job.nodes[:1] != (own_name,):
            return None
        failed = watched.job.state == "FAILED" or bool(watched.job.exit_code or watched.job.exit_signal)
        if not watched.job.completing or time.monotonic() > deadline:
            return watched if failed and watched.job.finished else None
        time.sleep(pause)
        pause *= 2


def _words(verdict: OutputVerdict) -> str:
    rank = "" if verdict.rank is None else f", first in rank {verdict.rank}"
    return f"{verdict.kind}{rank}: {verdict.line}"


def read_ends(paths: Sequence[str], uid: int, deadline_s: float = DEADLINE_S) -> tuple[str, str]:
    """The ends of these files as the user reads them, in order, and an error in words where that took too long or failed."""

    def body(step: Step) -> dict[str, Any]:
        step(f"finding the groups of uid {uid}")
        entry = pwd.getpwuid(uid)
        Credentials(uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))).become()
        parts = []
        for path in paths:
            step(f"reading {path}")
            parts.append(_end_of(path) or "")
        return {"text": "\n".join(parts)}

    result = run_child(body, deadline_s)
    return ("", result.error or "no answer") if result.value is None else (str(result.value["text"]), "")


def _end_of(path: str) -> Optional[str]:
    """The last 256 KiB of a regular file; None for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
