"""A real Slurm of several nodes on one machine, in throw-away Linux namespaces. See ``cluster.Cluster``."""

from __future__ import annotations

from tests.cluster.cluster import Cluster
from tests.cluster.faults import (
    Fault,
    ecc_uncorrectable,
    gpu_lost,
    gpu_missing,
    gpu_process,
    ib_down,
    ib_rate,
    kernel_log,
    memory_low,
    nvlink_down,
    nvml_block,
    nvml_error,
    row_remap,
    throttle,
    xid,
)
from tests.cluster.namespaces import ClusterError, CommandError

__all__ = [
    "Cluster",
    "ClusterError",
    "CommandError",
    "Fault",
    "ecc_uncorrectable",
    "gpu_lost",
    "gpu_missing",
    "gpu_process",
    "ib_down",
    "ib_rate",
    "kernel_log",
    "memory_low",
    "nvlink_down",
    "nvml_block",
    "nvml_error",
    "row_remap",
    "throttle",
    "xid",
]
