"""Slurm through its own commands. JSON where the installed command prints it, ``scontrol show`` text elsewhere.

Which form a command has is found out once per process and kept: ``scontrol --json`` came with 23.02, ``sinfo --json``
lists nodes only up to 22.05, and either needs a plugin that a distribution may have left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional, Union

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.slurm import decode, hostlist, record
from aistation_slurm.slurm.client import Job, Node, Reservation
from aistation_slurm.slurm.command import run_raw
from aistation_slurm.slurm.states import UNKNOWN

__all__ = ["CliBackend", "Runner"]

log = logging.getLogger(__name__)

Runner = Callable[..., Union[str, memoryview]]
"""Signature of :func:`aistation_slurm.slurm.command.run_raw`, or of ``run``."""

_JOBS = ("squeue", "--all", "--local", "--states=all", "--json")
"""--local: in a federation, squeue else shows the other clusters' jobs, of which some have the same ids."""
MANY_ROWS = 200
"""More rows than this in the answer to one id (an array's tasks apart): the id is ignored, and the whole list is dear."""
_GONE = ("Invalid job id", "Invalid job array specification")
_NO_JSON = ("unrecognized option", "Unable to find plugin", "invalid option", "serializer/json", "and no message")
_NO_JOBS = ("No jobs in the system", "slurm_load_jobs error: Invalid job id specified")


class CliBackend:
    """One object per process; keeps the cluster's name, the forms that work, and the last records, to share what is the same."""

    def __init__(self, settings: Slurm, runner: Runner = run_raw) -> None:
        """runner: starts one command; replaced in tests by one that answers with recorded text."""
        self._settings = settings
        self._runner = runner
        self._reader = decode.Reader()
        self._cluster = ""
        self._jobs_as_text = False
        self._job_as_text = False
        self._node_form = 0

    def _run(self, command: str, *arguments: str) -> str:
        out = self._run_raw(command, *arguments)
        return out if isinstance(out, str) else str(out, "utf-8", "replace")

    def _run_raw(self, command: str, *arguments: str) -> Union[str, memoryview]:
        path = str(Path(self._settings.bin_dir) / command)
        return self._runner([path, *arguments], timeout_s=self._settings.timeout_s, conf=self._settings.conf)

    # ---- reading

    def jobs(self) -> list[Job]:
        """One RPC. Every state: a job that failed a minute ago is as interesting as one that runs."""
        if not self._jobs_as_text:
            try:
                return self._reader.jobs(self._run_raw(*_JOBS))
            except (SlurmUnavailable, SlurmRefused) as exc:
                if not _lacks_json(exc):
                    raise
                log.warning("%s; reading scontrol's text instead", exc)
                self._jobs_as_text = True
        return self._jobs_of_text("scontrol", "show", "job", "--details")

    def _jobs_of_text(self, *command: str) -> list[Job]:
        try:
            text = self._run(*command)
        except SlurmRefused as exc:
            if any(said in str(exc) for said in _NO_JOBS + _GONE):
                return []
            raise
        found = record.jobs_from_text(text)
        if not found and "No jobs in the system" not in text:
            raise SlurmUnavailable(f"{' '.join(command)} printed no job and did not say that there is none")
        return found

    def job(self, job_id: int) -> Optional[Job]:
        """One RPC. Versions before 24.05 ignore the id with ``--json`` and print every job.

        Where those are many, scontrol is asked for the one; a text that is not believed sends the question back to JSON.
        """
        if self._jobs_as_text or self._job_as_text:
            job = _of(job_id, self._jobs_of_text("scontrol", "show", "job", str(job_id), "--details"))
            if self._jobs_as_text or job is None or job.state != UNKNOWN or job.flags:
                return job
        try:
            rows = decode.jobs_from_json(self._run_raw(*_JOBS, f"--jobs={job_id}"))
        except (SlurmUnavailable, SlurmRefused) as exc:
            if any(said in str(exc) for said in _GONE):
                return None
            if not _lacks_json(exc):
                raise
            self._jobs_as_text = True
            return self.job(job_id)
        self._job_as_text = len(rows) > MANY_ROWS
        return _of(job_id, rows)

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """All (one RPC), or those named, through ``scontrol show node``, which every version prints."""
        if names:
            return self._nodes_of_text(hostlist.fold(names))
        forms: list[Callable[[], list[Node]]] = [
            lambda: self._reader.nodes(self._run_raw("sinfo", "--all", "--json"), "sinfo --json"),
            lambda: self._reader.nodes(self._run_raw("scontrol", "show", "nodes", "--json"), "scontrol --json"),
            self._nodes_of_text,
        ]
        while True:
            try:
                return forms[self._node_form]()
            except (SlurmUnavailable, SlurmRefused) as exc:
                other = "printed no JSON with 'nodes'" in str(exc)  # sinfo since 23.11 prints partitions' rows
                if self._node_form + 1 == len(forms) or not (other or _lacks_json(exc)):
                    raise
                self._node_form += 1

    def _nodes_of_text(self, *names: str) -> list[Node]:
        found = record.nodes_from_text(self._run("scontrol", "show", "node", *names))
        if not found:
            raise SlurmUnavailable(f"scontrol show node {' '.join(names)} printed no node".replace("  ", " "))
        return found

    def cluster_name(self) -> str:
        """ClusterName, asked once."""
        if not self._cluster:
            text = self._run("scontrol", "show", "config")
            match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
            if match is None:
                raise SlurmUnavailable("scontrol show config printed no ClusterName")
            self._cluster = match.group(1)
        return self._cluster

    # ---- changing

    def drain(self, node: str, reason: str) -> None:
        """Two RPCs would be needed to look first; that is the caller's part (node/drain.py)."""
        self._run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def down(self, node: str, reason: str) -> None:
        """``State=DOWN``."""
        self._run("scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason={reason}")

    def update_node(self, node: str, **fields: str) -> None:
        """Reason alone is taken also of a drained node, whose state it leaves."""
        self._run("scontrol", "update", f"NodeName={node}", *(f"{key}={value}" for key, value in fields.items()))

    def resume(self, node: str) -> None:
        """Clears DRAIN and the reason."""
        self._run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def requeue(self, job: Job) -> None:
        """``scontrol requeue``; SlurmRefused "Job is pending execution" when it is in the queue already."""
        self._run("scontrol", "requeue", job.argument)

    def release(self, job: Job) -> None:
        """``scontrol release``."""
        self._run("scontrol", "release", job.argument)

    def hold(self, job: Job) -> None:
        """``scontrol uhold``: a hold that the job's owner may release."""
        self._run("scontrol", "uhold", job.argument)

    def update_job(self, job: Job, **fields: str) -> None:
        """``scontrol update JobId=``; one wrong field (an unknown node in ExcNodeList) fails all of them."""
        self._run("scontrol", "update", f"JobId={job.argument}", *(f"{key}={value}" for key, value in fields.items()))

    # ---- reservations

    def reservations(self) -> list[Reservation]:
        """One RPC; as text, which every version prints (JSON came with 23.02)."""
        text = self._run("scontrol", "show", "reservation")
        found = record.reservations_from_text(text)
        if not found and "No reservations in the system" not in text:
            raise SlurmUnavailable("scontrol show reservation printed none and did not say that there is none")
        return found

    def create_reservation(self, name: str, **fields: str) -> None:
        """``scontrol create reservation``."""
        words = (f"{key}={value}" for key, value in fields.items())
        self._run("scontrol", "create", "reservation", f"ReservationName={name}", "StartTime=now", *words)

    def update_reservation(self, name: str, **fields: str) -> None:
        """22.05 knows no ``Nodes-=``, and takes an empty ``Nodes=`` for "choose one yourself": refused here."""
        if fields.get("Nodes") == "":
            raise ValueError(f"reservation {name}: an empty node list would make Slurm choose nodes itself")
        self._run("scontrol", "update", f"ReservationName={name}", *(f"{k}={v}" for k, v in fields.items()))

    def delete_reservation(self, name: str) -> None:
        """``scontrol delete``."""
        self._run("scontrol", "delete", f"ReservationName={name}")


def _of(job_id: int, rows: list[Job]) -> Optional[Job]:
    return next((job for job in rows if job.job_id == job_id), None)


def _lacks_json(exc: Exception) -> bool:
    """The command has no JSON in this build; the controller is not at fault."""
    return any(text in str(exc) for text in _NO_JSON)
