"""``fabric.port_state``: a port that was in use is not ACTIVE."""

from __future__ import annotations

from collections.abc import Sequence

from aistation_slurm.config import Expect
from aistation_slurm.detectors.fabric.judged import never_used, used_by_jobs
from aistation_slurm.detectors.fabric.verdict import HCAS, verdict
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["SETTLE_S", "gone_findings", "state_findings"]

CHECK = "fabric.port_state"
SETTLE_S = 180.0
"""After boot a port passes through INIT until the subnet manager has seen it."""

_SETTLING = ("INIT", "INITIALIZING", "ARMED", "ACTIVE_DEFER")


def state_findings(mine: Sequence[PortSnapshot], want: Expect, uptime_s: float) -> list[Finding]:
    """One for each judged port, and one where there are fewer ports than expected."""
    # expect.hca_ports counts the ports that jobs use
    counted = used_by_jobs(mine)
    up = sum(1 for p in counted if p.state == "ACTIVE")
    missing = want.hca_ports - up if want.hca_ports is not None else None
    blamed = [p for p in mine if p.state and p.state != "ACTIVE" and not never_used(p)]
    out: list[Finding] = []
    for port in mine:
        # ports that never were up are looked at only where the others do not explain why there are too few
        idle = never_used(port) and (missing is None or missing <= len(blamed))
        spare = missing is not None and missing <= 0
        out.append(_state(port, idle, spare, uptime_s, mine, port in counted))
    if want.hca_ports is not None and len(counted) < want.hca_ports:
        text = f"{len(counted)} ports found, expected {want.hca_ports}"
        out.append(verdict(CHECK, Status.FAIL, HCAS, text, Action.INSPECT))
    return out


def _state(
    port: PortSnapshot, idle: bool, spare: bool, uptime_s: float, mine: Sequence[PortSnapshot], counted: bool
) -> Finding:
    where = f"{port.state or 'unreadable'}, physical state {port.phys_state or 'unreadable'}"
    if port.kind == "roce":
        where += ", RoCE"
    if port.alive is False:
        text = f"PCI configuration of {port.pci or port.hca} reads all ones: the card fell off the bus"
        return verdict(CHECK, Status.FAIL, port, text, Action.REBOOT)
    if not port.state:
        return verdict(CHECK, Status.UNKNOWN, port, where)
    if port.state == "ACTIVE":
        return _active(port, where, counted)
    if idle:
        return verdict(CHECK, Status.OK, port, f"{where}, never in use since boot: not judged")
    if spare:
        return verdict(CHECK, Status.OK, port, f"{where}; the node has the ports that it is expected to have")
    if _alien(port, mine):
        text = f"{where}; nothing shows that it was in use, and the ports of this node that are belong to other cards"
        return verdict(CHECK, Status.OK, port, text)
    if port.state in _SETTLING and uptime_s < SETTLE_S:
        return verdict(CHECK, Status.WARN, port, f"{where}, {uptime_s:.0f} s after boot")
    if port.state in _SETTLING:
        text = f"{where}, expected ACTIVE; no subnet manager has taken it"
        return verdict(CHECK, Status.FAIL, port, text, Action.INSPECT)
    return verdict(CHECK, Status.FAIL, port, f"{where}, expected ACTIVE", Action.CHECK_CABLE)


def gone_findings(gone: Sequence[str]) -> list[Finding]:
    """gone: names of InfiniBand ports that an earlier look of this boot saw, and this one does not. A warning: drivers are
    unloaded on purpose too, and the gate refuses jobs that would use such a port."""
    text = "was there earlier in this boot, and is gone: did the card reset, or its driver go?"
    return [Finding(CHECK, Status.WARN, name, text, Action.INSPECT, Scope.SHARED, device=name) for name in gone]


def _active(port: PortSnapshot, where: str, counted: bool) -> Finding:
    if port.phys_state == "LinkErrorRecovery":
        return verdict(CHECK, Status.WARN, port, where, Action.CHECK_CABLE)
    if port.netdev is not None and port.netdev.slaves_down:
        text = f"{where}; {port.netdev.name} runs without {', '.join(port.netdev.slaves_down)}, which has no carrier"
        # a management bond with one cable is common
        return verdict(CHECK, Status.WARN if counted else Status.OK, port, text, Action.CHECK_CABLE)
    return verdict(CHECK, Status.OK, port, where)


def _alien(port: PortSnapshot, mine: Sequence[PortSnapshot]) -> bool:
    """An Ethernet port without any sign of use, of another driver than all the ports that are up: a server's own network chip
    that can do RDMA too (irdma, bnxt_re)."""
    carrier = port.netdev is not None and port.netdev.carrier_ups
    if port.infiniband or port.state != "DOWN" or port.phys_state == "LinkUp" or port.counters or carrier:
        return False
    up = {_family(p) for p in mine if p.state == "ACTIVE"}
    return bool(up) and _family(port) not in up


def _family(port: PortSnapshot) -> str:
    return port.driver or port.hca.rstrip("0123456789").partition("_")[0]
