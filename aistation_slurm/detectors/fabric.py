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

_SETTLING = ("INIT", "INITIALIZING", "ARMED", "ACTIVE_DEFER")
_FIRST_MULTICAST_LID = 0xC000


def judged(ports: Sequence[PortSnapshot], want: Expect) -> list[PortSnapshot]:
    """Ports of physical functions that are not excluded. The PCI function number says nothing: only physfn does."""
    return [p for p in ports if not p.virtual and not any(fnmatchcase(p.hca, pattern) for pattern in want.ignore_hcas)]


def findings(ports: Sequence[PortSnapshot], want: Expect, uptime_s: float) -> list[Finding]:
    """``fabric.port_state`` for each judged port, ``fabric.rate`` for each ACTIVE InfiniBand one. Ethernet ports (RoCE) print
    InfiniBand speed names, and are judged by their state only."""
    mine = judged(ports, want)
    # expect.hca_ports counts the ports that jobs use: InfiniBand ones where the node has any
    counted = [p for p in mine if p.infiniband] or mine
    up = sum(1 for p in counted if p.state == "ACTIVE")
    missing = want.hca_ports - up if want.hca_ports is not None else None
    blamed = [p for p in mine if p.state and p.state != "ACTIVE" and not never_used(p)]
    out: list[Finding] = []
    for port in mine:
        # ports that never were up are looked at only where the others do not explain why there are too few
        idle = never_used(port) and (missing is None or missing <= len(blamed))
        spare = missing is not None and missing <= 0
        out.append(_state(port, idle, spare, uptime_s))
        if port.state == "ACTIVE" and port.infiniband:
            out.append(_rate(port, mine, want))
    if want.hca_ports is not None and len(counted) < want.hca_ports:
        text = f"{len(counted)} ports found, expected {want.hca_ports}"
        out.append(_finding("fabric.port_state", Status.FAIL, "HCAs", text, Action.INSPECT))
    return out + _device_files(mine)


def never_used(port: PortSnapshot) -> bool:
    """True for a port that shows no sign of use since boot, and of which that can be told.

    Signs are a link, a LID (it stays when the link goes), traffic, or a link that went down. A dual-port card with one cable
    has such a port; without lid and counters nothing can be told, and the port is judged.
    """
    if port.state != "DOWN" or port.phys_state == "LinkUp":
        return False
    lid_known = port.infiniband and port.lid is not None
    if lid_known and 0 < (port.lid or 0) < _FIRST_MULTICAST_LID:
        return False
    return not any(port.counters.values()) if port.counters else lid_known


def _state(port: PortSnapshot, idle: bool, spare: bool, uptime_s: float) -> Finding:
    check = "fabric.port_state"
    where = f"{port.state or 'unreadable'}, physical state {port.phys_state or 'unreadable'}"
    if not port.state:
        return _finding(check, Status.UNKNOWN, port, where)
    if port.state == "ACTIVE":
        if port.phys_state == "LinkErrorRecovery":
            return _finding(check, Status.WARN, port, where, Action.CHECK_CABLE)
        return _finding(check, Status.OK, port, where)
    if idle:
        return _finding(check, Status.OK, port, f"{where}, never in use since boot: not judged")
    if spare:
        return _finding(check, Status.OK, port, f"{where}; the node has the ports that it is expected to have")
    if port.state in _SETTLING and uptime_s < SETTLE_S:
        return _finding(check, Status.WARN, port, f"{where}, {uptime_s:.0f} s after boot")
    if port.state in _SETTLING:
        text = f"{where}, expected ACTIVE; no subnet manager has taken it"
        return _finding(check, Status.FAIL, port, text, Action.INSPECT)
    return _finding(check, Status.FAIL, port, f"{where}, expected ACTIVE", Action.CHECK_CABLE)


def expected_rate(port: PortSnapshot, ports: Sequence[PortSnapshot], want: Expect) -> tuple[Optional[float], str, bool]:
    """(Gb/s that this port should reach, where the number comes from, whether that is certain enough for a fail).

    Without a configured rate: the highest one among the ports of the same kind of card, certain where most of them reach it.
    """
    if want.rate_gbps is not None:
        return want.rate_gbps, "configured", True
    rates = [
        p.rate_gbps
        for p in ports
        if p.infiniband and p.state == "ACTIVE" and p.board_id == port.board_id and p.rate_gbps is not None
    ]
    if len(rates) < 2:
        return None, "", False
    best = max(rates)
    same = sum(1 for r in rates if r == best)
    return best, f"as {same} of {len(rates)} ports of this kind", same > len(rates) / 2


def _rate(port: PortSnapshot, ports: Sequence[PortSnapshot], want: Expect) -> Finding:
    check = "fabric.rate"
    wanted, source, certain = expected_rate(port, ports, want)
    if port.rate_gbps is None:
        return _finding(check, Status.UNKNOWN, port, "the rate cannot be read")
    seen = f"{port.rate_gbps:g} Gb/s" + (f" ({port.lanes}X {port.speed})" if port.lanes else "")
    if wanted is None:
        return _finding(check, Status.OK, port, f"{seen}, no rate expected")
    if port.rate_gbps < wanted:
        text = f"{seen}, expected {wanted:g} Gb/s ({source})"
        status = Status.FAIL if certain else Status.WARN
        return _finding(check, status, port, text, Action.CHECK_CABLE)
    return _finding(check, Status.OK, port, seen)


def _device_files(ports: Sequence[PortSnapshot]) -> list[Finding]:
    """What libibverbs needs. ``issm`` is not asked for: only a subnet manager uses it, and sites switch it off."""
    hcas = list(dict.fromkeys(p.hca for p in ports))
    out = []
    for name in ("uverbs", "umad"):
        missing = [hca for hca in hcas if _lacks(name, [p for p in ports if p.hca == hca])]
        text = f"no {name} device for {', '.join(missing)}: is its kernel module loaded?"
        if len(missing) == len(hcas) > 1:
            missing, text = ["HCAs"], f"not every HCA has a {name} device: is its kernel module loaded?"
        out += [_finding("fabric.device_files", Status.FAIL, hca, text, Action.INSPECT) for hca in missing]
    return out


def _lacks(name: str, ports: Sequence[PortSnapshot]) -> bool:
    if name == "uverbs":
        return ports[0].verbs is False
    # only InfiniBand needs management datagrams from user space
    return ports[0].umad is False and any(p.infiniband for p in ports)


def _finding(check: str, status: Status, subject: object, evidence: str, action: Action = Action.NONE) -> Finding:
    if isinstance(subject, PortSnapshot):
        return Finding(check, status, subject.name, evidence, action, Scope.SHARED, device=subject.name)
    return Finding(check, status, str(subject), evidence, action, Scope.SHARED)
