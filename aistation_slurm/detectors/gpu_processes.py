"""``gpu.orphan_process``: a user's process on a GPU that belongs to no job of this node. Pure, and reported only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Optional

from aistation_slurm.detectors.gpu_facts import Names, about
from aistation_slurm.findings import Action, Finding, Scope, Status

__all__ = ["GpuHolder", "findings"]

CHECK = "gpu.orphan_process"


@dataclass(frozen=True)
class GpuHolder:
    """A process that holds a context on the GPU ``pci``. jobs: those that Slurm put it in; live: whether one of them, or the
    job that it was started by, still is on the node. uid: None where the process has ended or cannot be read."""

    pci: str
    pid: int
    name: str
    uid: Optional[int]
    live: bool
    used: Optional[int] = None


def findings(holders: Optional[Sequence[GpuHolder]], names: Names, protect: Sequence[str]) -> Iterator[Finding]:
    """holders: None where the processes of the node cannot be seen (inside a job). protect: as ``epilog.protect``."""
    if holders is None:
        yield Finding(
            CHECK, Status.UNKNOWN, "GPUs", "inside a job the node's other jobs cannot be seen", scope=Scope.SHARED
        )
        return
    for holder in holders:
        if holder.live or not holder.uid or any(fnmatchcase(holder.name, pattern) for pattern in protect):
            continue  # root's are the system's own services
        memory = f", {holder.used >> 20} MiB" if holder.used else ""
        text = f"process {holder.pid} ({holder.name}, uid {holder.uid}{memory}) belongs to no job on this node"
        yield about(names, holder.pci, CHECK, Status.WARN, text, Action.INSPECT, Scope.SHARED)
