"""The GPU part of one look at a node: NVML, bus, driver and earlier looks are read here, and judged by detectors/gpu.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import msgspec

from aistation_slurm.config import Config
from aistation_slurm.detectors import driver_hang, gpu, gpu_processes, rates
from aistation_slurm.detectors.gpu_processes import GpuHolder
from aistation_slurm.detectors.kernel_events import Event
from aistation_slurm.findings import Finding
from aistation_slurm.node import processes
from aistation_slurm.probes import host as host_probe
from aistation_slurm.probes import nvml as nvml_probe
from aistation_slurm.probes import pending, smi_text
from aistation_slurm.probes.child import run_child
from aistation_slurm.probes.gpu_setup import read_setup
from aistation_slurm.probes.gres import gpu_minors
from aistation_slurm.probes.nvml import NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu, has_bus, parse_lspci, read_gpus

__all__ = ["SYSFS_DEADLINE_S", "GpuLook", "captured_gpus", "expected_gpus", "look_at_gpus"]

SYSFS_DEADLINE_S = 3.0
FULL_PROFILE_PATIENCE = 3.0
"""The full profile gives NVML this many deadlines: nobody waits for it, and without persistence mode it is slow."""


@dataclass(frozen=True)
class GpuLook:
    findings: Sequence[Finding]
    nvml: NvmlSnapshot
    pci: Sequence[PciGpu]


def look_at_gpus(
    config: Config,
    node: str,
    boot: str,
    now: float,
    events: Sequence[Event],
    log_error: str,
    earlier: Sequence[rates.Look] = (),
    profile: str = "quick",
) -> GpuLook:
    """events: of GPUs and NVSwitches, of this boot. log_error: why the kernel log could not be read, "" where it was.

    earlier: looks of this boot, oldest first.
    """
    root, state_dir, settings = Path(config.probe.root), Path(config.node.state_dir), config.probe
    if profile == "full":
        patience = settings.nvml_deadline_s * FULL_PROFILE_PATIENCE
        settings = msgspec.structs.replace(settings, nvml_deadline_s=patience)
    bus, bus_stuck = pending.call(
        "pci", lambda step: msgspec.to_builtins(read_gpus(root, step)), SYSFS_DEADLINE_S, state_dir, boot
    )
    pci = msgspec.convert(bus.value or [], list[PciGpu])
    asked, nvml_stuck = pending.call("nvml", nvml_probe.question(settings), settings.nvml_deadline_s, state_dir, boot)
    nvml = nvml_probe.snapshot(asked)
    whole = not host_probe.inside_job()
    facts = gpu.GpuFacts(
        nvml,
        pci,
        events,
        expected_gpus(config, node),
        whole,
        log_error,
        bus.error,
        config.expect,
        [look for look in earlier if look.gpus],
        now,
        read_setup(root),
        has_bus(root) and not bus.error,
    )
    found = gpu.findings(facts, _has_hcas(root))
    if found:
        holders = _holders(nvml) if whole else None
        if nvml.gpus:
            found += gpu_processes.findings(holders, gpu.Names(facts), config.epilog.protect)
        blocked = [stuck for stuck in (bus_stuck, nvml_stuck) if stuck]
        found.append(_driver_hang(blocked, asked.error if asked.late else "", config.probe.hang_confirm_s))
    return GpuLook(found, nvml, pci)


def captured_gpus(root: Path, config: Config, node: str, events: Optional[Sequence[Event]]) -> GpuLook:
    """The same of a captured tree. events: None where it holds no kernel log.

    There is no NVML in it, but beside sys/ may lie what nvidia-smi and lspci printed (``nvidia-smi*``, ``lspci*``).
    """
    pci = read_gpus(root) or parse_lspci(_printed(root, "lspci*"))
    nvml = smi_text.parse(_printed(root, "nvidia-smi*"))
    gres = msgspec.structs.replace(config.node, gres_conf=str(root / "etc/slurm/gres.conf"))
    facts = gpu.GpuFacts(
        nvml,
        pci,
        events or (),
        expected_gpus(msgspec.structs.replace(config, node=gres), node),
        log_error=None if events is None else "",
        want=config.expect,
        setup=read_setup(root),
        has_bus=has_bus(root),
    )
    return GpuLook(gpu.findings(facts, _has_hcas(root)), nvml or NvmlSnapshot(absent=True), pci)


def _printed(root: Path, pattern: str) -> str:
    texts = []
    for path in sorted(root.glob(pattern)):
        try:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def expected_gpus(config: Config, node: str) -> Optional[int]:
    """From the configuration, else the device files that gres.conf names for this node."""
    if config.expect.gpus is not None:
        return config.expect.gpus
    minors = gpu_minors(Path(config.node.gres_conf), node)
    return len(minors) if minors else None


def _has_hcas(root: Path) -> bool:
    try:
        return any(path.name.startswith("mlx") for path in (root / "sys/class/infiniband").iterdir())
    except OSError:
        return False


def _holders(nvml: NvmlSnapshot) -> list[GpuHolder]:
    """Who holds the GPUs, and whether a job that is on this node ties each of them to it."""
    held = [(g.pci, p) for g in nvml.gpus if g.pci for p in g.processes]
    if not held:
        return []
    live = processes.live_jobs()
    found = []
    for pci, process in held:
        facts = processes.read_process(process.pid)
        if facts is None:
            continue
        jobs = {*facts.cgroup_jobs, *facts.ancestor_jobs} | ({facts.env_job} if facts.env_job is not None else set())
        found.append(GpuHolder(pci, process.pid, facts.name, facts.uid, bool(jobs & live), process.used))
    return found


def _driver_hang(blocked: Sequence[pending.Blocked], late: str, confirm_s: float) -> Finding:
    maintenance = ""
    if any(b.looks >= 2 for b in blocked):
        # where even this cannot be told, it is not told: the hang stands
        maintenance = str(run_child(host_probe.driver_work, SYSFS_DEADLINE_S).value or "")
    return driver_hang.finding(blocked, late, confirm_s, maintenance)
