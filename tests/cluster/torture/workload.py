"""The jobs of the torture, and the ledger that their attempts write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.cluster.torture.site import Site

LEDGERS = "ledger"
BROKEN = "broken"
"""Folders below /shared: one ledger a job; a file ``<node>.<gpu>`` while that GPU does not work."""

_BATCH = """#!/bin/bash
say() {{ printf '%s %s %s %s\\n' "$EPOCHREALTIME" "${{SLURM_RESTART_COUNT:-0}}" "$1" "$2" >>/shared/ledger/$SLURM_JOB_ID; }}
say start "$SLURM_JOB_NODELIST"
for again in 1 2 3 4 5 6 7 8; do  # srun gives up where slurmctld is away, before any task has begun
    srun --kill-on-bad-exit=1 /shared/ledger/task {steps} {fail_at} {crashes}
    code=$?
    [ $code = 0 ] && break
    grep -q " ${{SLURM_RESTART_COUNT:-0}} task " /shared/ledger/$SLURM_JOB_ID && break
    say nostep "srun ended with $code"
    sleep 1
done
say end $code
exit $code
"""

_TASK = """#!/bin/bash
# task STEPS FAIL_AT CRASHES: a training that saves each second, as checkpoints of the Hugging Face form
say() { printf '%s %s %s %s\\n' "$EPOCHREALTIME" "${SLURM_RESTART_COUNT:-0}" "$1" "$2" >>/shared/ledger/$SLURM_JOB_ID; }
step=${AISTATION_RESUME_STEP:-0}
gpus=${SLURM_STEP_GPUS:-$CUDA_VISIBLE_DEVICES}
say task "$SLURMD_NODENAME gpus=$gpus from=$step"
while [ "$step" -lt "$1" ]; do
    sleep 1
    step=$((step + 1))
    if [ "$3" = 1 ]; then
        for gpu in ${gpus//,/ }; do
            [ -e "/shared/broken/$SLURMD_NODENAME.$gpu" ] && say broken "$SLURMD_NODENAME gpu=$gpu" && exit 1
        done
    fi
    say beat "$SLURMD_NODENAME step=$step"
    if [ "$SLURM_PROCID" = 0 ] && [ -n "$AISTATION_CKPT_DIR" ]; then
        new=$AISTATION_CKPT_DIR/tmp-checkpoint-$step
        mkdir -p "$new"
        printf '{"global_step": %s, "max_steps": %s, "log_history": []}' "$step" "$1" >"$new/trainer_state.json"
        cp /shared/ledger/model.safetensors "$new/model.safetensors"
        mv -T "$new" "$AISTATION_CKPT_DIR/checkpoint-$step" 2>/dev/null && say saved "step=$step"
    fi
    [ "$step" = "$2" ] && say fails "step=$step" && exit 1
done
exit 0
"""


@dataclass(frozen=True)
class Plan:
    """One job. fail_at: the step after which it fails by itself, 0: never. crashes: it ends when a GPU of its own breaks.

    max_restarts: 0 leaves it to the configuration.
    """

    opted_in: bool
    nodes: int
    gpus: int
    steps: int
    fail_at: int = 0
    crashes: bool = False
    saves: bool = False
    max_restarts: int = 0
    user: str = "alice"


@dataclass(frozen=True)
class Line:
    """One line of a ledger. time: unix seconds as the node has it."""

    time: float
    attempt: int
    what: str
    text: str


def draw(rng: Random, gpus: int) -> Plan:
    """A random small job."""
    steps = rng.randint(4, 14)
    return Plan(
        opted_in=rng.random() < 0.8,
        nodes=rng.choice((1, 2, 2)),
        gpus=rng.choice((gpus, gpus, gpus // 2)),
        steps=steps,
        fail_at=rng.randint(1, steps) if rng.random() < 0.1 else 0,
        crashes=rng.random() < 0.5,
        saves=rng.random() < 0.5,
        max_restarts=rng.choice((0, 0, 0, 0, 1)),
        user=rng.choice(("alice", "bob")),
    )


def prepare(site: Site) -> None:
    """Put the task and its folders on /shared."""
    for name in (LEDGERS, BROKEN):
        folder = site.dir / "shared" / name
        folder.mkdir()
        folder.chmod(0o1777)
    task = site.dir / "shared" / LEDGERS / "task"
    task.write_text(_TASK, encoding="utf-8")
    task.chmod(0o755)
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    weights = len(header).to_bytes(8, "little") + header + b"\0\0\0\0"
    (site.dir / "shared" / LEDGERS / "model.safetensors").write_bytes(weights)


def submit(site: Site, plan: Plan, number: int) -> int:
    """sbatch it; the job id. Raises ClusterError where the controller is away."""
    options = [f"--nodes={plan.nodes}", "--ntasks-per-node=1", f"--gpus-per-node={plan.gpus}", "--open-mode=append"]
    options += [f"--output=/shared/{plan.user}/out-%j", f"--job-name=t{number}"]
    if plan.opted_in:
        options.append("--ais-resume=hf")
        if plan.saves:
            options.append(f"--ais-ckpt-dir=/shared/{plan.user}/ckpt-{number}")
        if plan.max_restarts:
            options.append(f"--ais-max-restarts={plan.max_restarts}")
    script = _BATCH.format(steps=plan.steps, fail_at=plan.fail_at, crashes=int(plan.crashes))
    return site.submit(script, *options, user=plan.user)


def read_ledger(site: Site, job_id: int) -> list[Line]:
    """In the order in which the lines were written, over all nodes: the file is the same for all of them."""
    path: Path = site.dir / "shared" / LEDGERS / str(job_id)
    if not path.exists():
        return []
    return parse_ledger(path.read_text(encoding="utf-8", errors="replace").splitlines())


def parse_ledger(lines: Sequence[str]) -> list[Line]:
    found = []
    for line in lines:
        time, attempt, what, text = [*line.split(" ", 3), "", "", ""][:4]
        found.append(Line(float(time), int(attempt), what, text))
    return found
