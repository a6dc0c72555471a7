"""torch.distributed.checkpoint: a directory per step with ``__R_I.distcp`` shards and ``.metadata``, which rank 0 writes last."""

from __future__ import annotations

import re
from pathlib import Path

from aistation_slurm.checkpoints.files import list_dir
from aistation_slurm.checkpoints.model import Checkpoint, Found

__all__ = ["scan"]

_NAME = re.compile(r"(?:(?:step|iter|iteration|checkpoint|ckpt|global_step)[-_]?)?(\d+)")


def scan(root: Path) -> Found:
    """Step directories below ``root``, or ``root`` itself where it holds the shards."""
    found = Found()
    entries = list_dir(root)
    if any(e.name == ".metadata" or e.name.endswith(".distcp") for e in entries):
        match = _NAME.fullmatch(root.name)
        found.checkpoints.append(_read(root, int(match.group(1)) if match else None))
        return found
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match and entry.is_dir():
            checkpoint = _read(Path(entry.path), int(match.group(1)))
            if checkpoint.files or checkpoint.weights or not list_dir(Path(entry.path)):
                found.checkpoints.append(checkpoint)
    return found


def _read(path: Path, step: int | None) -> Checkpoint:
    names = {e.name for e in list_dir(path)}
    shards = sorted(n for n in names if n.endswith(".distcp"))
    why = ""
    if not names:
        why = "the directory is empty"
    elif ".metadata" not in names:
        why = ".metadata is missing (rank 0 writes it last)"
    elif not shards:
        why = "no __R_I.distcp shard"
    order = (float(step) if step is not None else -1.0,)
    files = tuple(path / n for n in shards)
    return Checkpoint(path, "dcp", step, why, order, files, ".metadata" in names or bool(shards), path.name)
