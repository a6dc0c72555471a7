#!/usr/bin/env python3
"""A small data-parallel training with PyTorch (DDP), started by torchrun, that continues exactly after a restart.

    srun torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=$first_host:29500 \\
        train.py --output-dir /ckpt/run --format dcp $AISTATION_RESUME_ARGS

prints ``step 12 loss 0.432109876`` on rank 0. The data of a step depends on the step alone, so the losses after a restart are
those that an undisturbed training would have had.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from checkpointing import FORMATS, Training
from torch import nn
from torch.nn.parallel import DistributedDataParallel

INPUTS, HIDDEN, BATCH = 16, 64, 64


def build(args: argparse.Namespace) -> Training:
    """The same weights on every rank and in every run with the same seed."""
    torch.manual_seed(args.seed)
    layers = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)
    )
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / args.steps)))
    )
    return Training(model, optimizer, scheduler)


def batch_of(seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step and what the network is to learn from it."""
    rng = torch.Generator().manual_seed(seed * 1_000_003 + step)
    x = torch.randn(BATCH, INPUTS, generator=rng)
    return x, torch.sin(x[:, :1] * 2) + 0.5 * x[:, 1:2] * x[:, 2:3]


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    say = print if rank == 0 else (lambda *_, **__: None)
    save, load = FORMATS[args.format]
    training = build(args)
    if args.resume:
        load(Path(args.resume), training)
        say(f"resumed from {args.resume} at step {training.step}", flush=True)
    attempt = os.environ.get("AISTATION_ATTEMPT", "0")
    say(f"attempt {attempt}: {world} ranks, steps {training.step + 1} to {args.steps}", flush=True)
    while training.step < args.steps:
        began = time.monotonic()
        step = training.step + 1
        x, y = (part[rank::world] for part in batch_of(args.seed, step))
        loss = nn.functional.mse_loss(training.model(x), y)
        training.optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients over the ranks here
        training.optimizer.step()
        training.scheduler.step()
        training.step = step
        mean = loss.detach() / world
        dist.all_reduce(mean)
        training.history.append({"step": step, "loss": mean.item()})
        say(f"step {step} loss {mean.item():.9f}", flush=True)
        if step % args.save_steps == 0 or step == args.steps:
            say(f"saved {save(args.output_dir, training)}", flush=True)
        time.sleep(max(0.0, args.step_time - (time.monotonic() - began)))
    say("training finished", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output-dir", type=Path, required=True, help="folder for checkpoints, on a file system that all nodes share")
    add("--format", choices=sorted(FORMATS), default="dcp", help="of checkpoints (default: dcp)")
    # the names that AIStation passes by default for these formats; --ais-resume-args changes them
    add(
        "--checkpoint_id", "--resume_from_checkpoint", dest="resume", metavar="PATH", help="checkpoint to continue from"
    )
    add("--steps", type=int, default=400, help="optimizer steps in all (default: 400)")
    add(
        "--step-time", type=float, default=0.0, metavar="S", help="least seconds per step, to make it last (default: 0)"
    )
    add("--save-steps", type=int, default=20, metavar="N", help="checkpoint every N steps (default: 20)")
    add("--learning-rate", type=float, default=0.003)
    add("--seed", type=int, default=7)
    add("--collective-timeout", type=float, default=1800.0, metavar="S", help="for one all-reduce (default: 1800)")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.collective_timeout))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}", flush=True)
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
