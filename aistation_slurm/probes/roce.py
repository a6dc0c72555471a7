"""What RoCE needs beside the RDMA port: its GID table, its network interface, and the flow control settings of that.

The kernel keeps these in memory; reading them asks no firmware. Files: ``ports/N/gids``, ``gid_attrs/types`` and
``gid_attrs/ndevs`` (kernel Documentation/ABI/stable/sysfs-class-infiniband), ``/sys/class/net/X`` (.../testing/sysfs-class-net);
``ecn`` and ``tc`` are of NVIDIA's own driver package (MLNX_OFED, DOCA) only.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.probes.rdma_counters import read_line

__all__ = ["Gid", "Netdev", "flow_settings", "netdev_of", "read_gids", "read_netdev"]

GIDS_READ = 32
"""Of up to 256: the driver's own entries come first, addresses follow in the first free places."""
_EMPTY_IN_A_ROW = 8
_IFF_UP = 1


@dataclass(frozen=True)
class Gid:
    """One entry. type: ``RoCE v2``, ``IB/RoCE v1``, "" where not told. ndev: its network interface."""

    index: int
    address: str
    type: str = ""
    ndev: str = ""

    @property
    def ipv4(self) -> bool:
        """``::ffff:a.b.c.d``: made from an IPv4 address of the interface."""
        return ipaddress.IPv6Address(self.address).ipv4_mapped is not None

    @property
    def routable(self) -> bool:
        """True unless link-local (``fe80::``), which is made from the MAC address and is always there."""
        address = ipaddress.IPv6Address(self.address)
        return not (address.is_link_local or address.is_unspecified or address.is_loopback)


@dataclass(frozen=True)
class Netdev:
    """A network interface. None: not told. carrier_ups, carrier_downs: since it was made.

    slaves: of a bond; slaves_down: those of them without carrier.
    """

    name: str
    mtu: Optional[int] = None
    admin_up: Optional[bool] = None
    carrier_downs: Optional[int] = None
    carrier_ups: Optional[int] = None
    slaves: tuple[str, ...] = ()
    slaves_down: tuple[str, ...] = ()


def read_gids(port: str) -> tuple[Gid, ...]:
    """Entries in use of the port folder, the first GIDS_READ at most."""
    found: list[Gid] = []
    empty = 0
    for index in range(GIDS_READ):
        text = read_line(f"{port}/gids/{index}")
        address = _address(text)
        if address is None:
            empty += 1
            if empty >= _EMPTY_IN_A_ROW or (not text and not found):
                break
            continue
        empty = 0
        kind, ndev = read_line(f"{port}/gid_attrs/types/{index}"), read_line(f"{port}/gid_attrs/ndevs/{index}")
        found.append(Gid(index, str(address), kind, ndev))
    return tuple(found)


def _address(text: str) -> Optional[ipaddress.IPv6Address]:
    """None for an entry that is empty (all zero), or no address."""
    if not text.strip("0:"):
        return None
    try:
        return ipaddress.IPv6Address(text)
    except ValueError:
        return None


def netdev_of(device: str, number: int, gids: tuple[Gid, ...]) -> str:
    """Name of the interface of a port; "" where there is none. device: the RDMA device's folder.

    The GID table says it, also for a bond; else it is among the interfaces of the PCI device, where the others belong to the second
    port (``dev_port``) or are representors of virtual functions.
    """
    for gid in gids:
        if gid.ndev:
            return gid.ndev
    folder = f"{device}/device/net"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    own = [
        n for n in names if not re.fullmatch(r"(?:c\d+)?pf\d+(?:vf|sf)\d+", read_line(f"{folder}/{n}/phys_port_name"))
    ]
    ports = {name: read_line(f"{folder}/{name}/dev_port") for name in own} if len(own) > 1 else {}
    return next((name for name in own if ports.get(name) == str(number - 1)), own[0] if own else "")


def read_netdev(root: str, name: str) -> Optional[Netdev]:
    """None where the tree has no such interface."""
    folder = f"{root}/sys/class/net/{name}"
    if not name or "/" in name or not os.path.isdir(folder):
        return None
    flags = read_line(f"{folder}/flags")
    up = bool(int(flags, 16) & _IFF_UP) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", flags) else None
    slaves = tuple(s for s in read_line(f"{folder}/bonding/slaves", 4096).split() if "/" not in s)
    down = tuple(s for s in slaves if read_line(f"{root}/sys/class/net/{s}/carrier") == "0")
    numbers = (_number(f"{folder}/{file}") for file in ("mtu", "carrier_down_count", "carrier_up_count"))
    mtu, downs, ups = numbers
    return Netdev(name, mtu, up, downs, ups, slaves, down)


def flow_settings(device: str, root: str, netdev: str) -> dict[str, str]:
    """ECN (who is told of congestion, on which priorities) and the traffic class of RDMA, where the driver shows them."""
    found = {}
    for side in ("roce_np", "roce_rp"):
        folder = f"{root}/sys/class/net/{netdev}/ecn/{side}/enable"
        if netdev and os.path.isdir(folder):
            on = [p for p in sorted(os.listdir(folder)) if read_line(f"{folder}/{p}") == "1"]
            found[f"ecn {side}"] = "priorities " + ",".join(on) if on else "off"
    traffic_class = read_line(f"{device}/tc/1/traffic_class")
    if traffic_class:
        found["traffic class"] = " ".join(re.findall(r"[!-~]+", traffic_class))
    return found


def _number(path: str) -> Optional[int]:
    text = read_line(path)
    return int(text) if text.isascii() and text.isdigit() else None
