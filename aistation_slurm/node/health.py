"""One look at a node: probes read, detectors judge, and the report says all of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.config import Config
from aistation_slurm.detectors import fabric, gpu, host
from aistation_slurm.detectors.kernel_events import Event, find_events
from aistation_slurm.findings import Action, Finding, Status, worst
from aistation_slurm.probes import host as host_probe
from aistation_slurm.probes.child import ChildResult, process_state
from aistation_slurm.probes.gres import gpu_minors
from aistation_slurm.probes.klog import KernelLog
from aistation_slurm.probes.nvml import NvmlSnapshot, read_nvml
from aistation_slurm.probes.pci import PciGpu, read_gpus
from aistation_slurm.probes.rdma import read_ports

__all__ = ["GpuRow", "NodeReport", "PortRow", "check_node", "kernel_events"]


@dataclass(frozen=True)
class GpuRow:
    """index: NVML's, -1 unknown. minor: N of /dev/nvidiaN, -1 unknown. pci: ``0000:8f:00.0``."""

    index: int
    minor: int
    pci: str
    uuid: str


@dataclass(frozen=True)
class PortRow:
    """name: ``mlx5_3/1``. judged: False for ports that no check looks at."""

    name: str
    rate_gbps: Optional[float]
    link_layer: str
    judged: bool


@dataclass(frozen=True)
class NodeReport:
    """Everything one look found; ``findings`` has the passed checks too. time: unix seconds."""

    node: str
    boot_id: str
    time: float
    profile: str
    findings: tuple[Finding, ...]
    gpus: tuple[GpuRow, ...] = ()
    ports: tuple[PortRow, ...] = ()
    nvml: NvmlSnapshot = field(default_factory=NvmlSnapshot, compare=False)

    @property
    def status(self) -> Status:
        return worst(self.findings)

    def as_json(self) -> dict[str, Any]:
        """The public JSON shape."""
        return {
            "node": self.node,
            "status": self.status.value,
            "boot_id": self.boot_id,
            "time": self.time,
            "profile": self.profile,
            "findings": [f.as_json() for f in self.findings],
        }


def check_node(
    config: Config,
    *,
    now: float,
    profile: str = "quick",
    only: Sequence[str] = (),
    events: Optional[Sequence[Event]] = None,
    node: str = "",
) -> NodeReport:
    """Look at this node, or at the tree below ``config.probe.root`` when that is not ``/``.

    only: shell patterns of check ids. events: kernel events of this boot already collected (the agent's); None reads the
    kernel log from its beginning. Never raises for a fact that cannot be read: that is an ``unknown`` finding.
    """
    root = Path(config.probe.root)
    name = node or host_probe.node_name()
    pci = read_gpus(root)
    ports = read_ports(root)
    found: list[Finding] = []
    nvml = NvmlSnapshot(absent=True)
    if _wanted("gpu.", only):
        seen = kernel_events(config) if events is None else list(events)
        nvml, hang = _ask_nvml(config, now)
        expected = config.expect.gpus
        if expected is None:
            minors = gpu_minors(Path(config.node.gres_conf), name)
            expected = len(minors) if minors else None
        whole = not host_probe.inside_job()
        found += gpu.findings(gpu.GpuFacts(nvml, pci, seen, expected, whole))
        if found or not nvml.absent:
            found.append(hang)
    if _wanted("fabric.", only):
        found += fabric.findings(ports, config.expect, host_probe.uptime_s())
    if _wanted("host.", only):
        found += host.memory_findings(host_probe.read_memory(root), config.expect)
        if root == Path("/") or profile == "full" or not _is_capture(root):
            found += host.disk_findings(host_probe.read_disks(config.expect.disk_paths), config.expect)
    if only:
        found = [f for f in found if any(fnmatchcase(f.check, pattern) for pattern in only)]
    judged = {p.name for p in fabric.judged(ports, config.expect)}
    return NodeReport(
        node=name,
        boot_id=host_probe.boot_id(),
        time=now,
        profile=profile,
        findings=tuple(found),
        gpus=tuple(_gpu_rows(nvml, pci)),
        ports=tuple(PortRow(p.name, p.rate_gbps, p.link_layer, p.name in judged) for p in ports),
        nvml=nvml,
    )


def _wanted(family: str, only: Sequence[str]) -> bool:
    return not only or any(p.startswith(family) or fnmatchcase(family + "x", p) for p in only)


def _is_capture(root: Path) -> bool:
    """A captured tree says nothing about the disks of the machine that reads it."""
    return not (root / "proc/self").exists()


def kernel_events(config: Config) -> list[Event]:
    """Events of this boot from the kernel log; none where it cannot be read (then NVML and the bus still tell)."""
    try:
        log = KernelLog(config.probe.kmsg)
    except OSError:
        return []
    try:
        return find_events(log.read_new())
    finally:
        log.close()


def _gpu_rows(nvml: NvmlSnapshot, pci: Sequence[PciGpu]) -> list[GpuRow]:
    rows = {g.address: GpuRow(-1, g.minor, g.address, g.uuid) for g in pci}
    for gpu_ in nvml.gpus:
        if gpu_.pci:
            old = rows.get(gpu_.pci)
            minor = gpu_.minor if gpu_.minor >= 0 or old is None else old.minor
            rows[gpu_.pci] = GpuRow(gpu_.index, minor, gpu_.pci, gpu_.uuid or (old.uuid if old else ""))
    return [rows[key] for key in sorted(rows)]


# ---- gpu.driver_hang: the same child, in state D, over the confirmation time and seen at least twice


def _ask_nvml(config: Config, now: float) -> tuple[NvmlSnapshot, Finding]:
    check = "gpu.driver_hang"
    memo = Path(config.node.state_dir) / "nvml-child"
    pending = _read_memo(memo)
    if pending is not None:
        pid, ticks, since, step = pending
        state, started = process_state(pid)
        if started == ticks and state == "D":
            # one blocked child is enough: more would only pile up
            age = now - since
            text = f"{step} blocked in the driver for {age:.0f} s (process {pid} in state D)"
            hung = age >= config.probe.hang_confirm_s
            status, action = (Status.FAIL, Action.REBOOT) if hung else (Status.UNKNOWN, Action.NONE)
            return NvmlSnapshot(error=text), Finding(check, status, "NVIDIA driver", text, action)
        if started == ticks and state:
            _kill(pid)
        memo.unlink(missing_ok=True)
    snapshot, result = read_nvml(config.probe)
    if result.late:
        _write_memo(memo, result, now)
        return snapshot, Finding(check, Status.UNKNOWN, "NVIDIA driver", result.error)
    return snapshot, Finding(check, Status.OK, "NVIDIA driver", "answers")


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _read_memo(path: Path) -> Optional[tuple[int, int, float, str]]:
    """pid, start ticks, unix time of the first sight, step; of the child that an earlier look left behind."""
    try:
        pid, ticks, since, boot, step = path.read_text(encoding="utf-8").split(maxsplit=4)
        if boot != (host_probe.boot_id() or "-"):
            return None
        return int(pid), int(ticks), float(since), step.strip()
    except (OSError, ValueError):
        return None


def _write_memo(path: Path, result: ChildResult, now: float) -> None:
    if not result.pid:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(f"{result.pid} {result.start_ticks} {now:.3f} {host_probe.boot_id() or '-'} {result.step}\n")
        partial.replace(path)
    except OSError:
        _kill(result.pid)
