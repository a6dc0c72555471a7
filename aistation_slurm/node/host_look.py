"""The host part of one look at a node: facts of /proc and /sys are read here, and judged by detectors/host_*.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.detectors import host_events, host_memory, host_storage, host_system, site_checks
from aistation_slurm.detectors.kernel_events import Event
from aistation_slurm.detectors.rates import Look
from aistation_slurm.findings import Finding
from aistation_slurm.node.slow_facts import SlowFacts
from aistation_slurm.probes import host as host_probe
from aistation_slurm.probes import host_memory as memory_probe
from aistation_slurm.probes import storage, system
from aistation_slurm.probes.system import Census

__all__ = ["captured_host", "census_due", "look_at_host"]

CENSUS_EVERY_S = 300.0
"""A look at every process costs as much as the rest of the host, so zombies are counted this often. Blocked processes, of
which the kernel keeps the number, are looked for as soon as there is one."""


def look_at_host(
    config: Config,
    boot: str,
    now: float,
    earlier: Sequence[Look],
    census: Optional[Census],
    slow: Optional[SlowFacts],
    events: Sequence[Event] = (),
) -> list[Finding]:
    """census: None where the processes were not looked at. slow: None where they were not asked. events: the kernel's."""
    root, want = Path(config.probe.root), config.expect
    found = _facts_of_tree(root, config, events)
    found += host_memory.memory_findings(host_probe.read_memory(root), want)
    disks = host_probe.read_disks(want.disk_paths, Path(config.node.state_dir), boot)
    found += host_storage.disk_findings(disks, want)
    answers = slow.mounts if slow is not None else ()
    found += host_storage.mount_findings(storage.read_mounts(root), storage.read_fstab(root), answers, want)
    found += host_system.process_findings(census, earlier, now, want)
    if slow is not None:
        found += host_system.clock_findings(slow.clock, want)
        found += host_system.service_findings(slow.services)
        found += site_checks.findings(slow.site)
    return found


def captured_host(root: Path, config: Config, now: float, events: Sequence[Event] = ()) -> list[Finding]:
    """Of a captured tree; what it does not hold is left out."""
    found, want = _facts_of_tree(root, config, events), config.expect
    if (root / "proc/meminfo").is_file():
        found += host_memory.memory_findings(host_probe.read_memory(root), want)
    mounts = storage.read_mounts(root)
    if mounts is not None:
        found += host_storage.mount_findings(mounts, storage.read_fstab(root), (), want)
    found += host_system.process_findings(system.read_census(root), (), now, want)
    return found


def _facts_of_tree(root: Path, config: Config, events: Sequence[Event]) -> list[Finding]:
    memory, want = host_probe.read_memory(root), config.expect
    controllers = memory_probe.read_controllers(root)
    return [
        *host_memory.memory_error_findings(controllers, memory, host_probe.uptime_s(root), want),
        *host_memory.swap_findings(memory, want),
        *host_memory.kernel_findings(memory_probe.read_taint(root)),
        *host_storage.nvme_findings(storage.read_drives(root), want),
        *host_events.findings(events),
    ]


def census_due(root: Path, earlier: Sequence[Look], now: float, thorough: bool) -> Optional[Census]:
    """A census where one is due, else None."""
    last = max((look.time for look in earlier if look.stuck is not None), default=0.0)
    if thorough or system.blocked_now(root) or now - last >= CENSUS_EVERY_S:
        return system.read_census(root)
    return None
