"""What tests that share one cluster do between each other, and how they read a node list."""

from __future__ import annotations

from aistation_slurm.slurm import hostlist as slurm_hostlist
from tests.cluster.cluster import Cluster

__all__ = ["expand", "reset"]


def expand(hostlist: str) -> list[str]:
    """``gpu[1-2]`` as ``["gpu1", "gpu2"]``; empty for Slurm's ``(null)``."""
    return slurm_hostlist.expand(hostlist)


def reset(cluster: Cluster) -> None:
    """End all jobs, repair (and reboot) faulty nodes, give drained ones back: the next test finds a healthy cluster."""
    cluster.reset()
