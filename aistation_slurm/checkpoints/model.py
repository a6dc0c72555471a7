"""A checkpoint as it lies on disk, and what a reader found in one directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

__all__ = ["Checkpoint", "Found"]


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint. ``step`` is the optimizer step it was saved at; None where the layout does not tell.

    order: sorts by age within its directory (newest greatest), for layouts whose names carry no step. files: regular
    files whose header and size decide about tearing. weights: the layout's weight files are there (an outer check
    compares with the siblings). tag: the name by which a tracker file points at it.
    """

    path: Path
    framework: str
    step: Optional[int] = None
    why: str = ""
    order: tuple[float, ...] = ()
    files: tuple[Path, ...] = ()
    weights: bool = True
    tag: str = ""

    @property
    def valid(self) -> bool:
        return not self.why


@dataclass
class Found:
    """Everything one reader says about a directory.

    preferred: tag or name that the layout's own tracker points at and that content confirms may be chosen before newer
    ones. trackers: file name -> text, for people and for comparing.
    """

    checkpoints: list[Checkpoint] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    trackers: dict[str, str] = field(default_factory=dict)
    preferred: str = ""
