"""Hugging Face Trainer and Accelerate: ``checkpoint-N/``.

``trainer_state.json`` is written last (transformers Trainer._save_checkpoint); ``tmp-checkpoint-N`` is the staging
name of some releases and is never a checkpoint. With DeepSpeed the weights are in ``global_stepN/`` inside.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from aistation_slurm.checkpoints.files import list_dir, read_small, size_of
from aistation_slurm.checkpoints.model import Checkpoint, Found
from aistation_slurm.checkpoints.readers import deepspeed

__all__ = ["scan"]

_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_OTHERS = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt")


def scan(root: Path) -> Found:
    """Checkpoints below ``root``, or ``root`` itself where it is one."""
    found = Found()
    match = _NAME.fullmatch(root.name)
    if match and size_of(root / "trainer_state.json") is not None:
        found.checkpoints.append(_read(root, int(match.group(1))))
        return found
    for entry in list_dir(root):
        match = _NAME.fullmatch(entry.name)
        if match and entry.is_dir():
            found.checkpoints.append(_read(Path(entry.path), int(match.group(1))))
    return found


def _read(path: Path, step: int) -> Checkpoint:
    entries = list_dir(path)
    names = {e.name for e in entries}
    files = [path / n for n in (*_WEIGHTS, *_OTHERS, "trainer_state.json") if n in names]
    files += [path / n for n in names if re.fullmatch(r"rng_state(_\d+)?\.pth", n)]
    has_weights = any(n in names for n in _WEIGHTS)
    why, framework = "", "hf"
    for index in _INDEXES:
        if index in names:
            has_weights = True
            shards = _shards(path / index)
            missing = sorted(s for s in shards if s not in names)
            files += [path / s for s in shards if s in names]
            if missing:
                why = f"{len(missing)} of {len(shards)} weight shards missing, first {missing[0]}"
    if any(n.startswith("pytorch_model_fsdp") for n in names):
        has_weights = True
    tag = read_small(path / "latest")
    inner = [e for e in entries if re.fullmatch(r"global_step\d+", e.name) and e.is_dir()]
    if tag or inner:
        framework, has_weights = "hf+deepspeed", True
        chosen = tag if tag and "/" not in tag else max(inner, key=lambda e: int(e.name[11:])).name if inner else ""
        part = deepspeed.read_tag(path / chosen) if chosen and (path / chosen).is_dir() else None
        if part is None:
            why = why or f"latest names {tag!r}, which does not exist"
        else:
            why, files = why or part.why, files + list(part.files)
    if "trainer_state.json" not in names:
        why = "trainer_state.json is missing (it is written last)"
    return Checkpoint(path, framework, step, why, (step,), tuple(files), has_weights, path.name)


def _shards(index: Path) -> list[str]:
    try:
        mapping = json.loads(read_small(index, 16 << 20) or "{}").get("weight_map", {})
        names = {str(v) for v in mapping.values()}
    except (ValueError, AttributeError, RecursionError):
        return []
    return sorted(n for n in names if "/" not in n and n not in (".", ".."))
