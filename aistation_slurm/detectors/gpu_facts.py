"""What is known of a node's GPUs when its checks judge them, and the names that findings give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from aistation_slurm.config import Expect
from aistation_slurm.detectors.kernel_events import Event, gpu_key
from aistation_slurm.detectors.rates import Look
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.gpu_setup import DriverSetup
from aistation_slurm.probes.nvml import GpuSnapshot, NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu

__all__ = ["GpuFacts", "Names", "about", "device_key"]


@dataclass(frozen=True)
class GpuFacts:
    """What is known of a node's GPUs. expected: from the configuration or gres.conf; None: not judged.

    nvml: None where it was not asked (a captured tree). whole_node: False inside a job's device cgroup, where a missing GPU
    means nothing. log_error: why the kernel log could not be read; None where there is none to read. earlier: looks of this
    boot, oldest first, this one not among them; now: unix time of this one. has_bus: the PCI tree can be seen, so a GPU that is
    not in it is not there.
    """

    nvml: Optional[NvmlSnapshot]
    pci: Sequence[PciGpu]
    events: Sequence[Event] = ()
    expected: Optional[int] = None
    whole_node: bool = True
    log_error: Optional[str] = ""
    pci_error: str = ""
    want: Expect = field(default_factory=Expect)
    earlier: Sequence[Look] = ()
    now: float = 0.0
    setup: DriverSetup = field(default_factory=DriverSetup)
    has_bus: bool = False

    @property
    def gpus(self) -> Sequence[GpuSnapshot]:
        return self.nvml.gpus if self.nvml is not None else ()

    @property
    def working(self) -> Sequence[GpuSnapshot]:
        """Those that NVML can name and that are not lost: a lost GPU is not blamed for its silence too."""
        return [g for g in self.gpus if g.pci and not g.lost]


class Names:
    """``GPU3 0000:8f:00``: the number is the device minor, which survives a lost neighbour; the NVML index does not."""

    def __init__(self, facts: GpuFacts) -> None:
        self._minor = {gpu_key(g.address): g.minor for g in facts.pci}
        for gpu in facts.gpus:
            if gpu.pci and (gpu.minor >= 0 or gpu_key(gpu.pci) not in self._minor):
                self._minor[gpu_key(gpu.pci)] = gpu.minor

    def of(self, pci: str) -> str:
        if not pci:
            return "GPU of unknown address"
        minor = self._minor.get(gpu_key(pci), -1)
        return f"GPU{minor} {gpu_key(pci)}" if minor >= 0 else f"GPU {gpu_key(pci)}"


def device_key(pci: str) -> Optional[str]:
    """``0000:8f:00.0``, the key that ties a finding to what a job was given; None where the address is unknown."""
    return f"{gpu_key(pci)}.0" if pci else None


def about(
    names: Names,
    pci: str,
    check: str,
    status: Status,
    evidence: str,
    action: Action = Action.NONE,
    scope: Scope = Scope.LOCAL,
) -> Finding:
    """A finding about one GPU."""
    return Finding(check, status, names.of(pci), evidence, action, scope, device_key(pci))
