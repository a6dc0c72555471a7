"""The fabric's part of one look at a node: ports from sysfs, drivers' statistics now and then, counters against earlier looks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import msgspec

from aistation_slurm.config import Config
from aistation_slurm.detectors import fabric
from aistation_slurm.detectors.fabric.pfc import STATISTICS
from aistation_slurm.findings import Finding, Scope, Status
from aistation_slurm.node import fabric_memory
from aistation_slurm.node.fabric_memory import CAPTURES, LIVE
from aistation_slurm.probes import host, pending
from aistation_slurm.probes.dcb import read_pfc
from aistation_slurm.probes.ethtool import captured_statistics, read_statistics
from aistation_slurm.probes.rdma import PortSnapshot, read_ports

__all__ = ["ask_drivers", "look", "look_at_capture"]

DEADLINE_S = 3.0


def look(config: Config, boot: str) -> tuple[list[PortSnapshot], list[Finding]]:
    """Ports and findings of this node. Waits no longer than its deadlines; what blocks is ``unknown``."""
    root, state_dir = Path(config.probe.root), Path(config.node.state_dir)
    read, _ = pending.call(
        "rdma", lambda step: msgspec.to_builtins(read_ports(root, step)), DEADLINE_S, state_dir, boot
    )
    if read.error:
        return [], [Finding("fabric.port_state", Status.UNKNOWN, fabric.HCAS, read.error, scope=Scope.SHARED)]
    ports = msgspec.convert(read.value or [], list[PortSnapshot])
    memory = fabric_memory.load(str(state_dir), LIVE, boot)
    # after loading: what another process has stored meanwhile must not lie in the future
    uptime_s = host.uptime_s()
    clock = uptime_s if uptime_s != float("inf") else time.monotonic()
    statistics = ask_drivers(config, ports, memory, clock, boot)
    memory.ports = fabric.counted(ports, config.expect, memory.ports, clock, uptime_s, config.fabric, statistics)
    if memory.ports:
        fabric_memory.store(str(state_dir), LIVE, boot, memory)
    known = [_with_pfc(port, memory.pfc) for port in ports]
    return ports, fabric.findings(known, config.expect, uptime_s, memory.ports, config.fabric)


def look_at_capture(root: Path, config: Config, now: float) -> tuple[list[PortSnapshot], list[Finding]]:
    """Ports and findings of a captured tree. Its counters are judged where the same tree, or an earlier capture of the same boot of
    the same node, was looked at before. now: unix time."""
    ports, uptime_s = read_ports(root), host.uptime_s(root)
    key, clock = fabric_memory.capture_key(root), fabric_memory.capture_clock(root, now)
    memory = fabric_memory.load(config.node.state_dir, CAPTURES, key)
    statistics = {name: captured_statistics(root, name) for name in _interfaces(ports, config)}
    histories = fabric.counted(ports, config.expect, memory.ports, clock, uptime_s, config.fabric, statistics)
    # that a port is gone is told of a running node only
    memory.ports = {key: histories[key] for key in map(fabric.history_key, ports) if key in histories}
    if any(history.last for history in memory.ports.values()):
        fabric_memory.store(config.node.state_dir, CAPTURES, key, memory)
    return ports, fabric.findings(ports, config.expect, uptime_s, memory.ports, config.fabric)


def _interfaces(ports: Sequence[PortSnapshot], config: Config) -> list[str]:
    """Those of the RoCE ports that jobs use; of a bond, its slaves."""
    mine = fabric.used_by_jobs(fabric.judged(ports, config.expect))
    netdevs = [p.netdev for p in mine if p.kind == "roce" and p.netdev is not None]
    return [name for netdev in netdevs for name in netdev.slaves or (netdev.name,)]


def ask_drivers(
    config: Config, ports: Sequence[PortSnapshot], memory: fabric_memory.Memory, clock: float, boot: str
) -> dict[str, dict[str, int]]:
    """Statistics by interface; empty where it is not time to ask, or not this machine's tree."""
    every, interfaces = config.fabric.ethtool_every_s, _interfaces(ports, config)
    due = not memory.ports or memory.asked_at < 0 or clock - memory.asked_at >= every
    if not interfaces or not every or not due or Path(config.probe.root) != Path("/"):
        return {}
    memory.asked_at = clock
    state_dir = Path(config.node.state_dir)

    def ask(step: Callable[[str], None]) -> list[object]:
        return [read_pfc(interfaces, step), read_statistics(interfaces, STATISTICS, step)]

    asked, _ = pending.call("ethtool", ask, DEADLINE_S, state_dir, boot)
    memory.pfc, statistics = msgspec.convert(asked.value or ({}, {}), tuple[dict[str, str], dict[str, dict[str, int]]])
    return statistics


def _with_pfc(port: PortSnapshot, pfc: dict[str, str]) -> PortSnapshot:
    """Of a bond, what all its slaves say."""
    names = port.netdev.slaves or (port.netdev.name,) if port.netdev is not None else ()
    told = sorted({pfc[name] for name in names if name in pfc})
    return dataclasses.replace(port, settings={**port.settings, "pfc": ", ".join(told)}) if told else port
