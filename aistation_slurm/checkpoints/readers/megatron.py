"""Megatron-LM: ``iter_0000100/`` folders and ``latest_checkpointed_iteration.txt`` (megatron/training/checkpointing.py).

Classic: ``mp_rank_<tp>[_<pp>[_<ep>]]/model_optim_rng.pt`` with ``distrib_optim.pt`` beside it for the distributed optimizer.
torch_dist (megatron core): ``common.pt``, ``metadata.json``, ``.metadata`` and ``__R_I.distcp``. The tracker holds the iteration or
the word ``release``, and is moved only when all data are durable: it goes before the order of folders, but a look at the
files goes before the tracker.
"""

from __future__ import annotations

import os
import re

from aistation_slurm.checkpoints.folder import Folder, plain, read_folder, read_word
from aistation_slurm.checkpoints.judgement import Judgement
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found, Tracker
from aistation_slurm.checkpoints.readers import dcp

__all__ = ["NAME", "TRACKER", "find", "judge"]

NAME = "megatron"
_DISTRIBUTED = "distrib_optim.pt"
TRACKER = "latest_checkpointed_iteration.txt"
_ITER = re.compile(r"iter_(\d{7,18})")
_RANK_DIR = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_(\d{1,6}))?")


def find(folder: Folder) -> Found:
    """``iter_*`` folders and ``release``; or the folder itself where it is one."""
    found = Found()
    for name in (*folder.dirs, *folder.dangling):
        match = _ITER.fullmatch(name)
        if match:
            link = folder.dangling.get(name)
            found.candidates.append(Candidate(folder.child(name), folder.path, NAME, int(match[1]), name, link=link))
    if "release" in folder.dirs and (TRACKER in folder.files or _is_checkpoint(folder.child("release"))):
        found.candidates.append(Candidate(folder.child("release"), folder.path, NAME, tag="release"))
    if TRACKER in folder.files:
        _read_tracker(found, folder)
    if not found.candidates and found.tracker is None:
        parent, name = os.path.split(folder.path)
        match = _ITER.fullmatch(name)
        if match or (name == "release" and _is_checkpoint(folder.path)):
            found.candidates.append(Candidate(folder.path, parent, NAME, int(match[1]) if match else None, tag=name))
    return found


def _is_checkpoint(path: str) -> bool:
    try:
        inside = read_folder(path)
    except OSError:
        return True  # it must be reported, not overlooked
    return dcp.is_dcp(inside) or "common.pt" in inside.files or any(_RANK_DIR.fullmatch(name) for name in inside.dirs)


def _read_tracker(found: Found, folder: Folder) -> None:
    where = plain(folder.child(TRACKER))
    try:
        word = read_word(folder.child(TRACKER))
    except OSError as exc:
        found.tracker = Tracker(TRACKER, "", None)
        found.warnings.append(
            f"{where} cannot be read ({exc.strerror or exc}); folders are judged by their files alone"
        )
        return
    if word == "release":
        found.tracker = Tracker(TRACKER, word, folder.child("release"))
    elif word is not None and re.fullmatch(r"[0-9]{1,18}", word):
        named = {c.step: c.path for c in found.candidates}
        found.tracker = Tracker(TRACKER, word, named.get(int(word), folder.child(f"iter_{int(word):07d}")))
    else:
        found.tracker = Tracker(TRACKER, "", None)
        found.warnings.append(
            f"{where} holds neither an iteration nor 'release'; folders are judged by their files alone"
        )


def judge(candidate: Candidate) -> Checkpoint:
    """Valid when the grid of ranks is whole (classic) or DCP's metadata and its shards are there (torch_dist)."""
    judgement = Judgement(candidate)
    folder = judgement.open()
    if folder is not None:
        ranks = {name: match for name in folder.dirs if (match := _RANK_DIR.fullmatch(name))}
        if ranks:
            _judge_classic(judgement, folder, ranks)
        elif dcp.is_dcp(folder) or "metadata.json" in folder.files or "common.pt" in folder.files:
            _judge_distributed(judgement, folder)
        else:
            judgement.problem("holds neither mp_rank_* folders nor .metadata")
    return judgement.checkpoint()


def _judge_distributed(judgement: Judgement, folder: Folder) -> None:
    zarr = not dcp.is_dcp(folder) and bool(folder.dirs)  # arrays as folders, without .metadata
    if not zarr:
        dcp.judge_folder(judgement, folder)
    # torch_dist writes common.pt first and metadata.json last; the torch_dcp format has neither
    if zarr or {"common.pt", "metadata.json"} & folder.files:
        for name in ("common.pt", "metadata.json"):
            if name not in folder.files:
                judgement.problem(f"{name} is missing: saving did not end")
    if "common.pt" in folder.files:
        judgement.data(folder.child("common.pt"))
    if "metadata.json" in folder.files:
        judgement.side(folder.child("metadata.json"))


def _judge_classic(judgement: Judgement, folder: Folder, ranks: dict[str, re.Match[str]]) -> None:
    inside: dict[str, set[str]] = {}
    for name in sorted(ranks):
        rank_folder = judgement.folder(folder.child(name))
        if rank_folder is None:
            continue
        inside[name] = {n for n in rank_folder.files if n.endswith(".pt")}
        for file in sorted(inside[name]):
            judgement.data(rank_folder.child(file))
    whole: set[str] = set().union(*inside.values())
    if inside and not any(name.startswith("model") for name in whole):
        judgement.problem("holds no model_optim_rng.pt")
    for name, files in sorted(inside.items()):
        if whole - files:
            judgement.problem(f"{name} lacks {plain(', '.join(sorted(whole - files)))}")
    if _DISTRIBUTED not in whole and inside and _older_has(judgement, f"{min(inside)}/{_DISTRIBUTED}"):
        judgement.problem(f"{_DISTRIBUTED} is missing, which the save before has")
    missing = _missing_ranks(ranks) or _in_older(judgement, ranks)
    if missing:
        judgement.missing_ranks |= {int(name.split("_")[2]) for name in missing}
        judgement.problem(f"{', '.join(missing[:4])} {'are' if len(missing) > 1 else 'is'} missing")


def _older_has(judgement: Judgement, name: str) -> bool:
    older = judgement.candidate.older
    return bool(older) and os.path.isfile(f"{older}/{name}")


def _in_older(judgement: Judgement, ranks: dict[str, re.Match[str]]) -> list[str]:
    """Ranks that the save before has. The grid of a classic checkpoint does not change within a run: it could not be loaded."""
    try:
        before = {n for n in read_folder(judgement.candidate.older).dirs if _RANK_DIR.fullmatch(n)}
    except OSError:
        return []
    return sorted(before - set(ranks)) if set(ranks) < before else []


def _missing_ranks(ranks: dict[str, re.Match[str]]) -> list[str]:
    """Folders that the grid tensor x pipeline x expert parallel rank leaves out. A missing tail is seen by the save before."""
    points = {tuple(int(part) for part in match.groups() if part is not None) for match in ranks.values()}
    depth = max(len(point) for point in points)
    points = {point for point in points if len(point) == depth}
    sizes = [max(point[axis] for point in points) + 1 for axis in range(depth)]
    total = 1
    for size in sizes:
        total *= size
    if total > 100_000 or total == len(points):
        return []
    grid: list[tuple[int, ...]] = [()]
    for size in sizes:
        grid = [(*point, rank) for point in grid for rank in range(size)]
    widths = (2, 3, 3)
    absent = [point for point in grid if point not in points]
    return ["mp_rank_" + "_".join(f"{rank:0{widths[axis]}d}" for axis, rank in enumerate(point)) for point in absent]
