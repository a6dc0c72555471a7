"""A GPU falls off the bus in the middle of a training job, on a real Slurm; watch what happens, in seconds.

    make demo             with AIStation
    make demo STOCK=1     stock Slurm, configured as a careful site would, without AIStation

Boots the test cluster (four nodes of eight GPUs, two leaf switches), submits examples/train/train.sbatch on two nodes,
injects the fault and prints a timeline. Writes demo-out/<mode>/ with the timeline (timeline.txt), the job's output, the
loss per step (loss.csv) and the picture (loss.png).
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from rich.console import Console  # noqa: E402

from tests.cluster import Cluster, gpu_lost  # noqa: E402

STOCK_PATIENCE_S = 130.0
"""Stock Slurm's requeue starts 121 s later: a job that is not back by now is not coming back by itself."""
STEPS, STEP_TIME_S, FAULT_STEP = 60, 0.25, 24


@dataclass
class Timeline:
    """What happened, in seconds from the fault (negative: before it)."""

    console: Console
    fault_time: Optional[float] = None
    lines: list[str] = field(default_factory=list)

    def say(self, what: str, detail: str = "", *, at: Optional[float] = None, style: str = "") -> None:
        now = at if at is not None else time.time()
        stamp = "" if self.fault_time is None else f"{now - self.fault_time:7.1f} s"
        line = f"{stamp:>10}  {what:<22} {detail}".rstrip()
        self.lines.append(line)
        self.console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def wait(predicate: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Poll ``predicate`` until it is true; raises TimeoutError that names what was waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = predicate()
        if found:
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")


def state_of(cluster: Cluster, job_id: int) -> tuple[str, str, int, str]:
    """State, nodes, restart count and reason of the job, from ``scontrol show job``."""
    job = cluster.show_job(job_id)
    return job["JobState"], job.get("NodeList") or "", int(job.get("Restarts") or 0), job.get("Reason") or ""


def output_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def steps_done(path: Path) -> int:
    """The last step that the training printed."""
    numbers = [line.split()[1].split("/")[0] for line in output_lines(path) if line.startswith("step ")]
    return int(numbers[-1]) if numbers else 0


def run(cluster: Cluster, timeline: Timeline, stock: bool, shared: Path) -> int:
    """Submit, break, watch. Returns the exit code of the demo."""
    out = shared / "demo.out"
    options = ["--nodes=2", "--output=/shared/alice/demo.out", "--open-mode=append"]
    if not stock:
        options += ["--ais-resume", "--ais-ckpt-dir=/shared/alice/run"]
    script = (REPO / "examples" / "train" / "train.sbatch").read_text()
    env = {
        "TRAIN_STEPS": str(STEPS),
        "TRAIN_STEP_TIME": str(STEP_TIME_S),
        "OUTPUT_DIR": "/shared/alice/run",
        # the training asks its GPUs at every step, as CUDA would, and hangs in its collective when one is gone
        "TRAIN_WATCH_GPUS": "nvml",
        "NVML_LIBRARY": "/run/aisim/libnvidia-ml.so.1",
    }
    job_id = cluster.submit(script, *options, user="alice", env=env)
    timeline.say("submitted", f"job {job_id}: sbatch {' '.join(options)} train.sbatch")
    wait(lambda: state_of(cluster, job_id)[0] == "RUNNING", 60, "job runs")
    nodes = state_of(cluster, job_id)[1]
    timeline.say("running", f"on {nodes}")
    wait(lambda: steps_done(out) >= FAULT_STEP, 120, f"training reaches step {FAULT_STEP}")
    victim = cluster.expand(nodes)[-1]
    newest = newest_checkpoint(shared / "run")
    timeline.say("training", f"step {steps_done(out)}/{STEPS}, newest checkpoint {newest}")

    timeline.fault_time = time.time()
    cluster.inject(victim, gpu_lost(3))
    timeline.say("FAULT", f"GPU 3 of {victim} falls off the bus (Xid 79)", at=timeline.fault_time, style="bold red")
    if stock:
        return watch_stock(cluster, timeline, job_id, out)
    return watch_recovery(cluster, timeline, job_id, victim, out)


def newest_checkpoint(directory: Path) -> str:
    steps = [int(p.name.rpartition("-")[2]) for p in directory.glob("checkpoint-*")]
    return f"checkpoint-{max(steps)}" if steps else "none"


def watch_stock(cluster: Cluster, timeline: Timeline, job_id: int, out: Path) -> int:
    """Stock Slurm: report what becomes of the job until it runs again or patience ends."""
    before, last_state = steps_done(out), "RUNNING"
    while time.time() - (timeline.fault_time or 0) < STOCK_PATIENCE_S:
        state, nodes, restarts, reason = state_of(cluster, job_id)
        if state != last_state:
            timeline.say(state.lower(), f"on {nodes or '-'} restarts={restarts} reason={reason}")
            last_state = state
        if state == "RUNNING" and restarts > 0:
            timeline.say("running again", f"on {nodes} {time.time() - (timeline.fault_time or 0):.1f} s")
            return 0
        time.sleep(1)
    state, nodes, restarts, _ = state_of(cluster, job_id)
    timeline.say(
        "not running again",
        f"after {STOCK_PATIENCE_S:.0f} s: job {state} on {nodes or '-'}, restarts={restarts}, "
        f"step {steps_done(out)} (was {before} at the fault); nobody drained the node, nobody requeued the job",
        style="bold",
    )
    return 0


def watch_recovery(cluster: Cluster, timeline: Timeline, job_id: int, victim: str, out: Path) -> int:
    """AIStation: print each stage as an outside observer sees it through Slurm's own commands."""
    reason = wait(lambda: drain_reason(cluster, victim), 60, f"{victim} is drained")
    timeline.say("detected and drained", f"{victim}: {reason}", style="yellow")
    wait(lambda: state_of(cluster, job_id)[2] >= 1, 60, "job is requeued")
    timeline.say("requeued", f"job {job_id}, restarts={state_of(cluster, job_id)[2]}")

    def again() -> str:
        state, nodes, restarts, _ = state_of(cluster, job_id)
        return nodes if state == "RUNNING" and restarts >= 1 else ""

    nodes = wait(again, 180, "job runs again")
    back = time.time() - (timeline.fault_time or 0)
    timeline.say("running again", f"on {nodes} {back:.1f} s", style="bold green")
    resumed = wait(lambda: [x for x in output_lines(out) if "resum" in x.lower()], 60, "training resumes")
    timeline.say("resumed", resumed[-1])
    wait(lambda: state_of(cluster, job_id)[0] not in ("RUNNING", "COMPLETING", "PENDING"), 180, "job ends")
    state = state_of(cluster, job_id)[0]
    timeline.say(state.lower(), f"step {steps_done(out)}/{STEPS}")
    problems = []
    if state != "COMPLETED":
        problems.append(f"job ended {state}, expected COMPLETED")
    if not reason.startswith("ais:gpu."):
        problems.append(f"drain reason {reason!r} does not begin ais:gpu.")
    if victim in cluster.expand(nodes):
        problems.append(f"job runs again on the faulty node {victim}")
    for problem in problems:
        timeline.say("PROBLEM", problem, style="bold red")
    return 1 if problems else 0


def drain_reason(cluster: Cluster, node: str) -> str:
    seen = cluster.node(node)
    return str(seen["reason"]) if "DRAIN" in seen["flags"] else ""


def read_losses(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as handle:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(handle)]


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """Loss over steps, one colour for each attempt, and the same over wall time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (by_step, by_time) = plt.subplots(1, 2, figsize=(11, 4))
    start = rows[0]["time"]
    for attempt in sorted({int(r["attempt"]) for r in rows}):
        mine = [r for r in rows if int(r["attempt"]) == attempt]
        label = f"attempt {attempt}: steps {int(mine[0]['step'])} to {int(mine[-1]['step'])}"
        by_step.plot([r["step"] for r in mine], [r["loss"] for r in mine], ".-", label=label)
        by_time.plot([r["time"] - start for r in mine], [r["loss"] for r in mine], ".-", label=label)
    by_step.set(xlabel="step", ylabel="loss", title="Loss continues from the checkpoint")
    by_time.set(xlabel="seconds since start", ylabel="loss", title="What the fault cost")
    by_step.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def sparkline(values: list[float], width: int = 60) -> str:
    """A curve in one line of text, so that the loss can be seen in a terminal."""
    bars = "▁▂▃▄▅▆▇█"
    step = max(1, len(values) // width)
    picked = values[::step]
    low, high = min(picked), max(picked)
    return "".join(bars[int((v - low) / ((high - low) or 1) * (len(bars) - 1))] for v in picked)


def show_losses(console: Console, source: Path, target: Path) -> None:
    if not source.exists():
        return
    shutil.copy(source, target / "loss.csv")
    rows = read_losses(target / "loss.csv")
    for attempt in sorted({int(r["attempt"]) for r in rows}):
        mine = [r for r in rows if int(r["attempt"]) == attempt]
        console.print(
            f"  loss, attempt {attempt}: {sparkline([r['loss'] for r in mine])}  "
            f"step {int(mine[0]['step'])}: {mine[0]['loss']:.4f} -> "
            f"step {int(mine[-1]['step'])}: {mine[-1]['loss']:.4f}",
            highlight=False,
            soft_wrap=True,
        )
    draw(rows, target / "loss.png")
    console.print(f"  picture: {target / 'loss.png'}", highlight=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", action="store_true", help="without AIStation: stock Slurm")
    parser.add_argument("--out", type=Path, default=REPO / "demo-out", help="where to write (default: demo-out/)")
    args = parser.parse_args()
    console = Console()
    target = args.out / ("stock" if args.stock else "aistation")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    timeline = Timeline(console)
    mode = "stock Slurm, without AIStation" if args.stock else "Slurm with AIStation"
    console.print(f"[bold]Demo: {mode}[/bold]", highlight=False)
    began = time.time()
    with console.status("booting the cluster: slurmctld, four slurmd, munge ..."):
        cluster = Cluster(nodes=4, aistation=not args.stock)
        cluster.start()
    try:
        timeline.say("cluster up", f"{', '.join(cluster.names)} in {time.time() - began:.1f} s")
        shared = cluster.dir / "shared" / "alice"
        try:
            code = run(cluster, timeline, args.stock, shared)
        except TimeoutError as exc:
            timeline.say("PROBLEM", str(exc), style="bold red")
            for name in ("watchdog", "slurmctld"):
                (target / f"{name}.log").write_text(cluster.logs(name))
            console.print(f"  logs: {target}", highlight=False)
            code = 1
        show_losses(console, shared / "run" / "loss.csv", target)
        if (shared / "demo.out").exists():
            shutil.copy(shared / "demo.out", target / "job.out")
        (target / "timeline.txt").write_text("\n".join(timeline.lines) + "\n")
    finally:
        cluster.stop()
    return code


if __name__ == "__main__":
    sys.exit(main())
