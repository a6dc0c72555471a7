"""Which ports are judged, and which of them jobs use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fnmatch import fnmatchcase
from typing import Optional, TypeVar

from aistation_slurm.config import Expect
from aistation_slurm.probes.rdma import PortSnapshot
from aistation_slurm.probes.rdma_counters import SIGNS_OF_USE

__all__ = ["judged", "most_common", "never_used", "used_by_jobs"]

_FIRST_MULTICAST_LID = 0xC000
T = TypeVar("T", bound=Hashable)


def judged(ports: Sequence[PortSnapshot], want: Expect) -> list[PortSnapshot]:
    """Ports of physical functions that are not excluded. The PCI function number says nothing: only physfn does."""
    return [p for p in ports if not p.virtual and not p.software and not _ignored(p, want.ignore_hcas)]


def _ignored(port: PortSnapshot, patterns: Sequence[str]) -> bool:
    """Device names change with the order in which drivers load; PCI address, board and interface do not."""
    names = [port.hca, port.name, port.pci, port.board_id, port.netdev.name if port.netdev else ""]
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names if name)


def used_by_jobs(mine: Sequence[PortSnapshot]) -> list[PortSnapshot]:
    """InfiniBand ports where the node has any (Ethernet beside them is for storage and management), else all."""
    return [p for p in mine if p.infiniband] or list(mine)


def never_used(port: PortSnapshot) -> bool:
    """True for a port that shows no sign of use since boot, and of which that can be told.

    Signs are a link, a LID (it stays when the link goes), traffic, or a link that went down. A dual-port card with one cable
    has such a port, and a server's own network chip; without lid, counters and interface nothing can be told.
    """
    if port.state != "DOWN" or port.phys_state == "LinkUp":
        return False
    lid_known = port.infiniband and port.lid is not None
    if lid_known and 0 < (port.lid or 0) < _FIRST_MULTICAST_LID:
        return False
    signs = [value for name, value in port.counters.items() if name in SIGNS_OF_USE]
    if port.netdev is not None and port.netdev.admin_up is False:
        # switched off: it is a fault only where it carried something before
        return not any(signs)
    if port.netdev is not None and port.netdev.carrier_ups is not None:
        signs.append(port.netdev.carrier_ups)
    if signs:
        return not any(signs)
    return lid_known


def most_common(items: Sequence[PortSnapshot], value: Callable[[PortSnapshot], T]) -> Optional[T]:
    """The value that more than half of the ports have; None where there is none such."""
    ranked = Counter(value(p) for p in items).most_common(1)
    return ranked[0][0] if ranked and ranked[0][1] * 2 > len(items) else None
