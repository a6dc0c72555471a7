"""PyTorch Lightning: ``epoch=3-step=400.ckpt``, ``last.ckpt``, ``hpc_ckpt_2.ckpt``; a ``.ckpt`` may be a folder.

``-v1`` is a later version of the same name (ModelCheckpoint). ``last.ckpt`` is a copy or, since 2.1, may be a link to the latest
top-k file, which need not be the newest epoch. ``hpc_ckpt_N`` is written on Slurm's signal; N is a counter of the folder, neither
a step nor a job. With DeepSpeed a ``.ckpt`` folder holds ``checkpoint/`` or ``global_stepN`` with ZeRO shards, with FSDP a DCP
checkpoint. Names without a step: ``global_step`` stands in the file's first bytes.
"""

from __future__ import annotations

import os
import re
from typing import Optional

from aistation_slurm.checkpoints.folder import Folder, plain
from aistation_slurm.checkpoints.integrity import step_inside
from aistation_slurm.checkpoints.judgement import Judgement
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found
from aistation_slurm.checkpoints.readers import dcp, deepspeed

__all__ = ["NAME", "find", "judge", "judge_inside", "name_step", "named", "read_steps"]

NAME = "lightning"
_STEP = re.compile(r"(?:^|[-_.])(?:global[-_]?)?step[=_-]?(\d{1,18})(?=[-_.]|$)", re.IGNORECASE)
_EPOCH = re.compile(r"(?:^|[-_.])epoch[=_-]?(\d{1,18})(?=[-_.]|$)", re.IGNORECASE)
_VERSION = re.compile(r"-v(\d{1,9})$")
_HPC = re.compile(r"hpc_ckpt_(\d{1,18})\.ckpt")
_LAST = re.compile(r"last(?:-v\d{1,9})?\.ckpt")
_HEADS_READ = 64


def name_step(stem: str) -> Optional[int]:
    """``epoch=3-step=400-v1`` -> 400; None when the name has no step."""
    match = _STEP.search(stem)
    return int(match[1]) if match else None


def find(folder: Folder) -> Found:
    """Everything called ``*.ckpt``: files, folders and links; or the folder itself where it has that name."""
    found = Found()
    names = sorted(n for n in (folder.files | folder.dirs | folder.dangling.keys()) if n.endswith(".ckpt"))
    links = {name: target for name in names if (target := _linked_sibling(folder, name))}
    found.candidates = [named(folder, name) for name in names if name not in links]
    read_steps(found)
    for name, target in links.items():
        _mention_old_link(found, name, target)
    for name in folder.dangling.keys() & set(names):
        found.warnings.append(f"{plain(name)} is a dangling link to {plain(folder.dangling[name])}")
    _mention_shared_counter(found, folder, names)
    if not found.candidates and folder.path.endswith(".ckpt") and not folder.empty:
        parent, name = os.path.split(folder.path)
        found.candidates.append(Candidate(folder.path, parent, NAME, name_step(name[: -len(".ckpt")]), tag=name))
    return found


def named(folder: Folder, name: str, framework: str = NAME) -> Candidate:
    """What a file's name says about step, version and kind."""
    stem = name[: -len(".ckpt")] if name.endswith(".ckpt") else name
    version = _VERSION.search(stem)
    number, family = int(version[1]) if version else 0, ""
    step = name_step(stem)
    if match := _HPC.fullmatch(name):
        number, family = int(match[1]), "hpc"
    elif _LAST.fullmatch(name):
        family = "last"
    elif step is None and (match := _EPOCH.search(stem)):
        number, family = int(match[1]) * 1000 + number, "epoch"
    return Candidate(folder.child(name), folder.path, framework, step, name, family, number, folder.dangling.get(name))


def _linked_sibling(folder: Folder, name: str) -> Optional[str]:
    """The other checkpoint of the same folder that ``name`` links to, so that it is not listed twice."""
    if name not in folder.links:
        return None
    try:
        text = os.readlink(folder.child(name))
    except OSError:
        return None
    target = os.path.normpath(os.path.join(folder.path, text))
    parent, base = os.path.split(target)
    beside = parent == folder.path and base != name and base.endswith(".ckpt")
    return base if beside and (base in folder.files or base in folder.dirs) else None


def read_steps(found: Found) -> None:
    """Take the step out of the file's head where the name has none; a bounded number, the most recent names first."""
    stepless = [i for i, c in enumerate(found.candidates) if c.step is None and c.link is None and c.family != "hpc"]
    stepless.sort(key=lambda i: found.candidates[i].number, reverse=True)
    for index in stepless[:_HEADS_READ]:
        old = found.candidates[index]
        step = step_inside(old.path)
        if step is not None:
            found.candidates[index] = old._replace(step=step)


def _mention_old_link(found: Found, name: str, target: str) -> None:
    best = max((c for c in found.candidates if c.step is not None), key=lambda c: c.step or 0, default=None)
    linked = next((c for c in found.candidates if c.tag == target), None)
    if best and linked and linked.step is not None and best.step is not None and linked.step < best.step:
        found.warnings.append(f"{plain(name)} links to {plain(target)}, which is older than {plain(best.tag)}")


def _mention_shared_counter(found: Found, folder: Folder, names: list[str]) -> None:
    if sum(1 for name in names if _HPC.fullmatch(name)) > 1:
        found.warnings.append(
            f"{plain(folder.path)} holds several hpc_ckpt files: N counts in the directory, not per job. If the directory is "
            "shared by several job ids, it is ambiguous whose run each one is; give every job its own directory"
        )


def judge(candidate: Candidate) -> Checkpoint:
    """Valid when the file is whole, or the folder holds whole shards."""
    judgement = Judgement(candidate)
    judge_inside(judgement, candidate)
    return judgement.checkpoint()


def judge_inside(judgement: Judgement, candidate: Candidate) -> None:
    """Report on a ``.ckpt`` file or folder."""
    if candidate.link is not None:
        judgement.problem(f"is a dangling link to {plain(candidate.link)}")
    elif not os.path.isdir(candidate.path):
        judgement.data(candidate.path)
    else:
        folder = judgement.open()
        if folder is not None:
            _judge_folder(judgement, folder)


def _judge_folder(judgement: Judgement, folder: Folder) -> None:
    if dcp.is_dcp(folder):
        judgement.storage = dcp.NAME
        dcp.judge_folder(judgement, folder)
        if "meta.pt" in folder.files:
            judgement.data(folder.child("meta.pt"))
        return
    tag = deepspeed.read_tag(folder)
    tags = [tag] if tag else sorted(n for n in folder.dirs if n == "checkpoint" or deepspeed.step_of_tag(n) is not None)
    if deepspeed.holds_states(folder):
        judgement.storage = deepspeed.NAME
        deepspeed.judge_folder(judgement, folder)
    elif tags:
        judgement.storage = deepspeed.NAME
        newest = max(tags, key=lambda name: deepspeed.step_of_tag(name) or 0)
        states = judgement.folder(folder.child(newest))
        if states is not None:
            deepspeed.judge_folder(judgement, states)
    else:
        files = [
            name for name in sorted(folder.files) if name.endswith((".pt", ".pth", ".bin", ".safetensors", ".ckpt"))
        ]
        for name in files:
            judgement.data(folder.child(name))
        if not files:
            judgement.problem("is a folder without checkpoint files")
