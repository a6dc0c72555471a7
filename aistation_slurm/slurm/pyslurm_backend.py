"""Slurm through pyslurm 25.11: the looks, without starting a command for each; every change goes through scontrol.

Changes do not go through pyslurm because 25.11.2 cannot make all of them: ``Job.hold(mode="user")`` writes through a null
pointer, a text or a node list cannot be emptied, a node's reason gets no user, and ids are plain numbers.

pyslurm runs in a child (pyslurm_worker.py) with a deadline, and only where it fits: importable, a readable slurm.conf
(without one Slurm's library ends the process that imports it), and of the release of the Slurm that answers.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Optional

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm import decode
from aistation_slurm.slurm.cli_backend import CliBackend
from aistation_slurm.slurm.client import Job, Node

__all__ = ["PyslurmBackend", "installed", "readable_conf"]

log = logging.getLogger(__name__)

CONF_PATHS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Slurm's default, and where slurmd keeps the one that a configless controller sent."""
WORKER = (sys.executable, "-m", "aistation_slurm.slurm.pyslurm_worker")
KILL_WAIT_S = 2.0


class _Unfit(Exception):
    """pyslurm cannot be used here; says why."""


def installed() -> bool:
    """True where pyslurm is installed. Does not import it."""
    return importlib.util.find_spec("pyslurm") is not None


def readable_conf(settings: Slurm) -> str:
    """The slurm.conf that Slurm's library would read; empty where it would find none."""
    named = settings.conf or os.environ.get("SLURM_CONF", "")
    return next((path for path in ([named] if named else CONF_PATHS) if os.access(path, os.R_OK)), "")


class PyslurmBackend(CliBackend):
    """Looks through pyslurm, changes as :class:`CliBackend` makes them.

    With ``required`` false (``slurm.backend = auto``) and pyslurm unfit, everything goes through the commands, and the log
    says why, once. A controller that is away is SlurmUnavailable in either case.
    """

    def __init__(self, settings: Slurm, required: bool, worker: Sequence[str] = WORKER) -> None:
        """Makes no request and starts nothing. worker: the command line of pyslurm_worker."""
        super().__init__(settings)
        self._required, self._worker = required, list(worker)
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._unfit = ""

    def jobs(self) -> list[Job]:
        """One RPC."""
        text = self._ask({"call": "jobs"})
        return super().jobs() if text is None else self._reader.jobs(text, "pyslurm")

    def job(self, job_id: int) -> Optional[Job]:
        """Two RPCs (pyslurm loads the steps too)."""
        text = self._ask({"call": "job", "id": job_id})
        if text is None:
            return super().job(job_id)
        rows = decode.jobs_from_json(text, "pyslurm")
        if rows and rows[0].job_id != job_id:
            # of an array's first id Slurm sends every task, and pyslurm takes the first of them
            return next((job for job in self.jobs() if job.job_id == job_id), None)
        return rows[0] if rows else None

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """Two RPCs. A few nodes by name through scontrol, which asks for those alone."""
        text = None if names else self._ask({"call": "nodes"})
        return super().nodes(names) if text is None else self._reader.nodes(text, "pyslurm")

    def close(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # words that the child did not take any more
        try:
            process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            pass

    # ---- the child

    def _ask(self, request: dict[str, Any]) -> Optional[bytearray]:
        """The child's answer; None where the commands are to be asked instead. Raises SlurmUnavailable."""
        if self._unfit and not self._required:
            return None
        try:
            if self._process is None:
                self._start()
            return self._exchange(request)
        except _Unfit as exc:
            self.close()
            if self._required:
                raise SlurmUnavailable(f"slurm.backend = pyslurm: {exc}; set it to auto or cli") from exc
            self._unfit = str(exc)
            log.info("pyslurm is not used: %s", exc)
            return None
        except SlurmUnavailable:
            self.close()
            raise

    def _start(self) -> None:
        """Start the child and see that it fits the Slurm that answers."""
        if not installed():
            raise _Unfit("pyslurm is not installed")
        conf = readable_conf(self._settings)
        if not conf:
            raise _Unfit("no readable slurm.conf, without which Slurm's library ends the process that loads it")
        try:
            self._process = subprocess.Popen(
                self._worker,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "SLURM_CONF": conf},
                start_new_session=True,
            )
        except OSError as exc:
            raise _Unfit(f"{self._worker[0]} cannot be started: {exc.strerror}") from exc
        try:
            hello = json.loads(self._exchange({"call": "hello"}))
        except EOFError:
            raise _Unfit("pyslurm cannot be imported here (try: python3 -c 'import pyslurm')") from None
        except ValueError as exc:
            raise _Unfit(f"the pyslurm child answered what is no JSON: {exc}") from exc
        if hello.get("errors"):
            raise SlurmUnavailable(f"pyslurm: {hello['errors'][0].get('description')}; is slurmctld running?")
        ours, theirs = _release(hello.get("pyslurm")), _release(hello.get("slurm"))
        if not ours or ours != theirs:
            raise _Unfit(f"pyslurm is of Slurm {ours or '?'} and slurmctld of {theirs or '?'}")

    def _exchange(self, request: dict[str, Any]) -> bytearray:
        """One line there and one back, within the deadline. Raises SlurmUnavailable; EOFError for a child that ended first."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._settings.timeout_s
        found = bytearray()
        fd = self._process.stdout.fileno()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            while not found.endswith(b"\n"):
                if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise SlurmUnavailable(f"pyslurm did not answer within {self._settings.timeout_s:g} s")
                data = os.read(fd, 1 << 18)
                if not data:
                    raise EOFError
                found += data
        except (EOFError, BrokenPipeError):
            if request["call"] == "hello":
                raise EOFError from None
            raise SlurmUnavailable("the process that runs pyslurm ended; the next look starts it again") from None
        return found


def _release(version: Any) -> str:
    """``25.11.2`` -> ``25.11``; empty for what is no version."""
    parts = str(version or "").split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and all(part.isdigit() for part in parts[:2]) else ""
