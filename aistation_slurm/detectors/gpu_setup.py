"""How the cards are set up: ``gpu.persistence``, ``gpu.versions``, ``gpu.peermem``, ``gpu.mig``. Pure.

Software and settings, so all of it is reported and none of it drains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, about
from aistation_slurm.detectors.kernel_events import gpu_key
from aistation_slurm.findings import Action, Finding, Scope, Status

__all__ = ["findings"]

_PEERMEM = ("nvidia_peermem", "nv_peer_mem")


def findings(facts: GpuFacts, names: Names, rdma: bool = False) -> Iterator[Finding]:
    """rdma: the node has HCAs for which GPU memory has to be reachable."""
    yield from _persistence(facts, names)
    yield from _versions(facts, names)
    yield from _mig(facts, names)
    if rdma and (facts.pci or facts.gpus):
        yield from _peermem(facts)


def _persistence(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    wanted = facts.want.persistence
    for gpu in facts.working:
        if wanted and gpu.persistence is False:
            text = "persistence mode is off: the driver is loaded anew for each job, and ECC counts are lost"
            yield about(names, gpu.pci, "gpu.persistence", Status.WARN, text, Action.UPDATE_SOFTWARE, Scope.SHARED)


def _versions(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    """Driver as expected and one throughout; VBIOS and InfoROM the same on like cards."""
    check = "gpu.versions"
    running = facts.nvml.driver if facts.nvml is not None else ""
    loaded = facts.setup.version
    driver = loaded or running
    bad = False
    if loaded and running and loaded != running:
        bad = True
        text = f"the loaded driver is {loaded} and the library's {running}: reboot, or load the driver anew"
        yield Finding(check, Status.WARN, "NVIDIA driver", text, Action.REBOOT, Scope.SHARED)
    elif facts.want.driver and driver and driver != facts.want.driver:
        bad = True
        text = f"driver {driver}, expected {facts.want.driver}"
        yield Finding(check, Status.WARN, "NVIDIA driver", text, Action.UPDATE_SOFTWARE, Scope.SHARED)
    for what, told in (("VBIOS", _vbios(facts)), ("InfoROM", _inforom(facts))):
        for model in dict.fromkeys(kind for kind, _ in told.values()):
            mine = {pci: version for pci, (kind, version) in told.items() if kind == model}
            usual = facts.want.vbios if what == "VBIOS" and facts.want.vbios else _usual(mine.values())
            for pci, version in mine.items():
                if version != usual:
                    bad = True
                    other = "expected" if what == "VBIOS" and facts.want.vbios else "most like cards here have"
                    text = f"{what} {version}, {other} {usual}"
                    yield about(names, pci, check, Status.WARN, text, Action.UPDATE_SOFTWARE, Scope.SHARED)
    if driver and not bad:
        yield Finding(check, Status.OK, "NVIDIA driver", f"driver {driver}, like cards alike", scope=Scope.SHARED)


def _usual(versions: Iterable[str]) -> str:
    counted = Counter(versions)
    return max(sorted(counted), key=lambda version: counted[version])


def _vbios(facts: GpuFacts) -> dict[str, tuple[str, str]]:
    """PCI key -> (model, version); the driver's /proc where NVML does not tell."""
    told = {gpu_key(g.address): (g.model or g.name, g.vbios) for g in facts.pci if g.vbios and "?" not in g.vbios}
    told.update({gpu_key(g.pci): (g.name, g.vbios) for g in facts.working if g.vbios})
    return told


def _inforom(facts: GpuFacts) -> dict[str, tuple[str, str]]:
    return {gpu_key(g.pci): (g.name, g.inforom) for g in facts.working if g.inforom}


def _mig(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    wanted = facts.want.mig
    for gpu in facts.working:
        if gpu.mig_pending is None:
            continue
        if gpu.mig_pending != gpu.mig:
            text = f"MIG will be {'on' if gpu.mig_pending else 'off'} after the next reset"
            yield about(names, gpu.pci, "gpu.mig", Status.WARN, text, Action.GPU_RESET, Scope.SHARED)
        elif wanted is not None and gpu.mig != wanted:
            text = f"MIG is {'on' if gpu.mig else 'off'}, expected {'on' if wanted else 'off'}"
            yield about(names, gpu.pci, "gpu.mig", Status.WARN, text, Action.UPDATE_SOFTWARE, Scope.SHARED)


def _peermem(facts: GpuFacts) -> Iterator[Finding]:
    """GPUDirect RDMA needs nvidia-peermem, or DMA-BUF (open kernel modules on Linux 5.12 and newer)."""
    check, subject, modules = "gpu.peermem", "GPUDirect RDMA", facts.setup.modules
    if modules is None or "nvidia" not in modules:
        return
    wanted = facts.want.peermem
    if any(name in modules for name in _PEERMEM):
        yield Finding(check, Status.OK, subject, "nvidia-peermem is loaded", scope=Scope.SHARED)
    elif wanted is None and facts.setup.has_dma_buf:
        yield Finding(check, Status.OK, subject, "no nvidia-peermem; DMA-BUF is there", scope=Scope.SHARED)
    elif wanted is not False:
        text = "nvidia-peermem is not loaded" + ("" if wanted else ", and this driver and kernel offer no DMA-BUF")
        yield Finding(check, Status.WARN, subject, text, Action.UPDATE_SOFTWARE, Scope.SHARED)
