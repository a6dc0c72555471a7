"""The only code that talks to Slurm; version differences live here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm.client import Job, Node, SlurmClient

if TYPE_CHECKING:  # the gate, which runs without third-party packages, imports a module of this package
    from aistation_slurm.config import Config

__all__ = ["Job", "Node", "SlurmClient", "connect"]


def connect(config: Config) -> SlurmClient:
    """The client of the configured backend. Makes no request by itself."""
    if config.slurm.backend == "pyslurm":
        raise SlurmUnavailable("slurm.backend = pyslurm is not available in this release; set it to auto or cli")
    from aistation_slurm.slurm.cli_backend import CliBackend

    return CliBackend(config.slurm)
