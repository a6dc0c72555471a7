"""GPU memory that nobody seems to use: the sign of a process that nobody can see, or of a driver that lost track. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aistation_slurm.probes.nvml import GpuSnapshot

__all__ = ["leftover_memory"]

MIB = 1 << 20


def leftover_memory(gpus: Sequence[GpuSnapshot], limit_mib: int) -> list[str]:
    """One line for each GPU without a process that has more than ``limit_mib`` in use."""
    return [
        f"GPU{gpu.minor} {gpu.pci}: {gpu.memory_used // MIB} MiB in use and no process shown, limit {limit_mib} MiB"
        for gpu in gpus
        if gpu.memory_used is not None and gpu.memory_used // MIB > limit_mib and not gpu.processes
    ]
