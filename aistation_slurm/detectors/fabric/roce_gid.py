"""``fabric.roce_gid``: each RoCE HCA has a RoCE v2 GID made from an address of its interface, all at the same index. Warnings.

NCCL and UCX pick one GID index for all HCAs of a node (NCCL_IB_GID_INDEX); an HCA whose interface lost its address has
nothing there, and the job hangs or is slow (NVIDIA/nccl#1694, #2428).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Optional

from aistation_slurm.config import Expect
from aistation_slurm.detectors.fabric.verdict import verdict
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.rdma import PortSnapshot
from aistation_slurm.probes.roce import Gid

__all__ = ["gid_findings"]

CHECK = "fabric.roce_gid"


def gid_findings(ports: Sequence[PortSnapshot], want: Expect) -> list[Finding]:
    """One for each ACTIVE RoCE port whose GID table and types can be read; ports: those that jobs use.

    Ports are compared with others of their model: a front-end card has its own addresses, or none.
    """
    roce = [p for p in ports if p.kind == "roce" and p.state == "ACTIVE" and any(g.type for g in p.gids)]
    in_use = {p.model for p in roce if _addressed(p)}
    out = []
    for port in roce:
        if in_use and port.model not in in_use:
            text = "no RoCE v2 GID with an IP address, as all its kind; the node's other cards have them"
            out.append(verdict(CHECK, Status.OK, port, text))
            continue
        usual = _usual_index([p for p in roce if p.model == port.model], want)
        out.append(_gid(port, usual, want.roce_gid_index is not None))
    return out


def _addressed(port: PortSnapshot) -> list[Gid]:
    """RoCE v2 GIDs made from an address: those from IPv4 where there are any, else global IPv6 ones."""
    routable = [g for g in port.gids if g.type == "RoCE v2" and g.routable]
    return [g for g in routable if g.ipv4] or routable


def _usual_index(roce: Sequence[PortSnapshot], want: Expect) -> Optional[int]:
    """The configured index, else one that more than half of the ports have an address at; the lowest such."""
    if want.roce_gid_index is not None:
        return want.roce_gid_index
    counts = Counter(g.index for p in roce for g in _addressed(p))
    return min((index for index, count in counts.items() if count * 2 > len(roce)), default=None)


def _gid(port: PortSnapshot, usual: Optional[int], configured: bool) -> Finding:
    mine = _addressed(port)
    on = f" of {port.netdev.name}" if port.netdev else ""
    if not mine:
        text = f"no RoCE v2 GID with an IP address: has the interface{on} lost its address?"
        return verdict(CHECK, Status.WARN, port, text, Action.INSPECT)
    told = ", ".join(f"{g.address} at index {g.index}" for g in mine[:3])
    if usual is not None and usual not in [g.index for g in mine]:
        source = "configured" if configured else "as most of its kind have it"
        text = f"RoCE v2 GID {told}, expected index {usual} ({source}): one NCCL_IB_GID_INDEX does not fit all"
        return verdict(CHECK, Status.WARN, port, text, Action.INSPECT)
    return verdict(CHECK, Status.OK, port, f"RoCE v2 GID {told}")
