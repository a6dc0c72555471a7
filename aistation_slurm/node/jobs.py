"""Job records ``<state_dir>/jobs/<job id>``: what the gate saw of a job that it let start, for agent and epilog.

Text lines ``key=value``, 0600 root in a 0700 folder. They tell the agent which jobs opted in (``resume``) and which GPUs
they hold, and the epilog which other jobs may own a process. The epilog removes them; a new boot has none (/run).
"""

from __future__ import annotations

import os

from aistation_slurm.node.gate_job import GateJob, indices, number
from aistation_slurm.node.state import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Optional

__all__ = ["JobRecord", "finish", "from_environment", "read", "read_all", "remove", "take_ended", "write"]

FRAMEWORKS = ("auto", "megatron", "deepspeed", "hf", "lightning", "dcp", "nemo")
MAX_HANG_MIN = 10080
ENDED = ".ended"


class JobRecord:
    """``uid`` -1: not known. ``gpus``: gres indices. ``resume``: framework, or "" for a job that did not opt in.

    ``hang``: minutes of --ais-hang-timeout, 0 for none. ``ckpt_dir``: the user's own words, for the user's eyes only.
    """

    __slots__ = ("ckpt_dir", "gpus", "hang", "job_id", "restart_count", "resume", "time", "uid")

    def __init__(
        self,
        job_id: int,
        uid: int,
        restart_count: int,
        gpus: frozenset[int],
        resume: str,
        time: float,
        hang: int = 0,
        ckpt_dir: str = "",
    ) -> None:
        self.job_id = job_id
        self.uid = uid
        self.restart_count = restart_count
        self.gpus = gpus
        self.resume = resume
        self.time = time
        self.hang = hang
        self.ckpt_dir = ckpt_dir

    @property
    def opted_in(self) -> bool:
        return bool(self.resume)


def from_environment(env: Mapping[str, str], now: float) -> JobRecord:
    """From the environment of Slurm's Prolog or Epilog. An unknown framework name is not an opt-in."""
    job = GateJob(env)
    resume = env.get("SPANK_AISTATION_RESUME", "")
    return JobRecord(
        job_id=number(job.job_id, 0),
        uid=number(env.get("SLURM_JOB_UID", ""), -1),
        restart_count=number(env.get("SLURM_JOB_RESTART_COUNT", ""), 0),
        gpus=job.gpus,
        resume=resume if resume in FRAMEWORKS else "",
        time=now,
        hang=_minutes(env.get("SPANK_AISTATION_HANG_TIMEOUT", "")),
        ckpt_dir=_path(env.get("SPANK_AISTATION_CKPT_DIR", "")),
    )


def _minutes(text: str) -> int:
    """As the SPANK option takes them; 0 for anything else."""
    found = number(text, 0)
    return found if found <= MAX_HANG_MIN else 0


def _path(text: str) -> str:
    """An absolute path on one line; "" for anything else."""
    return text if text.startswith("/") and len(text) <= 4096 and min(text) >= " " else ""


def write(state_dir: str, record: JobRecord) -> None:
    """Replace the record of this job. Raises OSError."""
    folder = f"{state_dir}/jobs"
    if not os.path.isdir(folder):
        os.makedirs(state_dir, mode=0o755, exist_ok=True)
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
    gpus = ",".join(str(i) for i in sorted(record.gpus))
    text = (
        f"job={record.job_id}\nuid={record.uid}\nrestart_count={record.restart_count}\ngpus={gpus}\n"
        f"resume={record.resume}\ntime={record.time:.3f}\nhang={record.hang}\nckpt_dir={record.ckpt_dir}\n"
    )
    write_file(f"{folder}/{record.job_id}", text.encode("utf-8", "surrogateescape"), 0o600)


def read(state_dir: str, job_id: int) -> Optional[JobRecord]:
    """The record of one job; None where there is none or it is damaged."""
    return _read(f"{state_dir}/jobs/{job_id}")


def _read(path: str) -> Optional[JobRecord]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            # only "\n" ends a line: the path may hold what else Python takes for a line's end
            fields = dict(line.split("=", 1) for line in file.read(32768).split("\n") if line)
        return JobRecord(
            job_id=int(fields["job"]),
            uid=int(fields["uid"]),
            restart_count=int(fields["restart_count"]),
            gpus=indices(fields["gpus"]),
            resume=fields["resume"] if fields["resume"] in FRAMEWORKS else "",
            time=float(fields["time"]),
            hang=_minutes(fields.get("hang", "")),
            ckpt_dir=_path(fields.get("ckpt_dir", "")),
        )
    except (OSError, ValueError, KeyError):
        return None


def read_all(state_dir: str) -> dict[int, JobRecord]:
    """Every readable record by job id."""
    try:
        names = os.listdir(f"{state_dir}/jobs")
    except OSError:
        return {}
    found = (read(state_dir, int(name)) for name in names if name.isdigit())
    return {record.job_id: record for record in found if record is not None}


def finish(state_dir: str, job_id: int, to_agent: bool) -> None:
    """The job has ended here. to_agent: one runs, and asks for the end of an opted-in job's output (node/job_output.py)."""
    record = read(state_dir, job_id) if to_agent else None
    if record is None or not record.opted_in:
        remove(state_dir, job_id)
        return
    path = f"{state_dir}/jobs/{job_id}"
    try:
        os.rename(path, path + ENDED)
    except OSError:
        pass


def take_ended(state_dir: str) -> list[JobRecord]:
    """The records that epilogs left to the agent, each once."""
    folder = f"{state_dir}/jobs"
    try:
        names = [name for name in os.listdir(folder) if name.endswith(ENDED) and name[: -len(ENDED)].isdigit()]
    except OSError:
        return []
    found = []
    for name in names:
        record = _read(f"{folder}/{name}")
        try:
            os.unlink(f"{folder}/{name}")
        except OSError:
            continue
        if record is not None:
            found.append(record)
    return found


def remove(state_dir: str, job_id: int) -> None:
    """Forget a job; no error where there is no record."""
    try:
        os.unlink(f"{state_dir}/jobs/{job_id}")
    except OSError:
        pass
