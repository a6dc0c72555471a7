"""Fabric findings from port snapshots. Pure. A fabric finding never drains by itself: many nodes may see one cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Optional

from aistation_slurm.config import Expect, Fabric
from aistation_slurm.detectors.fabric import errors, flap, pfc
from aistation_slurm.detectors.fabric.device_files import device_file_findings
from aistation_slurm.detectors.fabric.firmware import firmware_findings
from aistation_slurm.detectors.fabric.history import CounterHistory, advance
from aistation_slurm.detectors.fabric.judged import judged, never_used, used_by_jobs
from aistation_slurm.detectors.fabric.mtu import mtu_findings
from aistation_slurm.detectors.fabric.port_state import SETTLE_S, gone_findings, state_findings
from aistation_slurm.detectors.fabric.rate import expected_rate, rate_findings
from aistation_slurm.detectors.fabric.roce_gid import gid_findings
from aistation_slurm.detectors.fabric.verdict import HCAS
from aistation_slurm.findings import Finding
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = [
    "HCAS",
    "Histories",
    "counted",
    "expected_rate",
    "findings",
    "history_key",
    "judged",
    "never_used",
    "used_by_jobs",
]

Histories = Mapping[str, CounterHistory]
"""By :func:`history_key`."""


def findings(
    ports: Sequence[PortSnapshot],
    want: Expect,
    uptime_s: float,
    histories: Optional[Histories] = None,
    limits: Fabric = Fabric(),  # noqa: B008  (frozen)
) -> list[Finding]:
    """Every fabric finding. histories: those of :func:`counted` with this look in them; None leaves the counters out."""
    mine = judged(ports, want)
    used = used_by_jobs(mine)
    out = [*state_findings(mine, want, uptime_s), *rate_findings(mine, want), *device_file_findings(mine)]
    out += [*gid_findings(used, want), *mtu_findings(used, want), *firmware_findings(mine), *pfc.setting_findings(used)]
    for port in used:
        history = (histories or {}).get(history_key(port))
        if history is not None and not never_used(port):
            told = (flap.flap_finding(port, history, limits), errors.error_finding(port, history, limits))
            out += [f for f in (*told, pfc.pause_finding(port, history, limits)) if f is not None]
    return out + gone_findings(list(_gone(ports, histories or {}, want).values()))


def history_key(port: PortSnapshot) -> str:
    """Names change when drivers are loaded anew; a card in another slot is another card."""
    return f"{port.kind} {port.name} {port.pci}".strip()


def _gone(ports: Sequence[PortSnapshot], histories: Histories, want: Expect) -> dict[str, str]:
    """Key and name of InfiniBand ports that have a history, and are there neither by name nor in their slot."""
    there = {p.name for p in ports} | {p.pci for p in ports if p.pci}
    found = {}
    for key in histories:
        kind, *names = key.split(" ")
        names.append(names[0].partition("/")[0])
        ignored = any(fnmatchcase(name, pattern) for name in names for pattern in want.ignore_hcas)
        if kind == "ib" and not ignored and not there & set(names):
            found[key] = names[0]
    return found


def counted(
    ports: Sequence[PortSnapshot],
    want: Expect,
    old: Histories,
    now: float,
    uptime_s: float,
    limits: Fabric,
    statistics: Optional[Mapping[str, Mapping[str, int]]] = None,
) -> dict[str, CounterHistory]:
    """The histories of the ports that jobs use, with this look. now: seconds by a clock that never goes back within a boot.

    statistics: of network interfaces (``ethtool -S``), by interface; where this look did not ask, the last ones stand.
    """
    windows = dict.fromkeys(errors.LIMITS, errors.WINDOW_S)
    windows.update(dict.fromkeys(flap.COUNTERS, limits.flap_window_s))
    windows.update(dict.fromkeys(pfc.COUNTERS, pfc.WINDOW_S))
    found = {}
    for port in used_by_jobs(judged(ports, want)):
        values = dict(port.counters)
        if port.netdev is not None and port.netdev.carrier_downs is not None and port.kind == "roce":
            values[flap.CARRIER] = port.netdev.carrier_downs
        if port.netdev is not None and statistics:
            values.update(
                pfc.pause_counters([statistics.get(n, {}) for n in port.netdev.slaves or (port.netdev.name,)])
            )
        key = history_key(port)
        found[key] = advance(old.get(key), values, now, windows, settled=uptime_s >= SETTLE_S)
    # of a port that is gone the last history stays, which tells that it was there
    return {**{key: old[key] for key in _gone(ports, old, want)}, **found}
