"""GPU findings from NVML, the PCI bus, the driver's /proc and kernel events. Pure; each family has a file of its own."""

from __future__ import annotations

from aistation_slurm.detectors import (
    gpu_clocks,
    gpu_memory,
    gpu_nvlink,
    gpu_pcie,
    gpu_presence,
    gpu_setup,
    gpu_telemetry,
    gpu_xid,
)
from aistation_slurm.detectors.gpu_facts import GpuFacts, Names
from aistation_slurm.findings import Finding

__all__ = ["GpuFacts", "Names", "findings"]


def findings(facts: GpuFacts, rdma: bool = False) -> list[Finding]:
    """All findings of the gpu family except ``gpu.driver_hang`` and ``gpu.orphan_process``. None on a node that has no GPU and
    should have none. rdma: the node has HCAs for GPU traffic."""
    if not (facts.pci or facts.gpus or facts.expected or facts.pci_error or facts.events):
        return []
    names = Names(facts)
    return [
        gpu_presence.count(facts),
        *gpu_presence.lost(facts, names),
        *gpu_xid.findings(facts, names),
        *gpu_memory.findings(facts, names),
        *gpu_telemetry.findings(facts, names),
        *gpu_nvlink.findings(facts, names),
        *gpu_clocks.findings(facts, names),
        *gpu_pcie.findings(facts, names),
        *gpu_setup.findings(facts, names, rdma),
    ]
