"""After a job: end its orphan GPU processes, see that its GPUs are free, have the node's state read anew.

Two halves. :func:`main` is what ``epilog/aistation-epilog`` calls: standard library only, bounded, always exit 0, since
any other code drains the node with "Epilog error". Where the user still has processes, or no agent runs, it starts
node/clean.py in the full interpreter.
No question to the controller is asked: which jobs are here is seen on the node itself (shared/cases/114).
"""

from __future__ import annotations

import os

from aistation_slurm.errors import StateFileError
from aistation_slurm.node import bounded, jobs, nodelog, state
from aistation_slurm.node.gate_job import GateJob, number
from aistation_slurm.node.lock import agent_is_running
from aistation_slurm.node.user_processes import has_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["main"]

BUDGET_S = 25.0
"""All of it: NVML twice, the grace between the signals, the checks. The node stays COMPLETING that long at most."""
STATE_DIR = "/run/aistation"
PASSED_ON = (
    "AISTATION_CONFIG",
    "SLURMD_NODENAME",
    "SLURM_CONF",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_ID",
    "SLURM_JOB_UID",
)


def main(prefix: str, env: Mapping[str, str] = os.environ) -> int:
    """The epilog; always 0."""
    state_dir = env.get("AISTATION_STATE_DIR") or STATE_DIR
    try:
        for line in _clean(prefix, env, state_dir):
            nodelog.say("epilog", line, state_dir)
    except Exception as exc:
        nodelog.say("epilog", f"internal error: {type(exc).__name__}: {exc}", state_dir)
    return 0


def _clean(prefix: str, env: Mapping[str, str], state_dir: str) -> list[str]:
    """What is to be said."""
    job = GateJob(env)
    if not job.job_id:
        return ["no usable SLURM_JOB_ID: this is for Slurm's Epilog=; nothing is done"]
    record = jobs.read(state_dir, int(job.job_id))
    has_agent = agent_is_running(state_dir)
    if not job.gpus and not (record is not None and record.gpus):
        jobs.finish(state_dir, int(job.job_id), has_agent)
        return []
    uid = number(env.get("SLURM_JOB_UID", ""), -1)
    if uid > 0 and has_agent and not has_processes(uid):
        # nothing can be an orphan; the agent looks at the GPUs at once. A slow epilog delays the requeue of its job
        jobs.finish(state_dir, int(job.job_id), has_agent)
        state.write_file(f"{state_dir}/refresh", b"")
        return []
    python = _interpreter(prefix, state_dir)
    if not python:
        return [f"no interpreter of the suite below {prefix}; run `make setup` there"]
    child_env = dict(bounded.PLAIN_ENV)
    child_env.update({name: env[name] for name in PASSED_ON if name in env})
    child_env["PYTHONPATH"] = prefix
    outcome = bounded.run([python, "-s", "-m", "aistation_slurm.node.clean"], BUDGET_S, child_env)
    said = [f"job {job.job_id}: {line}" for line in outcome.output.splitlines()]
    if outcome.code is None:
        said.append(f"job {job.job_id}: not finished after {BUDGET_S:g} s; the agent goes on watching")
    return said


def _interpreter(prefix: str, state_dir: str) -> str:
    """The full interpreter: where the last state file says, else beside the installation."""
    candidates = [f"{prefix}/.venv/bin/python", f"{prefix}/bin/python"]
    try:
        candidates.insert(0, state.read(f"{state_dir}/state").python)
    except StateFileError:
        pass
    return next((path for path in candidates if path and os.access(path, os.X_OK)), "")
