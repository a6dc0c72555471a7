"""Hugging Face Trainer and Accelerate: ``checkpoint-500/`` folders (transformers/trainer.py ``_save_checkpoint``).

Weights are ``model.safetensors`` or ``pytorch_model.bin``, sharded ones with an ``.index.json``, an adapter
(``adapter_model.safetensors``), FSDP folders (``pytorch_model_fsdp_0``, DCP inside) or DeepSpeed's ``latest`` and
``global_stepN``. ``trainer_state.json`` is written last. Saving is staged in ``tmp-checkpoint-N`` by some versions; other
names (``checkpoint-best``, ``runs``) and plain files are no checkpoints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Optional

from aistation_slurm.checkpoints.folder import Folder, plain, read_folder
from aistation_slurm.checkpoints.integrity import read_json
from aistation_slurm.checkpoints.judgement import Judgement, ranks_text
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found
from aistation_slurm.checkpoints.readers import dcp, deepspeed

__all__ = ["NAME", "find", "judge"]

NAME = "hf"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,18})")
_ACCELERATE = re.compile(r"checkpoint_(\d{1,18})|step_(\d{1,18})|epoch_(?P<epoch>\d{1,18})")
_PEEKED = 16
_WEIGHTS = re.compile(r"(?:model|pytorch_model|adapter_model)(?:[-.][\w.-]*)?\.(?:safetensors|bin)")
_OPTIMIZER = re.compile(r"optimizer(?:_\d+)?\.(?:pt|bin)")
_SIDE_TENSORS = re.compile(
    r"(?:scheduler|scaler|training_args|rng_state|random_states|optimizer)[\w.-]*\.(?:pt|pth|bin|pkl)"
)
_RANK_STATE = re.compile(r"(?:rng_state|random_states)_(\d{1,6})\.(?:pth|pkl)")
_OF = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.(?P<ext>safetensors|bin)")
STATE = "trainer_state.json"
_MOST_RANKS = 100_000


def find(folder: Folder) -> Found:
    """``checkpoint-N`` folders; ``checkpoint_N``, ``step_N`` and ``epoch_N`` of Accelerate; or the folder itself."""
    found = Found()
    names = (*folder.dirs, *folder.dangling)
    numbered = [(int(match[1]), name) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    if numbered and _is_trainer(folder.child(max(numbered)[1])):
        for step, name in numbered:
            link = folder.dangling.get(name)
            found.candidates.append(Candidate(folder.child(name), folder.path, NAME, step, name, link=link))
    else:
        found.candidates = _accelerate(folder, names)
    parent, name = os.path.split(folder.path)
    match = _CHECKPOINT.fullmatch(name)
    if match and not found.candidates and (STATE in folder.files or _weights(folder)):
        found.candidates.append(Candidate(folder.path, parent, NAME, int(match[1]), tag=name))
    elif not found.candidates and (own := _ACCELERATE.fullmatch(name)) and _is_accelerate(folder.path):
        found.candidates.append(_named_by_accelerate(own, folder.path, parent, None))
    return found


def _is_trainer(path: str) -> bool:
    """False for ``checkpoint-N`` with bare DCP inside."""
    try:
        inside = read_folder(path)
    except OSError:
        return True
    return STATE in inside.files or not dcp.is_dcp(inside)


def _accelerate(folder: Folder, names: Iterable[str]) -> list[Candidate]:
    """Accelerate's names are those of others too: they count where one of the newest holds what only Accelerate writes.

    ``checkpoint_N`` (automatic naming) counts saves; its examples write ``step_N`` and ``epoch_N``.
    """
    candidates: list[Candidate] = []
    for name in names:
        match = _ACCELERATE.fullmatch(name)
        if match:
            candidates.append(_named_by_accelerate(match, folder.child(name), folder.path, folder.dangling.get(name)))
    newest = sorted(candidates, key=lambda c: (c.step or 0, c.number), reverse=True)[:_PEEKED]
    return candidates if any(_is_accelerate(c.path) for c in newest) else []


def _named_by_accelerate(match: re.Match[str], path: str, root: str, link: Optional[str]) -> Candidate:
    number = int(match[match.lastindex or 0])
    if match.lastgroup == "epoch":
        return Candidate(path, root, NAME, None, match[0], "epoch", number, link)
    return Candidate(path, root, NAME, number, match[0], link=link)


def _is_accelerate(path: str) -> bool:
    try:
        return any(name.startswith("random_states_") for name in read_folder(path).files)
    except OSError:
        return False


def _weights(folder: Folder) -> set[str]:
    return {name for name in folder.files if _WEIGHTS.fullmatch(name)}


def judge(candidate: Candidate) -> Checkpoint:
    """Valid when trainer_state.json is there, weights are there and no file is damaged."""
    judgement = Judgement(candidate)
    folder = judgement.open()
    if folder is None:
        return judgement.checkpoint()
    _judge_state(judgement, folder)
    nested = _judge_deepspeed(judgement, folder)
    fsdp = _judge_fsdp(judgement, folder)
    weights = _weights(folder)
    for name in sorted(weights):
        judgement.data(folder.child(name))
    if any(dcp.HF_SHARD.fullmatch(name) for name in folder.files):
        dcp.judge_hf_shards(judgement, folder)
        weights |= {name for name in folder.files if dcp.HF_SHARD.fullmatch(name)}
    for name in sorted(folder.files - weights):
        if _SIDE_TENSORS.fullmatch(name):
            judgement.data(folder.child(name))
        elif name.endswith(".index.json"):
            _judge_index(judgement, folder, name)
    _judge_parts(judgement, weights)
    for name in sorted((*folder.dangling, *folder.special)):
        if _WEIGHTS.fullmatch(name) or _SIDE_TENSORS.fullmatch(name) or name == STATE:
            judgement.problem(f"{plain(name)} is {'a dangling link' if name in folder.dangling else 'no regular file'}")
    if not (weights or nested or fsdp or _judge_named_adapters(judgement, folder)):
        judgement.lacks.append("model weights")
    if not (nested or fsdp or any(_OPTIMIZER.fullmatch(name) for name in folder.files)):
        judgement.lacks.append("optimizer state")
    # without its scheduler the Trainer does not load the optimizer either, and does not say so
    if not any(name.startswith("scheduler.") for name in folder.files):
        judgement.lacks.append("scheduler state")
    _compare_rank_states(judgement, folder)
    return judgement.checkpoint()


def _judge_state(judgement: Judgement, folder: Folder) -> None:
    if STATE in folder.files:
        verdict = judgement.side(folder.child(STATE))
        state = read_json(folder.child(STATE)) if verdict.size else None
        if isinstance(state, dict) and "log_history" in state:
            judgement.real_run = True  # only the Trainer writes that: its tensors are no placeholders
    elif _ACCELERATE.fullmatch(os.path.basename(folder.path)):
        if not any(name.startswith("random_states_") for name in folder.files):
            judgement.problem("random_states_*.pkl is missing: it is written last, so saving did not end")
    elif any(name.startswith("random_states_") for name in folder.files) or "latest" in folder.files:
        # Accelerate without Trainer, or DeepSpeed's own part ended: missing only if other checkpoints have it
        judgement.lacks.append(STATE)
    else:
        judgement.problem(f"{STATE} is missing: it is written last, so saving did not end")


def _compare_rank_states(judgement: Judgement, folder: Folder) -> None:
    """Random states, one per rank and the last that Accelerate writes. Gaps are normal on node-local disks, in every save."""
    ranks = {int(match[1]) for name in folder.files if (match := _RANK_STATE.fullmatch(name))}
    if not ranks:
        judgement.lacks.append("random states")
    missing = set(range(max(ranks, default=-1) + 1)) - ranks
    if missing and len(missing) < _MOST_RANKS:
        judgement.lacks.append(f"random states of rank {ranks_text(missing)}")


def _judge_deepspeed(judgement: Judgement, folder: Folder) -> bool:
    tag = deepspeed.read_tag(folder)
    inner = sorted(name for name in folder.dirs if re.fullmatch(r"global_step\d{1,18}", name))
    if tag is None and not inner:
        return False
    judgement.storage = deepspeed.NAME
    if tag is None:
        judgement.problem(f"{inner[-1]} is there but DeepSpeed's latest is missing: saving did not end")
    elif tag not in folder.dirs:
        judgement.problem(f"latest names {plain(tag) or 'nothing'}, which is missing")
    else:
        states = judgement.folder(folder.child(tag))
        if states is not None:
            deepspeed.judge_folder(judgement, states)
    return True


def _judge_fsdp(judgement: Judgement, folder: Folder) -> bool:
    """``pytorch_model_fsdp_0/`` and ``optimizer_0/``, each a DCP folder."""
    names = sorted(n for n in folder.dirs if re.fullmatch(r"(?:pytorch_model_fsdp|optimizer)_\d+|distcp_checkpoint", n))
    for name in names:
        inside = judgement.folder(folder.child(name))
        if inside is not None:
            dcp.judge_folder(judgement, inside, prefix=f"{name}/")
    if names:
        judgement.storage = dcp.NAME
    return bool(names)


def _judge_named_adapters(judgement: Judgement, folder: Folder) -> bool:
    """PEFT puts adapters that have a name into a folder of that name."""
    any_weights = False
    for name in sorted(folder.dirs)[:16]:
        inside = judgement.folder(folder.child(name))
        for file in sorted(_weights(inside)) if inside else []:
            any_weights = True
            judgement.data(folder.child(f"{name}/{file}"))
    return any_weights


def _judge_index(judgement: Judgement, folder: Folder, name: str) -> None:
    judgement.side(folder.child(name))
    index = read_json(folder.child(name))
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if isinstance(weight_map, dict):
        wanted = {value for value in weight_map.values() if isinstance(value, str)}
        for shard in sorted(wanted - folder.files)[:8]:
            judgement.problem(f"{plain(shard)}, named in {plain(name)}, is missing")


def _judge_parts(judgement: Judgement, weights: set[str]) -> None:
    """``model-00001-of-00003.safetensors``: the name itself says how many belong."""
    parts: dict[tuple[str, int, str], set[int]] = {}
    for name in weights:
        match = _OF.fullmatch(name)
        if match:
            key = (match["stem"], int(match["parts"]), match["ext"])
            parts.setdefault(key, set()).add(int(match["part"]))
    for (stem, count, ext), present in sorted(parts.items()):
        for part in [p for p in range(1, count + 1) if p not in present][:8]:
            shard = f"{stem}-{part:05d}-of-{count:05d}.{ext}"
            judgement.problem(f"{plain(shard)} is missing")
