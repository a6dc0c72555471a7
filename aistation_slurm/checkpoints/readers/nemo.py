"""NeMo: ``NAME--metric=V-step=S-consumed_samples=C[-last].ckpt`` files or ``.../weights`` directories.

NeMo marks a save in progress with an empty ``NAME-unfinished`` file beside the checkpoint, and removes it at the end.
"""

from __future__ import annotations

import re
from pathlib import Path

from aistation_slurm.checkpoints.files import list_dir
from aistation_slurm.checkpoints.model import Checkpoint, Found

__all__ = ["scan"]

_STEP = re.compile(r"--.*?step=(\d+)")


def scan(root: Path) -> Found:
    """Checkpoints in ``root`` or in ``root/checkpoints``."""
    found = Found()
    entries = list_dir(root)
    if any(e.name == "checkpoints" and e.is_dir() for e in entries):
        entries = entries + list_dir(root / "checkpoints")
    names = {e.name for e in entries}
    for entry in entries:
        match = _STEP.search(entry.name)
        if not match or entry.name.endswith("-unfinished") or entry.is_symlink():
            continue
        path, step = Path(entry.path), int(match.group(1))
        stem = entry.name[:-5] if entry.name.endswith(".ckpt") else entry.name
        why = "a save is in progress or was interrupted (-unfinished marker)" if f"{stem}-unfinished" in names else ""
        files: tuple[Path, ...] = (path,)
        if entry.is_dir():
            inner = {e.name for e in list_dir(path)}
            weights = path / "weights" if "weights" in inner else path
            parts = {e.name for e in list_dir(weights)}
            files = tuple(weights / n for n in sorted(parts) if n.endswith((".distcp", ".pt")))
            if any(n.endswith(".distcp") for n in parts) and ".metadata" not in parts:
                why = why or ".metadata is missing (it is written last)"
            elif not parts:
                why = why or "the directory is empty"
        elif not entry.name.endswith((".ckpt", ".nemo")):
            continue
        newest = 1.0 if stem.endswith("-last") else 0.0
        found.checkpoints.append(Checkpoint(path, "nemo", step, why, (step, newest), files, True, entry.name))
    return found
