"""NeMo: ``megatron_gpt--val_loss=5.05-step=10-consumed_samples=80.0-last.ckpt``, a file or a folder, with or without suffix.

NeMo resumes from ``*-last``. While a checkpoint is written, an empty file ``<name>-unfinished`` lies beside it
(nemo/utils/callbacks/nemo_model_checkpoint.py). Model-parallel NeMo 1 puts the same name into ``mp_rank_XX/`` or
``tp_rank_XX_pp_rank_XXX/`` folders, and is given the path without them. NeMo 2 folders hold ``context/`` and ``weights/`` (DCP).
"""

from __future__ import annotations

import os
import re

from aistation_slurm.checkpoints.folder import Folder, plain, read_folder
from aistation_slurm.checkpoints.judgement import Judgement
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found
from aistation_slurm.checkpoints.readers import dcp, lightning

__all__ = ["NAME", "find", "judge"]

NAME = "nemo"
_NAMED = re.compile(r".+--[\w.]+=.*|.*consumed_samples=.*")
_RANK_DIR = re.compile(r"mp_rank_\d{1,6}|tp_rank_\d{1,6}(?:_pp_rank_\d{1,6})?")
_SAMPLES = re.compile(r"consumed_samples=(\d{1,18})")
_UNFINISHED = "-unfinished"


def _is_nemo(name: str) -> bool:
    return bool(_NAMED.fullmatch(name)) and not name.endswith((_UNFINISHED, ".nemo", ".tmp"))


def find(folder: Folder) -> Found:
    """Names with ``--key=value`` and a step; for model-parallel layouts the names inside the rank folders."""
    names = {n for n in folder.dirs | folder.files | set(folder.dangling) if _is_nemo(n)}
    for rank in _rank_folders(folder):
        try:
            names |= {n for n in read_folder(rank).files if _is_nemo(n)}
        except OSError:
            continue  # reported when its checkpoints are judged
    found = Found()
    for name in sorted(names):
        if not name.endswith(".ckpt") and (name in folder.files or not re.search(r"step=|-last$", name)):
            continue
        found.candidates.append(_candidate(folder, name))
        if name in folder.dangling:
            found.warnings.append(f"{plain(name)} is a dangling link to {plain(folder.dangling[name])}")
    lightning.read_steps(found)
    return found


def _rank_folders(folder: Folder) -> list[str]:
    return [folder.child(name) for name in sorted(folder.dirs) if _RANK_DIR.fullmatch(name)]


def _candidate(folder: Folder, name: str) -> Candidate:
    stem = name[: -len(".ckpt")] if name.endswith(".ckpt") else name
    markers = {name + _UNFINISHED, stem + _UNFINISHED} & folder.files
    last = stem.endswith("-last")  # of two with one step or epoch, NeMo itself resumes from -last
    plain_name = lightning.named(folder, name, NAME)
    number, samples = plain_name.number, _SAMPLES.search(stem)
    if plain_name.step is None and samples:
        plain_name, number = plain_name._replace(family="samples"), int(samples[1])
    return plain_name._replace(number=2 * number + int(last), unfinished=min(markers, default=""))


def judge(candidate: Candidate) -> Checkpoint:
    """Valid when no ``-unfinished`` marker lies beside it and its files are whole on every rank."""
    judgement = Judgement(candidate)
    if candidate.unfinished:
        judgement.problem(f"{plain(candidate.unfinished)} lies beside it: saving did not end")
    if os.path.lexists(candidate.path):
        folder = judgement.folder(candidate.path) if os.path.isdir(candidate.path) else None
        weights = folder.child("weights") if folder and "weights" in folder.dirs else None
        inside = judgement.folder(weights) if weights else None
        if inside is not None:
            judgement.storage = dcp.NAME
            dcp.judge_folder(judgement, inside, prefix="weights/")
        elif weights is None:
            lightning.judge_inside(judgement, candidate)
    else:
        _judge_ranks(judgement, candidate)
    return judgement.checkpoint()


def _judge_ranks(judgement: Judgement, candidate: Candidate) -> None:
    parent = judgement.folder(candidate.root)
    if parent is None:
        return
    for rank in _rank_folders(parent):
        path = os.path.join(rank, os.path.basename(candidate.path))
        if os.path.isfile(path):
            judgement.data(path)
        else:
            judgement.problem(f"is missing in {plain(os.path.basename(rank))}")
