"""torch.distributed.checkpoint (DCP): ``step-100/{.metadata,__0_0.distcp,__1_0.distcp}``.

Each rank writes ``__<rank>_<file>.distcp``; the coordinator writes ``.metadata`` when all have ended
(torch/distributed/checkpoint/filesystem.py). It is a pickle, but the shard names stand in it as plain text, so the expected set
is known without reading it as one, and so is their length (shard_lengths.py). Ranks without own tensors may write an empty
shard or none at all. HuggingFaceStorageWriter with ``save_distributed`` writes ``shard-00001-model-00001-of-00002.safetensors``
and nothing else. Folder names: torchtitan ``step-N``; also ``step_N``, ``global_step_N``, ``checkpoint_N``, ``iter_N``,
``epoch_N`` and ``N``.
"""

from __future__ import annotations

import os
import re

from aistation_slurm.checkpoints.folder import Folder, read_folder
from aistation_slurm.checkpoints.integrity import check_file
from aistation_slurm.checkpoints.judgement import Judgement, ranks_text
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found, Grade
from aistation_slurm.checkpoints.shard_lengths import describe

__all__ = ["HF_SHARD", "NAME", "find", "is_dcp", "judge", "judge_folder", "judge_hf_shards"]

NAME = "dcp"
_NUMBERED = re.compile(
    r"(?:(?P<word>step|global_?step|iter|iteration|checkpoint|ckpt|epoch)[-_=]?)?(?P<number>\d{1,18})"
)
_SHARD = re.compile(r"__(\d{1,9})_(\d{1,9})\.distcp")
_REWRITTEN_S = 120.0
HF_SHARD = re.compile(r"shard-(?P<rank>\d{5,7})-model-(?P<part>\d{5})-of-(?P<parts>\d{5})\.safetensors")
_LOOKED_INTO = 16


def is_dcp(folder: Folder) -> bool:
    """True for a folder that holds a DCP checkpoint or a part of one."""
    return ".metadata" in folder.files or any(
        name.endswith(".distcp") or HF_SHARD.fullmatch(name) for name in folder.files
    )


def find(folder: Folder) -> Found:
    """Numbered folders, where the newest of them (by number) hold DCP files; or the folder itself."""
    if is_dcp(folder):
        name = os.path.basename(folder.path)
        match = _NUMBERED.fullmatch(name)
        step = int(match["number"]) if match and match["word"] != "epoch" else None
        return Found([Candidate(folder.path, os.path.dirname(folder.path), NAME, step, tag=name)])
    numbered: list[Candidate] = []
    for name in (*folder.dirs, *folder.dangling):
        match = _NUMBERED.fullmatch(name)
        if match:
            number, word = int(match["number"]), match["word"] or ""
            step = None if word == "epoch" else number
            link = folder.dangling.get(name)
            numbered.append(Candidate(folder.child(name), folder.path, NAME, step, name, word, number, link))
    numbered.sort(key=lambda c: c.number, reverse=True)
    # numbers are common folder names: they are checkpoints only where DCP files lie in one of the newest
    return Found(numbered if any(_may_hold_dcp(c.path) for c in numbered[:_LOOKED_INTO]) else [])


def _may_hold_dcp(path: str) -> bool:
    """True also for a folder that cannot be read: it must be reported, not overlooked."""
    try:
        folder = read_folder(path)
        return is_dcp(folder) or any(is_dcp(read_folder(folder.child(name))) for name in sorted(folder.dirs)[:8])
    except FileNotFoundError:
        return False
    except OSError:
        return True


def judge(candidate: Candidate) -> Checkpoint:
    """Valid when every part that has shards has its ``.metadata`` and all shards that it names."""
    judgement = Judgement(candidate)
    folder = judgement.open()
    if folder is not None:
        if is_dcp(folder):
            judge_folder(judgement, folder)
        else:
            _judge_parts(judgement, folder)
    return judgement.checkpoint()


def _judge_parts(judgement: Judgement, folder: Folder) -> None:
    """``step-100/{model,optimizer}/.metadata``: every part on its own."""
    parts = [part for name in sorted(folder.dirs) if (part := judgement.folder(folder.child(name))) and is_dcp(part)]
    for part in parts:
        judge_folder(judgement, part, prefix=os.path.basename(part.path) + "/")
    if not parts:
        judgement.problem("holds no .metadata and no .distcp file")


def judge_folder(judgement: Judgement, folder: Folder, prefix: str = "") -> None:
    """Report on the DCP files of one folder; ``prefix`` names it in messages (``optimizer_0/``)."""
    shards = [name for name in folder.files if name.endswith(".distcp")]
    if not shards and ".metadata" not in folder.files and any(HF_SHARD.fullmatch(name) for name in folder.files):
        judge_hf_shards(judgement, folder)
        return
    verdicts = judgement.shards(folder, shards)
    for name in sorted(n for n in folder.dangling if n.endswith(".distcp")):
        judgement.problem(f"{prefix}{name} is a dangling link")
    if ".metadata" not in folder.files:
        judgement.problem(
            f"{prefix}.metadata is missing: it is written last, so saving did not end (or not on this host)"
        )
        return
    metadata = folder.child(".metadata")
    expected, lengths = describe(metadata)
    for name, verdict in sorted(verdicts.items()):
        if verdict.size < lengths.get(name, 0):
            judgement.problem(f"{prefix}{name} is cut short ({verdict.size} bytes of {lengths[name]})")
    if expected:
        judgement.real_run = True
        _report_missing(judgement, expected - set(shards), prefix)
    elif check_file(metadata).grade is not Grade.CONTENT:
        _report_missing(judgement, _gaps(shards), prefix)
    if not shards:
        judgement.problem(f"{prefix or 'it '}holds no .distcp file")
    saved = judgement.side(metadata).mtime
    later = min((v.mtime for v in verdicts.values() if v.mtime > saved), default=0.0)
    # where a copy made the files in this order, the next one followed at once
    if later > saved + _REWRITTEN_S:
        judgement.rewritten = f"{prefix}.metadata is older than some shards: a later save over it did not end"


def judge_hf_shards(judgement: Judgement, folder: Folder) -> None:
    """Shards of HuggingFaceStorageWriter: each rank writes its piece of each of the files that the model would have.

    Their headers say how long they are. A missing highest rank cannot be seen, since no file says how many there were.
    """
    judgement.lacks.append("optimizer state")
    matches = [match for name in sorted(folder.files) if (match := HF_SHARD.fullmatch(name))]
    for match in matches:
        judgement.data(folder.child(match.group()))
    counts = {int(match["parts"]) for match in matches}
    if len(counts) > 1:
        judgement.problem(f"has files of different saves side by side (of {', '.join(map(str, sorted(counts)))})")
        return
    ranks = {int(match["rank"]) for match in matches}
    missing = set(range(1, max(ranks) + 1)) - ranks
    if missing:
        judgement.missing_ranks |= {rank - 1 for rank in missing}
        judgement.problem(f"shards {ranks_text(missing)} are missing")
    parts = set(range(1, max(counts) + 1)) - {int(match["part"]) for match in matches}
    if parts:
        judgement.problem(f"files {ranks_text(parts)} of {max(counts)} are missing from every shard")


def _report_missing(judgement: Judgement, missing: set[str], prefix: str) -> None:
    if not missing:
        return
    ranks = {int(match[1]) for name in missing if (match := _SHARD.fullmatch(name))}
    judgement.missing_ranks |= ranks
    judgement.problem(f"{prefix}shards of rank {ranks_text(ranks)} are missing")


def _gaps(shards: list[str]) -> set[str]:
    """Shards that the numbering of ranks leaves out, where .metadata cannot tell which belong."""
    ranks = {int(match[1]) for name in shards if (match := _SHARD.fullmatch(name))}
    highest = max(ranks, default=-1)
    if highest > 1_000_000:
        return set()
    return {f"__{rank}_0.distcp" for rank in range(highest + 1) if rank not in ranks}
