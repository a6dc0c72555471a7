"""One look at a node: probes read, detectors judge, and the report says all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.config import Config
from aistation_slurm.detectors import ALL, fabric, rates
from aistation_slurm.detectors.kernel_events import WORDS, Event, find_events
from aistation_slurm.detectors.rules import apply_rules
from aistation_slurm.findings import Finding, Status, worst
from aistation_slurm.node import fabric_look, host_look, looks, slow_facts
from aistation_slurm.node.gpu_look import captured_gpus, look_at_gpus
from aistation_slurm.probes import host as host_probe
from aistation_slurm.probes.klog import KernelLog
from aistation_slurm.probes.klog_filter import chosen_lines
from aistation_slurm.probes.klog_text import log_chunks, read_text
from aistation_slurm.probes.nvml import NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["GpuRow", "NodeReport", "PortRow", "check_capture", "check_node", "kernel_events"]

_GPU_EVENTS = ("xid", "sxid", "gpu_lost")


@dataclass(frozen=True)
class GpuRow:
    """index: NVML's, -1 unknown. minor: N of /dev/nvidiaN, -1 unknown. pci: ``0000:8f:00.0``."""

    index: int
    minor: int
    pci: str
    uuid: str


@dataclass(frozen=True)
class PortRow:
    """name: ``mlx5_3/1``. judged: False for ports that no check looks at. kind: ``ib``, ``roce``, ``efa``, ``iwarp``, ``other``."""

    name: str
    rate_gbps: Optional[float]
    link_layer: str
    judged: bool
    kind: str = "ib"


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
            "ports": [
                {"name": p.name, "kind": p.kind, "rate_gbps": p.rate_gbps, "judged": p.judged} for p in self.ports
            ],
        }


def check_node(
    config: Config,
    *,
    now: float,
    profile: str = "quick",
    only: Sequence[str] = (),
    events: Optional[Sequence[Event]] = None,
    node: str = "",
    slow_max_age_s: Optional[float] = None,
) -> NodeReport:
    """Look at this node, whose ``sys`` and ``proc`` are below ``config.probe.root``. now: unix time, for the report.

    only: shell patterns of check ids. events: kernel events of this boot already collected (the agent's); None reads the
    kernel log from its beginning. slow_max_age_s: as in node/slow_facts.py; None is for those in a hurry. Never raises for a
    fact that cannot be read, and never waits longer than its deadlines: that is an ``unknown`` finding.
    """
    root, boot, state_dir = Path(config.probe.root), host_probe.boot_id(), Path(config.node.state_dir)
    name = node or host_probe.node_name()
    found: list[Finding] = []
    nvml = NvmlSnapshot(absent=True)
    stuck: Optional[dict[str, str]] = None
    ports: list[PortSnapshot] = []
    pci: Sequence[PciGpu] = ()
    earlier = looks.load(state_dir, boot, now)
    log_error = _log_error(config.probe.kmsg)
    if events is None:
        wanted = _wanted("gpu", only) or _wanted("host", only)
        events = kernel_events(config) if wanted and not log_error else []
    if _wanted("gpu", only):
        told = [e for e in events if e.kind in _GPU_EVENTS]
        gpus = look_at_gpus(config, name, boot, now, told, log_error, earlier, profile)
        nvml, pci = gpus.nvml, gpus.pci
        found += gpus.findings
    if _wanted("fabric", only):
        ports, judged_ports = fabric_look.look(config, boot)
        found += judged_ports
    if _wanted("host", only) or _wanted("site", only):
        slow = slow_facts.slow_facts(config, boot, now, name, slow_max_age_s)
        census = host_look.census_due(root, earlier, now, profile == "full")
        stuck = census.blocked if census is not None else None
        found += host_look.look_at_host(config, boot, now, earlier, census, slow, events)
    looks.keep(state_dir, boot, earlier, rates.Look(now, rates.gpu_looks(nvml.gpus), stuck))
    kept, rows = _asked_for(found, only, config), tuple(_gpu_rows(nvml, pci))
    return NodeReport(name, boot, now, profile, kept, rows, _port_rows(ports, config), nvml)


def check_capture(root: Path, config: Config, *, now: float, only: Sequence[str] = ()) -> NodeReport:
    """Judge a tree that was copied from a node: ``sys``, ``proc``, perhaps its kernel log. Nothing of this machine is asked.

    What the tree does not hold is left out of the report; there is no NVML in it.
    """
    name = host_probe.captured_name(root)
    found: list[Finding] = []
    ports: list[PortSnapshot] = []
    pci: Sequence[PciGpu] = ()
    log = next((root / path for path in _CAPTURED_LOGS if (root / path).is_file()), None)
    events = find_events(read_text(chosen_lines(log_chunks(log), WORDS))) if log is not None else None
    if _wanted("gpu", only):
        # a log may tell of a GPU that the tree's PCI bus no longer has
        told = None if events is None else [e for e in events if e.kind in _GPU_EVENTS]
        gpus = captured_gpus(root, config, name, told)
        found, pci = [*gpus.findings], gpus.pci
    if _wanted("fabric", only):
        ports, judged_ports = fabric_look.look_at_capture(root, config, now)
        found += judged_ports
    if _wanted("host", only):
        found += host_look.captured_host(root, config, now, events or ())
    kept, rows = _asked_for(found, only, config), tuple(_gpu_rows(NvmlSnapshot(absent=True), pci))
    return NodeReport(name, host_probe.boot_id(root), now, "captured", kept, rows, _port_rows(ports, config))


_CAPTURED_LOGS = (
    "dmesg", "dmesg.txt", "kmsg", "journal.json", "var/log/dmesg", "var/log/kern.log", "var/log/messages", "var/log/syslog"
)  # fmt: skip


def _asked_for(found: Sequence[Finding], only: Sequence[str], config: Config) -> tuple[Finding, ...]:
    """What was asked for, as the site's ``[checks]`` have it."""
    judged = apply_rules(found, config.checks)
    return tuple(f for f in judged if not only or any(fnmatchcase(f.check, pattern) for pattern in only))


def _port_rows(ports: Sequence[PortSnapshot], config: Config) -> tuple[PortRow, ...]:
    judged = {p.name for p in fabric.judged(ports, config.expect)}
    return tuple(PortRow(p.name, p.rate_gbps, p.link_layer, p.name in judged, p.kind) for p in ports)


def _wanted(family: str, only: Sequence[str]) -> bool:
    """Whether any check of the family is asked for, so that the others' probes need not run."""
    mine = [check for check in ALL if check.startswith(f"{family}.")]
    named = any(pattern.startswith(f"{family}.") for pattern in only)
    return not only or named or any(fnmatchcase(check, pattern) for check in mine for pattern in only)


def _log_error(path: str) -> str:
    """Why the kernel log cannot be read; "" where it can."""
    try:
        KernelLog(path).close()
    except OSError as exc:
        return f"{path}: {exc.strerror}; without the kernel log an Xid is not seen"
    return ""


def kernel_events(config: Config) -> list[Event]:
    """Events of this boot from the kernel log; none where it cannot be read (check_node then says so)."""
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
