"""One reader per framework.

A reader is a module with two functions. ``find(folder) -> Found`` reads names only (and the small tracker file): cheap for ten
thousand checkpoints. ``judge(candidate) -> Checkpoint`` looks at the files of one checkpoint and is called for the newest
first.
"""

from __future__ import annotations

from typing import Protocol

from aistation_slurm.checkpoints.folder import Folder
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found
from aistation_slurm.checkpoints.readers import dcp, deepspeed, hf, lightning, megatron, nemo

__all__ = ["ALL", "Reader", "by_name"]


class Reader(Protocol):
    """What a reader module offers."""

    NAME: str

    def find(self, folder: Folder) -> Found:
        """Candidates in this folder by name, in any order. Raises OSError only for the folder's own tracker."""

    def judge(self, candidate: Candidate) -> Checkpoint:
        """Look at one candidate's files. Never raises for what it finds there."""


# In the order in which `auto` asks: the more particular naming first. deepspeed goes before megatron, since
# Megatron-DeepSpeed writes both trackers and loads by `latest`; nemo before lightning, whose file suffix it shares.
ALL: tuple[Reader, ...] = (hf, deepspeed, megatron, nemo, lightning, dcp)


def by_name(name: str) -> Reader:
    """The reader called ``name``. Raises KeyError."""
    return {reader.NAME: reader for reader in ALL}[name]
