"""Megatron-LM: ``iter_NNNNNNN/`` and ``latest_checkpointed_iteration.txt``.

The tracker is moved when the data are durable (megatron/training/checkpointing.py), so a newer directory was never published,
and content still wins over a tracker that points at an incomplete one. Layouts: ``mp_rank_TT[_PPP[_EEE]]/`` (classic and
distributed optimizer) and ``torch_dist`` (``.metadata``, ``metadata.json``, ``common.pt``, ``__R_I.distcp``).
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

from aistation_slurm.checkpoints.files import list_dir, read_small, size_of
from aistation_slurm.checkpoints.model import Checkpoint, Found

__all__ = ["scan"]

TRACKER = "latest_checkpointed_iteration.txt"
_ITER = re.compile(r"iter_(\d{7,})")
_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3}))?(?:_(\d{3}))?")
_STATES = ("model_optim_rng.pt", "model_rng.pt")


def scan(root: Path) -> Found:
    """Every iteration below ``root``, those newer than the tracker marked as never published."""
    found = Found()
    tracker = read_small(root / TRACKER)
    published = int(tracker) if tracker and tracker.isdigit() else None
    for entry in list_dir(root):
        match = _ITER.fullmatch(entry.name)
        if match and entry.is_dir():
            step = int(match.group(1))
            checkpoint = _read(Path(entry.path), step)
            if checkpoint.valid and published is not None and step > published:
                why = f"newer than the tracker ({TRACKER} says {published}): never published"
                checkpoint = Checkpoint(checkpoint.path, "megatron", step, why, (step,), checkpoint.files)
            found.checkpoints.append(checkpoint)
        elif entry.name == "release" and entry.is_dir() and tracker == "release":
            found.checkpoints.append(_read(Path(entry.path), None))
    if tracker is not None:
        found.trackers[TRACKER] = tracker
        target = next((c for c in found.checkpoints if published is not None and c.step == published), None)
        if published is None and tracker != "release":
            found.warnings.append(f"{TRACKER} says {tracker[:40]!r}, neither a number nor 'release'")
        elif published is not None and target is None:
            found.warnings.append(f"{TRACKER} points at iteration {published}, which does not exist (dangling)")
        elif target is not None and not target.valid:
            found.warnings.append(f"{TRACKER} points at iteration {published}, which is incomplete: {target.why}")
    elif found.checkpoints:
        found.warnings.append(f"{TRACKER} is missing: the newest complete iteration is taken")
    return found


def _read(path: Path, step: int | None) -> Checkpoint:
    entries = list_dir(path)
    names = {e.name for e in entries}
    files: list[Path] = []
    why = ""
    shards = sorted(n for n in names if n.endswith(".distcp"))
    ranks = [(e, m) for e in entries if (m := _RANK.fullmatch(e.name)) and e.is_dir()]
    if not names:
        why = "the directory is empty"
    elif shards or ".metadata" in names or "metadata.json" in names or "common.pt" in names:
        files = [path / n for n in (*shards, *(n for n in ("common.pt", "metadata.json") if n in names))]
        if shards and ".metadata" not in names:
            why = ".metadata is missing (it is written last)"
        elif not shards and ".metadata" in names:
            why = "no __R_I.distcp shard"
    elif ranks:
        for entry, _ in ranks:
            states = [Path(entry.path) / s for s in _STATES if size_of(Path(entry.path) / s) is not None]
            optim = Path(entry.path) / "distrib_optim.pt"
            files += states + ([optim] if size_of(optim) is not None else [])
            if not states:
                why = f"{entry.name} has no {_STATES[0]}"
        why = why or _gaps([tuple(int(g) for g in m.groups() if g is not None) for _, m in ranks])
    else:
        why = "neither mp_rank_* directories nor distributed shards"
    return Checkpoint(
        path, "megatron", step, why, (step if step is not None else -1,), tuple(files), not why, path.name
    )


def _gaps(found: list[tuple[int, ...]]) -> str:
    """Ranks form a full grid (tensor x pipeline [x expert]); a hole in it is a missing shard."""
    if len({len(f) for f in found}) != 1:
        return "mp_rank_* directories of different forms"
    expected = product(*(range(max(axis) + 1) for axis in zip(*found)))
    missing = sorted(set(expected) - set(found))
    return f"{len(missing)} model-parallel ranks missing, first mp_rank {missing[0]}" if missing else ""
