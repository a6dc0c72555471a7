"""A real Slurm of several nodes on one machine, in throw-away Linux namespaces. See ``cluster.Cluster``."""

from __future__ import annotations

from tests.cluster.cluster import Cluster
from tests.cluster.namespaces import ClusterError, CommandError

__all__ = ["Cluster", "ClusterError", "CommandError"]
