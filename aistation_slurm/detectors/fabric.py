"""Fabric findings from port snapshots. Pure. A fabric finding never drains by itself: many nodes may see one cause."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Optional

from aistation_slurm.config import Expect
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["expected_rate", "findings", "judged"]

SETTLE_S = 180.0
"""After boot a port passes through INIT until the subnet manager has seen it."""


def judged(ports: Sequence[PortSnapshot], want: Expect) -> list[PortSnapshot]:
    """Ports of physical functions that are not excluded. The PCI function number says nothing: only physfn does."""
    return [p for p in ports if not p.virtual and not any(fnmatchcase(p.hca, pattern) for pattern in want.ignore_hcas)]


def findings(ports: Sequence[PortSnapshot], want: Expect, uptime_s: float) -> list[Finding]:
    """``fabric.port_state`` and ``fabric.rate`` for each judged port."""
    mine = judged(ports, want)
    out: list[Finding] = []
    up = sum(1 for p in mine if p.infiniband and p.state == "ACTIVE")
    enough = want.hca_ports is not None and up >= want.hca_ports
    for port in mine:
        out.append(_state(port, enough, want.hca_ports is not None, uptime_s))
        if port.state == "ACTIVE" and port.infiniband:
            out.append(_rate(port, mine, want))
    found = sum(1 for p in mine if p.infiniband)
    if want.hca_ports is not None and found < want.hca_ports:
        text = f"{found} InfiniBand ports found, expected {want.hca_ports}"
        out.append(Finding("fabric.port_state", Status.FAIL, "HCAs", text, Action.INSPECT, Scope.SHARED))
    return out


def _state(port: PortSnapshot, enough: bool, counted: bool, uptime_s: float) -> Finding:
    check, device = "fabric.port_state", port.name
    where = f"{port.state or 'unreadable'}, physical state {port.phys_state or 'unreadable'}"
    if not port.state:
        return Finding(check, Status.UNKNOWN, device, where, scope=Scope.SHARED, device=device)
    if port.state == "ACTIVE":
        return Finding(check, Status.OK, device, where, scope=Scope.SHARED, device=device)
    if enough:
        text = f"{where}; not one of the ports that this node is expected to have up"
        return Finding(check, Status.OK, device, text, scope=Scope.SHARED, device=device)
    if port.state in ("INIT", "ARMED") and uptime_s < SETTLE_S:
        text = f"{where}, {uptime_s:.0f} s after boot"
        return Finding(check, Status.WARN, device, text, Action.NONE, Scope.SHARED, device)
    if not port.infiniband and not counted:
        # second ports of Ethernet cards are often not cabled
        text = f"{where}, Ethernet, not expected by the configuration"
        return Finding(check, Status.WARN, device, text, Action.CHECK_CABLE, Scope.SHARED, device)
    if not counted and not _was_up(port):
        if port.phys_state == "Disabled":
            return Finding(check, Status.OK, device, f"{where}: switched off", scope=Scope.SHARED, device=device)
        text = f"{where}, never up since boot"
        return Finding(check, Status.WARN, device, text, Action.CHECK_CABLE, Scope.SHARED, device)
    text = f"{where}, expected ACTIVE"
    return Finding(check, Status.FAIL, device, text, Action.CHECK_CABLE, Scope.SHARED, device)


def _was_up(port: PortSnapshot) -> bool:
    """Signs that this port has been in use since boot: a LID, traffic, or a link that went down."""
    if port.phys_state == "LinkUp":
        return True
    traffic = port.counters.get("port_rcv_data", 0) or port.counters.get("link_downed", 0)
    return bool(traffic) or (0 < port.lid < 0xC000)


def expected_rate(port: PortSnapshot, ports: Sequence[PortSnapshot], want: Expect) -> tuple[Optional[float], str]:
    """Gb/s that this port should reach, and where the number comes from."""
    if want.rate_gbps is not None:
        return want.rate_gbps, "configured"
    peers = [
        p.rate_gbps
        for p in ports
        if p.infiniband and p.board_id == port.board_id and p.state == "ACTIVE" and p is not port
    ]
    known = [r for r in peers if r is not None]
    if len(known) >= 2 and len(set(known)) == 1:
        return known[0], f"as the {len(known)} other ports of its kind"
    return None, ""


def _rate(port: PortSnapshot, ports: Sequence[PortSnapshot], want: Expect) -> Finding:
    check, device = "fabric.rate", port.name
    wanted, source = expected_rate(port, ports, want)
    if port.rate_gbps is None:
        return Finding(check, Status.UNKNOWN, device, "the rate cannot be read", scope=Scope.SHARED, device=device)
    seen = f"{port.rate_gbps:g} Gb/s" + (f" ({port.lanes}X {port.speed})" if port.lanes else "")
    if wanted is None:
        return Finding(check, Status.OK, device, f"{seen}, no rate expected", scope=Scope.SHARED, device=device)
    if port.rate_gbps < wanted:
        text = f"{seen}, expected {wanted:g} Gb/s ({source})"
        return Finding(check, Status.FAIL, device, text, Action.CHECK_CABLE, Scope.SHARED, device)
    return Finding(check, Status.OK, device, seen, scope=Scope.SHARED, device=device)
