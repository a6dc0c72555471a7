"""One reader per framework.

A reader is a module with two functions. ``find(folder) -> Found`` reads names only (and the small tracker file): cheap for ten
thousand checkpoints. ``judge(candidate) -> Checkpoint`` looks at the files of one checkpoint and is called for the newest
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aistation_slurm.checkpoints.folder import Folder
from aistation_slurm.checkpoints.layouts import Layout
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found
from aistation_slurm.checkpoints.readers import dcp, deepspeed, hf, lightning, megatron, nemo

__all__ = ["ALL", "Reader", "all_readers"]


class Reader(Protocol):
    """What a reader module offers."""

    @property
    def NAME(self) -> str:
        """Value of ``--framework``."""
        ...

    def find(self, folder: Folder) -> Found:
        """Candidates in this folder by name, in any order. Raises OSError only for the folder's own tracker."""

    def judge(self, candidate: Candidate) -> Checkpoint:
        """Look at one candidate's files. Never raises for what it finds there."""


# In the order in which `auto` asks: the more particular naming first. deepspeed goes before megatron, since
# Megatron-DeepSpeed writes both trackers and loads by `latest`; nemo before lightning, whose file suffix it shares.
ALL: tuple[Reader, ...] = (hf, deepspeed, megatron, nemo, lightning, dcp)


def all_readers(layouts: Sequence[Layout] = ()) -> tuple[Reader, ...]:
    """The known readers and, behind them, the site's own."""
    if not layouts:
        return ALL
    from aistation_slurm.checkpoints.readers import (
        site,
    )  # not loaded at a start where the site has no layout of its own

    return (*ALL, *(site.SiteReader(layout) for layout in layouts))
