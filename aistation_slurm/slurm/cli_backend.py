"""Slurm through its own commands: ``squeue --json``, ``sinfo --json`` or ``scontrol show node``, ``scontrol``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.slurm import decode, hostlist
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.command import run

__all__ = ["CliBackend"]

_GONE = ("Invalid job id", "Invalid job array specification")


class CliBackend:
    """One object per process; keeps nothing between calls but the cluster's name."""

    def __init__(self, settings: Slurm) -> None:
        self._settings = settings
        self._cluster = ""

    def _run(self, command: str, *arguments: str) -> str:
        path = str(Path(self._settings.bin_dir) / command)
        return run([path, *arguments], timeout_s=self._settings.timeout_s, conf=self._settings.conf)

    # ---- reading

    def jobs(self) -> list[Job]:
        """One RPC. Every state: a job that failed a minute ago is as interesting as one that runs."""
        return decode.jobs_from_json(self._run("squeue", "--all", "--states=all", "--json"))

    def job(self, job_id: int) -> Optional[Job]:
        """One RPC more than :meth:`jobs`, for what JSON of 22.05 lacks: whether the job may be requeued."""
        found = next((job for job in self.jobs() if job.job_id == job_id), None)
        if found is None or found.requeue is not None:
            return found
        try:
            fields = decode.record_fields(self._run("scontrol", "show", "job", str(job_id)))
        except SlurmRefused as exc:
            if any(text in str(exc) for text in _GONE):
                return None
            raise
        return replace(
            found,
            requeue=fields.get("Requeue") == "1",
            batch=fields.get("BatchFlag") != "0",
            reason=fields.get("Reason", found.reason),
        )

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """``sinfo --json`` for all (one RPC); ``scontrol show node`` for a few, which any version prints."""
        if not names:
            return decode.nodes_from_json(self._run("sinfo", "--all", "--json"))
        text = self._run("scontrol", "show", "node", hostlist.fold(names))
        records = [r for r in re.split(r"\n\s*\n", text) if r.strip()]
        found = [decode.node_from_text(r) for r in records if "NodeName=" in r]
        if not found:
            raise SlurmUnavailable(f"scontrol show node {hostlist.fold(names)} printed no node")
        return found

    def cluster_name(self) -> str:
        if not self._cluster:
            text = self._run("scontrol", "show", "config")
            match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
            self._cluster = match.group(1) if match else "unknown"
        return self._cluster

    # ---- changing

    def drain(self, node: str, reason: str) -> None:
        self._run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        self._run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def requeue(self, job: Job) -> None:
        self._run("scontrol", "requeue", job.argument)

    def release(self, job: Job) -> None:
        self._run("scontrol", "release", job.argument)

    def hold(self, job: Job) -> None:
        self._run("scontrol", "hold", job.argument)

    def update_job(self, job: Job, **fields: str) -> None:
        self._run("scontrol", "update", f"JobId={job.argument}", *(f"{key}={value}" for key, value in fields.items()))
