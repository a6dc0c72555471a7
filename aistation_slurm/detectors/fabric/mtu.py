"""``fabric.mtu``: one RoCE interface with a smaller MTU than its like in the node. A warning.

RDMA over Ethernet takes the largest of 256, 512 ... 4096 bytes that fits into the interface's MTU with its own headers,
so 1500 gives 1024 and 9000 gives 4096; both ends of a connection use the smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from aistation_slurm.config import Expect
from aistation_slurm.detectors.fabric.judged import most_common
from aistation_slurm.detectors.fabric.verdict import HCAS, verdict
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["mtu_findings", "rdma_mtu"]

CHECK = "fabric.mtu"
_HEADERS = 40 + 8 + 12 + 4 + 28 + 4
"""GRH or IPv6, UDP, BTH, extended transport headers (XRC and atomic), ICRC: kernel include/rdma/ib_addr.h, iboe_get_mtu."""


def rdma_mtu(netdev_mtu: int) -> int:
    """Bytes of payload in an RDMA packet over this interface."""
    return max((size for size in (4096, 2048, 1024, 512) if size + _HEADERS <= netdev_mtu), default=256)


def mtu_findings(ports: Sequence[PortSnapshot], want: Expect) -> list[Finding]:
    """ports: those that jobs use. Nothing where no interface is known."""
    known = [p for p in ports if p.kind == "roce" and p.state == "ACTIVE" and _mtu(p) is not None]
    bad = [finding for p in known for finding in _mtu_finding(p, known, want)]
    if bad or not known:
        return bad
    sizes = sorted({_mtu(p) or 0 for p in known})
    told = ", ".join(f"{size} (RDMA {rdma_mtu(size)})" for size in sizes)
    return [verdict(CHECK, Status.OK, HCAS, f"interface MTU {told} on {len(known)} ports")]


def _mtu(port: PortSnapshot) -> Optional[int]:
    return port.netdev.mtu if port.netdev is not None else None


def _mtu_finding(port: PortSnapshot, known: Sequence[PortSnapshot], want: Expect) -> list[Finding]:
    mtu, source = want.mtu, "configured"
    if mtu is None:
        mtu, source = most_common([p for p in known if p.model == port.model], _mtu), "as most of its kind have it"
    mine = _mtu(port) or 0
    if mtu is None or mine >= mtu:
        return []
    name = port.netdev.name if port.netdev else ""
    text = f"MTU of {name} is {mine} (RDMA {rdma_mtu(mine)}), expected {mtu} (RDMA {rdma_mtu(mtu)}; {source})"
    return [verdict(CHECK, Status.WARN, port, text, Action.INSPECT)]
