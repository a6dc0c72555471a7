"""``fabric.rate``: an ACTIVE InfiniBand port is slower than expected. Gb/s are compared; lanes are only told.

Ethernet ports (RoCE) print InfiniBand speed names, and are not judged by rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from aistation_slurm.config import Expect
from aistation_slurm.detectors.fabric.verdict import verdict
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["expected_rate", "rate_findings"]

CHECK = "fabric.rate"


def rate_findings(mine: Sequence[PortSnapshot], want: Expect) -> list[Finding]:
    return [_rate(p, mine, want) for p in mine if p.state == "ACTIVE" and p.infiniband]


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
    certain = same > len(rates) / 2 and not _another_network(port, ports)
    return best, f"as {same} of {len(rates)} ports of this kind", certain


def _another_network(port: PortSnapshot, ports: Sequence[PortSnapshot]) -> bool:
    """Several ports of the kind run all lanes at one lower speed: rather the storage network than faults of each.

    A link that a bad cable or transceiver slows down has lost lanes, or is alone. No fail for it, unless the rate is configured.
    """
    alike = [p for p in ports if (p.board_id, p.rate_gbps, p.lanes) == (port.board_id, port.rate_gbps, port.lanes)]
    widest = max((p.lanes or 0 for p in ports if p.board_id == port.board_id), default=0)
    return len([p for p in alike if p.state == "ACTIVE"]) > 1 and port.lanes == widest


def _rate(port: PortSnapshot, ports: Sequence[PortSnapshot], want: Expect) -> Finding:
    wanted, source, certain = expected_rate(port, ports, want)
    if port.rate_gbps is None:
        return verdict(CHECK, Status.UNKNOWN, port, "the rate cannot be read")
    seen = f"{port.rate_gbps:g} Gb/s" + (f" ({port.lanes}X {port.speed})" if port.lanes else "")
    if wanted is None:
        return verdict(CHECK, Status.OK, port, f"{seen}, no rate expected")
    if port.rate_gbps < wanted:
        text = f"{seen}, expected {wanted:g} Gb/s ({source})"
        status = Status.FAIL if certain else Status.WARN
        return verdict(CHECK, status, port, text, Action.CHECK_CABLE)
    return verdict(CHECK, Status.OK, port, seen)
