"""What is known about one checkpoint, before and after its files were looked at. Values only; no file access here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, Optional

__all__ = ["Candidate", "Checkpoint", "Found", "Grade", "Tracker"]


class Grade(IntEnum):
    """How much a file, or the weakest data file of a checkpoint, shows. Ordered.

    ``TORN`` is proof of damage. ``EMPTY`` (no bytes, or zero bytes only) and ``PLACEHOLDER`` (a few bytes or plain text
    where tensors belong) are damage only where other files of the same run hold more
    (docs/decisions/0003-checkpoint-integrity.md). ``CONTENT`` is whole as far as header and size can tell.
    """

    TORN = 0
    EMPTY = 1
    PLACEHOLDER = 2
    CONTENT = 3


class Candidate(NamedTuple):
    """A name that follows a framework's convention; nothing inside it was read.

    path: absolute. root: the folder that a ``{dir}`` in resume arguments means. step: optimizer steps, None when the
    name does not say. family and number order candidates without a step (``hpc_ckpt_10``); number also orders versions
    of the same step (``-v1``). link: target text of a dangling symbolic link.
    """

    path: str
    root: str
    framework: str
    step: Optional[int] = None
    tag: str = ""
    family: str = ""
    number: int = 0
    link: Optional[str] = None
    unfinished: str = ""
    """Name of a marker file that says that saving did not end."""
    last_resort: str = ""
    """Why it is chosen only where nothing else is valid (a universal checkpoint needs another way of loading)."""
    template: str = ""
    """Resume arguments of a site's own layout."""
    older: str = ""
    """Path of the checkpoint before it, of the same run: what that has more of is a sign."""


@dataclass(frozen=True)
class Tracker:
    """The file in which a framework notes its newest checkpoint: a hint, and the mark that saving ended.

    target: path of the checkpoint it names (whether or not that exists); None when its text names nothing.
    """

    name: str
    text: str
    target: Optional[str]


@dataclass
class Found:
    """What one reader saw in one folder."""

    candidates: list[Candidate] = field(default_factory=list)
    tracker: Optional[Tracker] = None
    other_tracker: Optional[Tracker] = None
    """A second one, of which the framework takes no notice when it loads."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint after a look at its files.

    framework: ``megatron``, ``deepspeed``, ``hf``, ``lightning``, ``dcp``, ``nemo``, with the storage format behind a plus
    where it is another framework's (``hf+deepspeed``). why: reason when not valid; for a valid one a remark or empty.
    mtime: unix seconds of the folder or file, 0.0 unknown. missing_ranks: gaps in the shard numbering. grade: of its
    weakest data file; seen: of its strongest. doubt: what the grade is based on. lacks: parts that this checkpoint does not
    have and that others of the same run may have. empty_shards: shards without a byte, normal for a rank that has nothing.
    rewritten: a sign, no proof, that a later save into the same folder did not end.
    """

    path: Path
    step: Optional[int]
    framework: str
    valid: bool
    why: str = ""
    mtime: float = 0.0
    root: Path = Path("/")
    tag: str = ""
    missing_ranks: tuple[int, ...] = ()
    grade: Grade = Grade.CONTENT
    seen: Grade = Grade.CONTENT
    doubt: str = ""
    lacks: tuple[str, ...] = ()
    empty_shards: tuple[str, ...] = ()
    unreadable: bool = False
    last_resort: str = ""
    template: str = ""
    rewritten: str = ""

    def as_json(self) -> dict[str, object]:
        """The fields of the JSON contract (path, step, framework, valid, why) and more."""
        out: dict[str, object] = {
            "path": str(self.path),
            "step": self.step,
            "framework": self.framework,
            "valid": self.valid,
            "why": self.why,
            "mtime": self.mtime,
        }
        if self.tag:
            out["tag"] = self.tag
        if self.missing_ranks:
            out["missing_ranks"] = list(self.missing_ranks)
        return out
