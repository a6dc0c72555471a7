"""PyTorch Lightning: ``epoch=E-step=S.ckpt`` (files, or directories with DeepSpeed and FSDP), ``last.ckpt``, ``hpc_ckpt_N``.

Since Lightning 2.1 ``last.ckpt`` can be a link to the latest top-k file, which is not the latest step, and can dangle: the name
is no proof. ``hpc_ckpt_N`` counts per directory, not per job.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from aistation_slurm.checkpoints.files import list_dir
from aistation_slurm.checkpoints.model import Checkpoint, Found
from aistation_slurm.checkpoints.readers import deepspeed

__all__ = ["scan"]

_STEP = re.compile(r"step=(\d+)")
_HPC = re.compile(r"hpc_ckpt_(\d+)\.ckpt")


def scan(root: Path) -> Found:
    """``*.ckpt`` in ``root``; where there is none, in the newest run directory at most four levels below."""
    found = _scan_one(root)
    if not found.checkpoints and not found.warnings:
        runs = sorted(p for p in _run_dirs(root, 4))
        if runs:
            found = _scan_one(runs[-1])
            if len(runs) > 1:
                found.warnings.append(
                    f"{len(runs)} run directories below {root}; the last by name is taken: {runs[-1]}"
                )
    return found


def _run_dirs(root: Path, depth: int) -> list[Path]:
    """Directories below that hold a ``.ckpt``; links are not followed, so there is no loop."""
    result = []
    for entry in list_dir(root):
        if depth and entry.is_dir(follow_symlinks=False) and not entry.name.endswith(".ckpt"):
            child = Path(entry.path)
            try:
                if any(e.name.endswith(".ckpt") for e in list_dir(child)):
                    result.append(child)
                result += _run_dirs(child, depth - 1)
            except Exception:  # an unreadable branch is not this run's directory
                continue
    return result


def _scan_one(root: Path) -> Found:
    found = Found()
    counted = 0
    for entry in list_dir(root):
        if not entry.name.endswith(".ckpt"):
            continue
        path = Path(entry.path)
        if entry.is_symlink():
            target = os.readlink(entry.path)
            if not path.exists():
                found.warnings.append(f"{entry.name} is a dangling link to {target}")
            continue  # the file it points at is judged under its own name, or is not of this directory
        hpc = _HPC.fullmatch(entry.name)
        counted += hpc is not None
        step = _STEP.search(entry.name)
        number = int(step.group(1)) if step else None
        mtime = entry.stat(follow_symlinks=False).st_mtime
        order = (float(number), mtime) if number is not None else (float(hpc.group(1)), mtime) if hpc else (-1.0, mtime)
        if entry.is_dir(follow_symlinks=False):
            found.checkpoints.append(_directory(path, number, order))
        else:
            found.checkpoints.append(Checkpoint(path, "lightning", number, "", order, (path,), True, entry.name))
    if counted > 1:
        found.warnings.append(
            f"{root}: hpc_ckpt_N is one counter per directory; shared by several job ids it is ambiguous whose is newest"
        )
    return found


def _directory(path: Path, step: int | None, order: tuple[float, ...]) -> Checkpoint:
    """A ``.ckpt`` directory of the DeepSpeed or FSDP strategy."""
    names = {e.name for e in list_dir(path)}
    inner = path / "checkpoint" if "checkpoint" in names else path
    states = deepspeed.read_tag(inner) if inner.is_dir() else None
    if states is not None and (states.weights or deepspeed.missing_ranks([f.name for f in states.files])):
        return Checkpoint(path, "lightning+deepspeed", step, states.why, order, states.files, True, path.name)
    if names & {".metadata", "meta.pt"}:
        why = "" if ".metadata" in names else ".metadata is missing (it is written last)"
        files = tuple(path / n for n in names if n.endswith((".distcp", "meta.pt")))
        return Checkpoint(path, "lightning+fsdp", step, why, order, files, True, path.name)
    why = "the directory is empty" if not names else "neither DeepSpeed states nor .metadata inside"
    return Checkpoint(path, "lightning", step, why, order, (), False, path.name)
