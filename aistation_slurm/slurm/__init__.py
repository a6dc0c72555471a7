"""The only code that talks to Slurm; version differences live here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aistation_slurm.slurm.client import Job, Node, SlurmClient

if TYPE_CHECKING:  # the gate, which runs without third-party packages, imports a module of this package
    from aistation_slurm.config import Config

__all__ = ["Job", "Node", "SlurmClient", "connect"]


def connect(config: Config) -> SlurmClient:
    """The client of the configured backend. Makes no request by itself."""
    from aistation_slurm.slurm import pyslurm_backend
    from aistation_slurm.slurm.cli_backend import CliBackend

    wanted = config.slurm.backend
    if wanted == "cli" or (wanted == "auto" and not pyslurm_backend.installed()):
        return CliBackend(config.slurm)
    return pyslurm_backend.PyslurmBackend(config.slurm, required=wanted == "pyslurm")
