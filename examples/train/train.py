#!/usr/bin/env python3
"""A small but real data-parallel training: a two-layer network on two noisy moons, in plain Python.

No packages, no GPU, no downloads, so that it runs anywhere a job runs. What matters for a scheduler is as in large
training: one process per node, an all-reduce in every step (one rank that stops stops all), checkpoints in the layout of the
Hugging Face Trainer, and a restart that continues exactly where the checkpoint ended.

    srun python3 train.py --output-dir /ckpt/run $AISTATION_RESUME_ARGS

prints ``step 12/200 loss 0.4321`` on rank 0 and appends ``attempt,step,time,loss`` to OUTPUT_DIR/loss.csv.
"""

from __future__ import annotations

import argparse
import array
import math
import os
import random
import sys
import time
from pathlib import Path

import checkpoint
import gpus
from allreduce import Group, LostRank

HIDDEN = 12
SAMPLES = 1024
BATCH = 96


def moons(seed: int) -> list[tuple[float, float, float]]:
    """``SAMPLES`` points (x, y, label 0 or 1) of two interleaved half circles with noise; the same for the same seed."""
    rng = random.Random(seed)
    points = []
    for i in range(SAMPLES):
        angle, label = math.pi * rng.random(), i % 2
        x, y = (math.cos(angle), math.sin(angle)) if label == 0 else (1 - math.cos(angle), 0.5 - math.sin(angle))
        points.append((x + rng.gauss(0, 0.15), y + rng.gauss(0, 0.15), float(label)))
    return points


def initial_weights(seed: int) -> array.array[float]:
    """[w1 (2 x HIDDEN), b1 (HIDDEN), w2 (HIDDEN), b2 (1)] as doubles."""
    rng = random.Random(seed + 1)
    return array.array("d", [rng.gauss(0, 0.5) for _ in range(4 * HIDDEN)] + [0.0])


def gradient(weights: array.array[float], batch: list[tuple[float, float, float]]) -> array.array[float]:
    """Sum over the batch of the gradient of the cross entropy; the last two numbers are the sum of losses and the count."""
    out = array.array("d", bytes(8 * (len(weights) + 2)))
    w2_at, b2_at = 3 * HIDDEN, 4 * HIDDEN
    for x, y, label in batch:
        hidden = [
            math.tanh(weights[2 * h] * x + weights[2 * h + 1] * y + weights[2 * HIDDEN + h]) for h in range(HIDDEN)
        ]
        logit = weights[b2_at] + sum(weights[w2_at + h] * hidden[h] for h in range(HIDDEN))
        logit = max(-30.0, min(30.0, logit))
        p = 1 / (1 + math.exp(-logit))
        out[-2] -= math.log(p if label else 1 - p)
        out[-1] += 1
        error = p - label
        out[b2_at] += error
        for h in range(HIDDEN):
            out[w2_at + h] += error * hidden[h]
            back = error * weights[w2_at + h] * (1 - hidden[h] * hidden[h])
            out[2 * h] += back * x
            out[2 * h + 1] += back * y
            out[2 * HIDDEN + h] += back
    return out


def batch_of(points: list[tuple[float, float, float]], seed: int, step: int) -> list[tuple[float, float, float]]:
    """The global batch of a step. It depends on the step alone, so that a restart sees the same data again."""
    return random.Random(seed * 1_000_003 + step).sample(points, BATCH)


def train(args: argparse.Namespace) -> int:
    """The training loop. Returns the process's exit code."""
    group = Group.from_environment(args.rendezvous_timeout, args.collective_timeout)
    watch = gpus.Watch.open(args.watch_gpus)
    say = print if group.rank == 0 else (lambda *_, **__: None)
    output = Path(args.output_dir)
    state = checkpoint.State(0, initial_weights(args.seed), array.array("d", bytes(8 * (4 * HIDDEN + 1))))
    if args.resume_from_checkpoint:
        state = checkpoint.load(Path(args.resume_from_checkpoint))
        say(f"resumed from {args.resume_from_checkpoint} at step {state.step}", flush=True)
    attempt = int(os.environ.get("AISTATION_ATTEMPT") or os.environ.get("SLURM_RESTART_COUNT") or 0)
    say(f"attempt {attempt}: {group.world} ranks, steps {state.step + 1} to {args.steps}", flush=True)
    points = moons(args.seed)
    history: list[dict[str, float]] = []
    while state.step < args.steps:
        began = time.monotonic()
        lost = watch.lost_gpu()
        if lost is not None:
            print(f"rank {group.rank} on {os.uname().nodename}: GPU {lost} is lost", file=sys.stderr, flush=True)
            gpus.stop_as_cuda_would(args.on_gpu_loss)
        step = state.step + 1
        batch = batch_of(points, args.seed, step)
        total = group.sum(gradient(state.weights, batch[group.rank :: group.world]))
        loss = total[-2] / total[-1]
        for i in range(len(state.weights)):
            state.momentum[i] = 0.9 * state.momentum[i] + total[i] / total[-1]
            state.weights[i] -= args.learning_rate * state.momentum[i]
        state.step = step
        history.append({"step": step, "loss": loss})
        time.sleep(max(0.0, args.step_time - (time.monotonic() - began)))
        if group.rank == 0:
            checkpoint.log_loss(output / "loss.csv", attempt, step, loss)
            print(f"step {step}/{args.steps} loss {loss:.4f}", flush=True)
            if step % args.save_steps == 0 or step == args.steps:
                path = checkpoint.save(output, state, history, keep=args.save_total_limit)
                print(f"saved {path}", flush=True)
    say("training finished", flush=True)
    return 0


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--output-dir", required=True, help="folder for checkpoints and loss.csv, on a file system that all nodes share"
    )
    add("--resume_from_checkpoint", metavar="PATH", help="checkpoint-N folder to continue from")
    add("--steps", type=int, default=200, help="optimizer steps in all (default: 200)")
    add(
        "--step-time", type=float, default=0.0, metavar="S", help="least seconds per step, to make it last (default: 0)"
    )
    add("--save-steps", type=int, default=5, metavar="N", help="checkpoint every N steps (default: 5)")
    add("--save-total-limit", type=int, default=4, metavar="N", help="keep the newest N checkpoints (default: 4)")
    add("--learning-rate", type=float, default=0.05)
    add("--seed", type=int, default=7)
    add(
        "--watch-gpus",
        choices=["none", "auto", "nvml"],
        default="none",
        help="use the job's GPUs in every step: stop when one is lost. nvml asks NVML ($NVML_LIBRARY or the system's), "
        "auto does so where NVML is found (default: none)",
    )
    add(
        "--on-gpu-loss",
        choices=["hang", "exit"],
        default="hang",
        help="what a CUDA call does on a lost GPU: never return, or fail the process (default: hang)",
    )
    add("--rendezvous-timeout", type=float, default=120.0, metavar="S", help="for all ranks to meet (default: 120)")
    add("--collective-timeout", type=float, default=1800.0, metavar="S", help="for one all-reduce (default: 1800)")
    return parser.parse_args(argv)


def main() -> int:
    args = parse()
    try:
        return train(args)
    except (LostRank, checkpoint.CheckpointError, gpus.GpuError) as exc:
        print(f"train.py: {exc}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
