"""Which HCA is near which GPU, by the PCIe bridges between them. Pure.

GPUDirect RDMA wants both below one PCIe switch (nvidia-smi topo's PIX and PXB); over the host bridge (PHB) it is slower,
and between sockets (SYS) much slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BRIDGE", "SWITCH", "SYSTEM", "Near", "distance", "nearest", "nearness"]

SWITCH, BRIDGE, SYSTEM = "same PCIe switch", "same host bridge", "over the CPU interconnect"
PciPath = tuple[str, ...]
"""From the host bridge (``pci0000:15``) down to the device; see probes/pci_path."""


@dataclass(frozen=True)
class Near:
    """hcas: the nearest ones, sorted; more than one where they are equally near."""

    hcas: tuple[str, ...]
    how: str


def distance(a: PciPath, b: PciPath) -> int:
    """Links to pass from one to the other; between host bridges one more than any way within one."""
    shared = _shared(a, b)
    return len(a) + len(b) - 2 * shared + (1000 if not shared else 0)


def nearness(a: PciPath, b: PciPath) -> str:
    shared = _shared(a, b)
    return SWITCH if shared > 1 else BRIDGE if shared else SYSTEM


def nearest(gpus: Mapping[str, PciPath], hcas: Mapping[str, PciPath]) -> dict[str, Near]:
    """By name of the GPU; empty where no HCA is known."""
    if not hcas:
        return {}
    found = {}
    for gpu, path in gpus.items():
        best = min(distance(path, other) for other in hcas.values())
        names = sorted(name for name, other in hcas.items() if distance(path, other) == best)
        found[gpu] = Near(tuple(names), nearness(path, hcas[names[0]]))
    return found


def _shared(a: PciPath, b: PciPath) -> int:
    """Bridges from the top that both hang below."""
    count = 0
    for left, right in zip(a[:-1], b[:-1]):
        if left != right:
            break
        count += 1
    return count
