"""What Slurm says of one job that is watched for hangs: asked at its start and once more on suspicion, never in between.

``scontrol show job N`` is one RPC about one job in every version, where ``squeue --json`` up to 23.11 prints all jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.slurm import command, record, tags
from aistation_slurm.slurm.client import Job

__all__ = ["Runner", "WatchedJob", "show_job"]

Runner = Callable[..., str]
"""Signature of :func:`aistation_slurm.slurm.command.run`."""


@dataclass(frozen=True)
class WatchedJob:
    """Paths and names are only ever used as the user, who may have forged them. hang_min: None without a tag of job_submit's."""

    job: Job
    outputs: tuple[str, ...]
    work_dir: str
    batch_host: str
    hang_min: Optional[int]

    def runs_as(self, before: WatchedJob) -> bool:
        """Whether the attempt that ``before`` saw still runs."""
        return self.running and self.job.start_time == before.job.start_time

    @property
    def running(self) -> bool:
        """It runs, and is neither suspended nor about to end."""
        return self.job.state == "RUNNING" and not self.job.completing and self.job.start_time is not None


def show_job(settings: Slurm, job_id: int, runner: Runner = command.run) -> Optional[WatchedJob]:
    """None where Slurm does not know it. Raises SlurmUnavailable and SlurmRefused."""
    argv = [str(Path(settings.bin_dir) / "scontrol"), "show", "job", str(job_id)]
    try:
        text = runner(argv, timeout_s=settings.timeout_s, conf=settings.conf)
    except SlurmRefused as exc:
        if "Invalid job id" in str(exc):
            return None
        raise
    job = next((found for found in record.jobs_from_text(text) if found.job_id == job_id), None)
    if job is None:
        return None
    fields = record.record_fields(text)
    tag = tags.read_tag(job.admin_comment)
    hang = tag.get("hang", "0")
    paths = (fields.get(key, "") for key in ("StdOut", "StdErr"))
    return WatchedJob(
        job=job,
        outputs=tuple(dict.fromkeys(path for path in paths if path.startswith("/"))),
        work_dir=fields.get("WorkDir", ""),
        batch_host=fields.get("BatchHost", ""),
        hang_min=(int(hang) if hang.isdigit() else 0) if tags.managed(job.admin_comment) else None,
    )
