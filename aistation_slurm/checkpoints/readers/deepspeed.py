"""DeepSpeed: a folder per tag, and the newest tag's name in the text file ``latest``.

``global_step40/mp_rank_00_model_states.pt`` (one for each model-parallel rank),
``[bf16_|fp16_]zero_pp_rank_<dp>_mp_rank_<mp>_optim_states.pt`` (one for each data-parallel rank),
``zero_pp_rank_<dp>_mp_rank_<mp>_model_states.pt`` (ZeRO-3), ``layer_<n>-model_<mp>-model_states.pt`` (pipeline):
deepspeed/runtime/engine.py ``_get_ckpt_name``, ``_get_zero_ckpt_name``. ``latest`` is written after all ranks ended. The tag
is free text. Universal checkpoints (ds_to_universal.py) are ``<tag>_universal/zero/...`` with ``latest_universal``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Optional

from aistation_slurm.checkpoints.folder import Folder, plain, read_folder, read_word
from aistation_slurm.checkpoints.judgement import Judgement, ranks_text
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found, Tracker

__all__ = ["NAME", "find", "holds_states", "judge", "judge_folder", "read_tag", "step_of_tag"]

NAME = "deepspeed"
_TAG_STEP = re.compile(r"(?:.*[-_.])?(?:global_?step|step|iter|iteration)[-_=]?(\d{1,18})(?P<universal>_universal)?")
_GLOBAL_STEP = re.compile(r"global_step\d{1,18}(?:_universal)?")
_MODEL = re.compile(r"(?:zero_pp_rank_(?P<dp>\d{1,9})_)?mp_rank_(?P<mp>\d{1,9})(?:_\d+)*_model_states\.pt")
_OPTIM = re.compile(r"(?:[a-z]+\d*_)?(?:zero_pp_rank_(?P<dp>\d{1,9})_)?mp_rank_(?P<mp>\d{1,9})_optim_states\.pt")
_LAYER = re.compile(r"layer_(?P<layer>\d{1,9})-model_(?P<mp>\d{1,9})-model_states\.pt")
_MOST_RANKS = 1_000_000
_TELLING = 1 << 16  # bytes from which a file's size says what share of the optimizer it has
_MOST_FREE_TAGS = 64


def step_of_tag(tag: str) -> Optional[int]:
    """``global_step40`` -> 40; None for a tag that names no step (``best_model``)."""
    match = _TAG_STEP.fullmatch(tag)
    return int(match[1]) if match else None


def read_tag(folder: Folder, name: str = "latest") -> Optional[str]:
    """The tag in a tracker file; None when there is no such file. Empty when its text cannot be the name of a folder."""
    if name not in folder.files:
        return None
    try:
        word = read_word(folder.child(name))
    except OSError:
        return ""
    return word if word and "/" not in word and word not in (".", "..") else ""


def find(folder: Folder) -> Found:
    """Tags by ``latest`` and by name; or the folder itself where it holds the state files."""
    latest = read_tag(folder)
    universal = read_tag(folder, "latest_universal")
    tags = {name for name in folder.dirs if _GLOBAL_STEP.fullmatch(name)}
    tags |= {name for name in folder.dangling if _GLOBAL_STEP.fullmatch(name)}
    if latest is None and not any(_may_hold_states(folder.child(tag)) for tag in _newest(tags)):
        tags.clear()  # other tools use the name global_stepN too
    if latest is not None:
        tags |= {name for name in folder.dirs - tags if name == latest or step_of_tag(name) is not None}
        free = sorted(folder.dirs - tags)[:_MOST_FREE_TAGS]
        tags |= {name for name in free if _may_hold_states(folder.child(name))}
    if universal and universal in folder.dirs and latest is None:
        tags.add(universal)
    found = Found([_candidate(folder, tag) for tag in tags])
    if latest is not None:
        _add_tracker(found, folder, latest)
        _compare_with_megatron(found, folder, latest)
    if not found.candidates and latest is None and holds_states(folder):
        parent, name = os.path.split(folder.path)
        found.candidates.append(Candidate(folder.path, parent, NAME, step_of_tag(name), tag=name))
    return found


def _candidate(folder: Folder, tag: str) -> Candidate:
    universal = "a universal checkpoint: loading it needs load_universal" if tag.endswith("_universal") else ""
    link = folder.dangling.get(tag)
    return Candidate(folder.child(tag), folder.path, NAME, step_of_tag(tag), tag, link=link, last_resort=universal)


def _newest(tags: Iterable[str]) -> list[str]:
    return sorted(tags, key=lambda tag: step_of_tag(tag) or -1, reverse=True)[:8]


def _may_hold_states(path: str) -> bool:
    """True also for a folder that cannot be read: it must be reported, not overlooked."""
    try:
        return holds_states(read_folder(path))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def holds_states(folder: Folder) -> bool:
    """True when a model or optimizer state file of DeepSpeed lies in it."""
    return any(name.endswith(("_model_states.pt", "_optim_states.pt")) for name in folder.files)


def _add_tracker(found: Found, folder: Folder, latest: str) -> None:
    found.tracker = Tracker("latest", latest, folder.child(latest) if latest else None)
    if not latest:
        found.warnings.append(f"{plain(folder.child('latest'))} does not hold the name of a folder; it is ignored")


def _compare_with_megatron(found: Found, folder: Folder, latest: str) -> None:
    """Megatron-DeepSpeed writes both trackers; DeepSpeed loads by ``latest``."""
    name = "latest_checkpointed_iteration.txt"
    other = read_tag(folder, name)
    step = step_of_tag(latest)
    if other is not None:
        found.other_tracker = Tracker(name, other, None)
    if other and latest and other not in (str(step), latest):
        found.warnings.append(
            f"trackers disagree: latest says {plain(latest)}, {name} says {plain(other)}; DeepSpeed loads by latest"
        )


def judge(candidate: Candidate) -> Checkpoint:
    """Valid when model states are there and the numbering of ranks has no gap."""
    judgement = Judgement(candidate)
    folder = judgement.open()
    if folder is not None:
        judge_folder(judgement, folder)
    return judgement.checkpoint()


def judge_folder(judgement: Judgement, folder: Folder) -> None:
    """Report on the state files of one tag's folder (also inside Hugging Face and Lightning checkpoints)."""
    if folder.empty:
        judgement.problem("is an empty folder")
        return
    model_dp: dict[int, set[int]] = {}
    optim_dp: dict[int, set[int]] = {}
    layers: dict[int, set[int]] = {}
    has_model = False
    for name in sorted(folder.files):
        if not name.endswith(".pt"):
            continue
        judgement.data(folder.child(name))
        if match := _MODEL.fullmatch(name):
            has_model = True
            model_dp.setdefault(int(match["mp"]), set()).update(_rank(match["dp"]))
        elif match := _OPTIM.fullmatch(name):
            optim_dp.setdefault(int(match["mp"]), set()).update(_rank(match["dp"]))
        elif match := _LAYER.fullmatch(name):
            layers.setdefault(int(match["layer"]), set()).add(int(match["mp"]))
    for name in sorted(folder.dangling):
        if name.endswith(".pt"):
            judgement.problem(f"{plain(name)} is a dangling link")
    if not any(name.endswith("_optim_states.pt") for name in folder.files):  # those of experts have names of their own
        judgement.lacks.append("optimizer state")
    if not has_model:
        judgement.problem("holds no mp_rank_*_model_states.pt")
    _report_mp_gaps(judgement, set(model_dp) | set(optim_dp), set(model_dp), layers)
    model_dp = {mp: ranks for mp, ranks in model_dp.items() if ranks}
    highest = max((max(ranks, default=-1) for ranks in (*model_dp.values(), *optim_dp.values())), default=-1)
    _report_dp_gaps(judgement, optim_dp, "optimizer states", highest)
    _report_dp_gaps(judgement, model_dp, "model states", highest)
    _compare_with_older(judgement, folder)


def _rank(text: Optional[str]) -> set[int]:
    return set() if text is None or int(text) > _MOST_RANKS else {int(text)}


def _report_mp_gaps(judgement: Judgement, every: set[int], with_model: set[int], layers: dict[int, set[int]]) -> None:
    highest = max(every, default=-1)
    if with_model and highest <= _MOST_RANKS:
        missing = set(range(highest + 1)) - with_model
        if missing:
            judgement.problem(f"model states of model-parallel rank {ranks_text(missing)} are missing")
    whole = set().union(*layers.values())
    for layer, ranks in sorted(layers.items()):
        if ranks != whole:
            judgement.problem(f"layer {layer} lacks model-parallel rank {ranks_text(whole - ranks)}")
            break


def _compare_with_older(judgement: Judgement, folder: Folder) -> None:
    """A missing tail of ranks: fewer optimizer states than the save before, and each no larger.

    After a restart on fewer ranks there are fewer too, but then each has a larger share.
    """
    older = judgement.candidate.older
    if not older or folder.path != judgement.candidate.path:
        return
    try:
        before = {name for name in read_folder(older).files if _OPTIM.fullmatch(name)}
        ours = {name for name in folder.files if _OPTIM.fullmatch(name)}
        if not ours or not ours < before:
            return
        some = min(ours)
        size, size_before = os.stat(folder.child(some)).st_size, os.stat(f"{older}/{some}").st_size
    except OSError:
        return
    share = len(before) / len(ours) - 1
    if size_before >= _TELLING and size / size_before - 1 < share / 2:
        ranks = {int(match["dp"] or 0) for name in before - ours if (match := _OPTIM.fullmatch(name))}
        judgement.missing_ranks |= ranks
        judgement.problem(
            f"optimizer states of data-parallel rank {ranks_text(ranks)}, which {plain(os.path.basename(older))} has, are missing"
        )


def _report_dp_gaps(judgement: Judgement, ranks_of_mp: dict[int, set[int]], what: str, highest: int) -> None:
    """Every model-parallel rank has the same data-parallel ranks, from 0 to ``highest`` without a gap."""
    missing: set[int] = set()
    for ranks in ranks_of_mp.values():
        missing |= set(range(highest + 1)) - ranks
    if missing:
        judgement.missing_ranks |= missing
        judgement.problem(f"{what} of data-parallel rank {ranks_text(missing)} are missing")
