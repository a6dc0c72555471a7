"""The same stacks from the other nodes of a hung job: a short step in the job itself, started as its user.

Slurm lets only the job's own user add a step (root gets "Access/permission denied", 22.05), so nothing but what the user
could read there is read. ``--overlap`` shares the job's resources; a node that does not answer is named by srun, and costs
no more than the deadline.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from aistation_slurm.config import Hang, Slurm
from aistation_slurm.node import bounded
from aistation_slurm.node.hang_processes import job_processes
from aistation_slurm.node.hang_stacks import MAX_DUMPS, MAX_PROCESSES, dump, find_py_spy, kernel_facts
from aistation_slurm.probes.host import node_name

__all__ = ["ask_others", "grouped", "srun_argv"]

MAX_TEXT = 900_000
MIN_NODE_TEXT = 2000
LAUNCH_S = 10
PACKAGE = Path(__file__).resolve().parents[2]


def srun_argv(slurm: Slurm, hang: Hang, job_id: int, node: str, others: int, seconds: float) -> list[str]:
    """One task on each of the job's ``others`` nodes besides ``node``; its output labelled by task."""
    py_spy = [hang.py_spy] if hang.py_spy else []
    # fmt: off
    return [
        str(Path(slurm.bin_dir) / "srun"), f"--jobid={job_id}", "--overlap", f"--exclude={node}",
        f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1", f"--immediate={LAUNCH_S}",
        f"--time={int(seconds // 60) + 1}", "--job-name=aistation-hang", "--chdir=/", "--input=none", "--label",
        "--mpi=none", "--kill-on-bad-exit=0", "--quiet",
        sys.executable, "-s", "-m", "aistation_slurm.node.hang_nodes",
        str(job_id), str(max(MAX_TEXT // others, MIN_NODE_TEXT)), f"{seconds:.0f}", *py_spy,
    ]
    # fmt: on


def ask_others(slurm: Slurm, hang: Hang, job_id: int, node: str, others: int, seconds: float) -> str:
    """What they answer within ``seconds``, one after the other. For a child that has become the user."""
    environment = {**bounded.PLAIN_ENV, "PYTHONPATH": str(PACKAGE)}
    conf = slurm.conf or os.environ.get("SLURM_CONF", "")
    if conf:
        environment["SLURM_CONF"] = conf
    outcome = bounded.run(srun_argv(slurm, hang, job_id, node, others, seconds - 3.0), seconds, environment)
    late = f"\nsrun did not finish within {seconds:.0f} s\n" if outcome.code is None else ""
    return grouped(outcome.output) + late


def grouped(text: str) -> str:
    """``srun --label`` mixes the tasks' lines (``3: text``): put each task's together, srun's own words first.

    >>> grouped("1: b\\n0: a\\nsrun: error: gpu9\\n1: c\\n")
    'srun: error: gpu9\\na\\nb\\nc\\n'
    """
    tasks: dict[int, list[str]] = {}
    for line in text.splitlines():
        label, colon, rest = line.partition(":")
        known = bool(colon) and label.strip().isdigit()
        tasks.setdefault(int(label) if known else -1, []).append(rest[1:] if known else line)
    return "".join(f"{line}\n" for _, lines in sorted(tasks.items()) for line in lines)


def main(arguments: Sequence[str]) -> int:
    """On the other node: ``JOBID BYTES SECONDS [PY_SPY]``. Prints Python stacks first, since the text is cut to BYTES."""
    job_id, limit, seconds = int(arguments[0]), int(arguments[1]), float(arguments[2])
    deadline = time.monotonic() + seconds
    own = {os.getpid(), os.getppid()}
    found = job_processes().get(job_id)
    processes = [process for process in found.all if process.pid not in own] if found else []
    py_spy = find_py_spy(Hang(py_spy=arguments[3] if len(arguments) > 3 else ""))
    parts = [f"==== {node_name()}\n"]
    if not processes:
        parts.append(
            "No process of the job is to be seen here; /proc may hide root's (hidepid), and with them which they are.\n"
        )
    for process in [p for p in processes if p.python][:MAX_DUMPS] if py_spy else ():
        parts.append(dump(py_spy, process, deadline))
    parts += [kernel_facts(process) for process in processes[:MAX_PROCESSES]]
    print("\n".join(parts)[:limit])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
