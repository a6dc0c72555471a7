"""One reader per framework. Each has ``scan(root) -> Found``; order here is the order in which ``auto`` tries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Callable

from aistation_slurm.checkpoints.model import Found
from aistation_slurm.checkpoints.readers import dcp, deepspeed, hf, lightning, megatron, nemo

__all__ = ["READERS"]

READERS: Mapping[str, Callable[[Path], Found]] = {
    "hf": hf.scan,
    "deepspeed": deepspeed.scan,
    "megatron": megatron.scan,
    "nemo": nemo.scan,
    "lightning": lightning.scan,
    "dcp": dcp.scan,
}
