"""Two ways to save and load the training: torch.distributed.checkpoint, and the layout of the Hugging Face Trainer.

    step_20/{.metadata, __0_0.distcp, __1_0.distcp}          dcp: every rank writes a shard, .metadata comes last
    checkpoint-20/{model.safetensors, optimizer.pt, ...,     hf: rank 0 writes (its own RNG state: every rank) into
                   rng_state_0.pth, trainer_state.json}      tmp-checkpoint-20, trainer_state.json last, then renames

What to copy into your own training is less the code than its order: all data first, the mark of completeness last.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

__all__ = ["FORMATS", "Training"]


@dataclass
class Training:
    """All that must come back after a restart. step: optimizer steps done."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def save_dcp(output: Path, training: Training) -> Path:
    """Save ``step_<N>``; every rank calls it."""
    path = output / f"step_{training.step}"
    if dist.get_rank() == 0:
        # a damaged one, which the restart went back behind: its .metadata would vouch for shards that are still being written
        shutil.rmtree(path, ignore_errors=True)
    dist.barrier()
    dcp.save(_state(training), checkpoint_id=path)
    return path


def load_dcp(path: Path, training: Training) -> None:
    """Continue from ``path``; every rank calls it."""
    state = _state(training)
    dcp.load(state, checkpoint_id=path)  # in place
    set_state_dict(
        training.model,
        training.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    training.scheduler.load_state_dict(state["scheduler"])
    training.step = int(state["step"])


def _state(training: Training) -> dict[str, Any]:
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": training.scheduler.state_dict(),
        "step": torch.tensor(training.step),
    }


def save_hf(output: Path, training: Training) -> Path:
    """Save ``checkpoint-<N>``; every rank calls it."""
    final, staging = output / f"checkpoint-{training.step}", output / f"tmp-checkpoint-{training.step}"
    first = dist.get_rank() == 0
    if first:
        shutil.rmtree(staging, ignore_errors=True)  # left by an attempt that died while it saved
        staging.mkdir(parents=True)
    dist.barrier()
    torch.save({"cpu": torch.get_rng_state()}, staging / f"rng_state_{dist.get_rank()}.pth")
    if first:
        weights = {name: tensor.contiguous() for name, tensor in training.model.module.state_dict().items()}
        save_file(weights, staging / "model.safetensors", metadata={"format": "pt"})
        (staging / "config.json").write_text(json.dumps({"model_type": "torch_ddp_example"}))
        torch.save(training.optimizer.state_dict(), staging / "optimizer.pt")
        torch.save(training.scheduler.state_dict(), staging / "scheduler.pt")
    dist.barrier()
    if first:
        state = {"global_step": training.step, "log_history": training.history[-20:]}
        (staging / "trainer_state.json").write_text(json.dumps(state, indent=2))
        _sync(staging)
        shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step, which the restart went back behind
        staging.rename(final)
        _sync(output, files=False)
    return final


def load_hf(path: Path, training: Training) -> None:
    """Continue from ``path``; every rank calls it."""
    training.model.module.load_state_dict(load_file(path / "model.safetensors"))
    training.optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True))
    training.scheduler.load_state_dict(torch.load(path / "scheduler.pt", weights_only=True))
    rng = path / f"rng_state_{dist.get_rank()}.pth"
    if rng.exists():  # not there for a rank that joined later
        torch.set_rng_state(torch.load(rng, weights_only=True)["cpu"])
    training.step = int(json.loads((path / "trainer_state.json").read_text())["global_step"])


def _sync(folder: Path, files: bool = True) -> None:
    """To the disk, so that the rename cannot come to be on it before the data."""
    for path in [*(folder.iterdir() if files else ()), folder]:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


FORMATS = {"dcp": (save_dcp, load_dcp), "hf": (save_hf, load_hf)}
