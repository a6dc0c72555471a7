"""DeepSpeed: a directory per tag with ``mp_rank_*_model_states.pt`` and ZeRO shards; ``latest`` names the newest tag.

Tags need not be numeric (DeepSpeed docs, engine.save_checkpoint). Optimizer shards are
``[bf16_|fp16_]zero_pp_rank_D_mp_rank_M_optim_states.pt`` for every data-parallel rank D: a gap in D is a missing shard; a missing
tail cannot be seen, since the world size is not written.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

from aistation_slurm.checkpoints.files import list_dir, read_small
from aistation_slurm.checkpoints.model import Checkpoint, Found

__all__ = ["missing_ranks", "read_tag", "scan"]

_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)(?:_\d+)*_model_states\.pt|layer_\d+-model_.*\.pt")
_OPTIM = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


def scan(root: Path) -> Found:
    """Every tag directory below ``root``; the tracker's first choice in ``preferred``."""
    found = Found()
    latest = read_small(root / "latest")
    for entry in list_dir(root):
        if not entry.is_dir():
            continue
        numbered = re.fullmatch(r"global_step\d+", entry.name) is not None
        named = latest is not None and entry.name == latest
        if not numbered and not named and not _has_states(Path(entry.path)):
            continue
        checkpoint = read_tag(Path(entry.path))
        if checkpoint is not None:
            found.checkpoints.append(checkpoint)
    if latest is not None:
        found.trackers["latest"] = latest
        other = read_small(root / "latest_checkpointed_iteration.txt")
        if other is not None:
            found.trackers["latest_checkpointed_iteration.txt"] = other
            number = re.search(r"(\d+)$", latest)
            if number and other != number.group(1):
                found.warnings.append(
                    f"trackers disagree: latest says {latest}, latest_checkpointed_iteration.txt {other}"
                )
        if "/" in latest or not any(c.tag == latest for c in found.checkpoints):
            found.warnings.append(f"latest points at {latest!r}, which does not exist (dangling)")
        else:
            found.preferred = latest
    return found


def _has_states(path: Path) -> bool:
    try:
        return any(_MODEL.fullmatch(e.name) or _OPTIM.fullmatch(e.name) for e in list_dir(path))
    except Exception:  # unreadable: it is not ours to judge from the parent
        return False


def missing_ranks(names: list[str]) -> list[int]:
    """Data-parallel ranks below the highest one seen that have no optimizer shard, over all mp ranks."""
    by_mp: dict[int, set[int]] = {}
    for name in names:
        match = _OPTIM.fullmatch(name)
        if match:
            by_mp.setdefault(int(match.group(2)), set()).add(int(match.group(1)))
    top = max((max(ranks) for ranks in by_mp.values()), default=-1)
    return sorted({r for ranks in by_mp.values() for r in range(top + 1) if r not in ranks})


def read_tag(path: Path) -> Optional[Checkpoint]:
    """One tag directory. Universal checkpoints (``zero/`` folder) count by their own marker."""
    names = [e.name for e in list_dir(path)]
    models = [n for n in names if _MODEL.fullmatch(n)]
    optims = [n for n in names if _OPTIM.fullmatch(n)]
    number = re.search(r"(\d+)$", path.name)
    step = int(number.group(1)) if number else None
    why = ""
    gaps = missing_ranks(names)
    if not models and "zero" not in names:
        why = "no mp_rank_*_model_states.pt" if names else "the directory is empty"
    elif gaps:
        why = f"optimizer shards missing for data-parallel ranks {', '.join(map(str, gaps[:8]))}"
    else:
        mp = sorted({int(m.group(2)) for n in models if (m := _MODEL.fullmatch(n)) and m.group(2)})
        if mp and mp != list(range(mp[-1] + 1)):
            why = f"model states missing for model-parallel ranks {sorted(set(range(mp[-1] + 1)) - set(mp))}"
    try:
        order = (float(step) if step is not None else -1.0, path.stat().st_mtime)
    except OSError:
        order = (-1.0, 0.0)
    files = tuple(path / n for n in (*models, *optims))
    return Checkpoint(path, "deepspeed", step, why, order, files, bool(models), path.name)
