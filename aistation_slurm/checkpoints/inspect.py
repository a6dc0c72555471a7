"""Every checkpoint of a directory, valid or why not, and the one to resume from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.checkpoints.choose import resume_args
from aistation_slurm.checkpoints.files import PLACEHOLDER_BYTES, problem, size_of
from aistation_slurm.checkpoints.model import Checkpoint, Found
from aistation_slurm.checkpoints.readers import READERS
from aistation_slurm.errors import CheckpointError

__all__ = ["FRAMEWORKS", "Inspection", "inspect"]

FRAMEWORKS = ("auto", *READERS)


@dataclass(frozen=True)
class Inspection:
    """checkpoints: newest first. resume: the newest valid one, None where there is none."""

    directory: Path
    framework: str
    checkpoints: tuple[Checkpoint, ...]
    resume: Optional[Checkpoint]
    warnings: tuple[str, ...]
    trackers: dict[str, str]

    def as_json(self, template: str = "") -> dict[str, Any]:
        """The public JSON shape."""
        warnings = list(self.warnings)
        resume = None
        if self.resume is not None:
            try:
                args = resume_args(self.resume, template)
            except CheckpointError as exc:
                args = ""
                warnings.append(str(exc))
            resume = {
                "path": str(self.resume.path),
                "step": self.resume.step,
                "framework": self.resume.framework,
                "tag": self.resume.tag,
                "args": args,
            }
        rows = [
            {
                "path": str(c.path),
                "step": c.step,
                "framework": c.framework,
                "tag": c.tag,
                "valid": c.valid,
                "why": c.why,
            }
            for c in self.checkpoints
        ]
        return {
            "directory": str(self.directory),
            "framework": self.framework,
            "checkpoints": rows,
            "resume": resume,
            "trackers": self.trackers,
            "warnings": warnings,
        }


def inspect(directory: Path, framework: str = "auto") -> Inspection:
    """Look at one checkpoint directory. Reads headers and sizes, never whole files; opens no link to a device.

    Raises CheckpointError: the directory is missing, not a directory, or cannot be read (an unreadable directory is never
    "no checkpoints").
    """
    if framework not in FRAMEWORKS:
        raise CheckpointError(f"unknown framework {framework!r}; known: {', '.join(FRAMEWORKS)}")
    if not directory.exists():
        raise CheckpointError(f"{directory}: no such directory")
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: not a directory")
    if not os.access(directory, os.R_OK | os.X_OK):
        raise CheckpointError(
            f"{directory}: cannot be read by {os.environ.get('USER') or os.geteuid()}: permission denied"
        )
    name, found, warnings = _scan(directory, framework)
    ordered = sorted(found.checkpoints, key=lambda c: (c.order, str(c.path)), reverse=True)
    judged = _judge(ordered, warnings)
    # Lightning's last.ckpt carries no step; it is the newest when it is younger than every numbered one
    judged.sort(key=lambda c: (_age(c, judged), c.order), reverse=True)
    return Inspection(directory, name, tuple(judged), _pick(judged, found), tuple(warnings), found.trackers)


def _scan(directory: Path, framework: str) -> tuple[str, Found, list[str]]:
    if framework != "auto":
        found = READERS[framework](directory)
        return framework, found, list(found.warnings)
    results = {name: reader(directory) for name, reader in READERS.items()}
    having = [name for name, found in results.items() if found.checkpoints]
    if not having:
        merged = [w for found in results.values() for w in found.warnings]
        return "none", Found(), merged
    best = max(having, key=lambda name: (any(c.valid for c in results[name].checkpoints), -having.index(name)))
    warnings = list(results[best].warnings)
    used = {c.path for c in results[best].checkpoints}
    for name in having:
        if name != best and any(c.path not in used for c in results[name].checkpoints):
            warnings.append(f"{name} checkpoints lie in the same directory; --framework {name} takes those")
    return best, results[best], warnings


def _judge(checkpoints: Sequence[Checkpoint], warnings: list[str]) -> list[Checkpoint]:
    """Add what only the files' headers and the siblings tell."""
    strict = any((size_of(f) or 0) >= PLACEHOLDER_BYTES for c in checkpoints for f in c.files)
    weights_known = any(c.weights for c in checkpoints)
    judged = []
    for checkpoint in checkpoints:
        why = checkpoint.why
        if not why and weights_known and not checkpoint.weights:
            why = "no model weights (its siblings have them)"
        if not why:
            why = next((p for p in (problem(f, strict) for f in checkpoint.files) if p), "")
        judged.append(replace(checkpoint, why=why))
    if any(c.valid and c.files for c in judged) and not strict:
        warnings.append("every file is empty or a placeholder: completeness was judged by names only")
    if judged and not weights_known and any(c.valid for c in judged):
        warnings.append("no checkpoint here has model weights: judged by the state files only")
    return judged


def _age(checkpoint: Checkpoint, all_of: Sequence[Checkpoint]) -> float:
    """Step for ordering; a stepless file counts as just after the newest numbered one that is older than it."""
    if checkpoint.step is not None:
        return float(checkpoint.step)
    if not checkpoint.order or checkpoint.order[0] >= 0:
        return checkpoint.order[0] if checkpoint.order else -1.0
    older = [float(c.step) for c in all_of if c.step is not None and c.order[-1] <= checkpoint.order[-1]]
    return max(older, default=-1.0) + 0.5


def _pick(judged: Sequence[Checkpoint], found: Found) -> Optional[Checkpoint]:
    valid = [c for c in judged if c.valid]
    return next((c for c in valid if found.preferred and c.tag == found.preferred), valid[0] if valid else None)
