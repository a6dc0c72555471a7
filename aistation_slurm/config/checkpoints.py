"""Section ``[checkpoints]`` of aistation.toml."""

from __future__ import annotations

import msgspec

from aistation_slurm.checkpoints.layouts import Layout


class CheckpointLayout(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A site's own layout of checkpoints (docs/checkpoints.md); jobs reach it through ``--ais-resume=auto``."""

    name: str
    """Value of ``aistation ckpt inspect --framework``."""
    glob: str
    """Shell pattern of a checkpoint's file or folder, with ``{step}`` for its digits: ``ckpt_{step}``."""
    resume_args: str
    """What ``AISTATION_RESUME_ARGS`` becomes: ``--restore {path}``; a job's ``--ais-resume-args`` goes before it."""
    marker: str = ""
    """File that is written when saving has ended, inside or beside the checkpoint: ``DONE``, ``{name}.done``."""
    require: tuple[str, ...] = ()
    """Shell patterns of files below the checkpoint, each of which must match one, and none of them empty."""
    shards: str = ""
    """Pattern of numbered shards below the checkpoint, from 0 or 1 on: ``shard_{i}_of_{n}.bin``, or without ``{n}``."""

    def __post_init__(self) -> None:
        self.layout()

    def layout(self) -> Layout:
        """The same for the readers of checkpoints. Raises ValueError, whose text begins with the key."""
        return Layout(**msgspec.structs.asdict(self))


class Checkpoints(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How checkpoints are read, beyond the frameworks that AIStation knows."""

    layout: tuple[CheckpointLayout, ...] = ()

    def __post_init__(self) -> None:
        names = [layout.name for layout in self.layout]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"layout: the name {twice!r} is given twice")
