"""RDMA devices and ports from sysfs (/sys/class/infiniband; kernel Documentation/ABI/stable/sysfs-class-infiniband).

What the file says is parsed once: ``4: ACTIVE`` -> ``ACTIVE``, ``400 Gb/sec (4X NDR)`` -> 400 Gb/s, 4 lanes, NDR.
Reading the state of a sick HCA asks its firmware and can block: call :func:`read_ports` in a child (probes/child.py).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

from aistation_slurm.probes.rdma_counters import read_counters, read_line
from aistation_slurm.probes.roce import Gid, Netdev, flow_settings, netdev_of, read_gids, read_netdev

__all__ = ["PortSnapshot", "parse_rate", "read_ports"]


@dataclass(frozen=True)
class PortSnapshot:
    """One port. rate_gbps: None where unreadable. virtual: an SR-IOV virtual function (``device/physfn`` exists).

    lid: None where the tree does not say; 0 and 0xffff mean unassigned. counters: since the driver was loaded (see
    probes/rdma_counters). verbs, umad: None where that class of device files is not there at all. software: made of another
    interface (rxe, siw). alive: False where the card's PCI configuration reads all ones.
    gids, netdev and settings (flow control): read of Ethernet ports only.
    """

    hca: str
    port: int
    state: str
    phys_state: str
    rate_gbps: Optional[float]
    lanes: Optional[int]
    speed: str
    link_layer: str
    lid: Optional[int] = None
    virtual: bool = False
    pci: str = ""
    board_id: str = ""
    firmware: str = ""
    counters: dict[str, int] = field(default_factory=dict, compare=False)
    verbs: Optional[bool] = None
    umad: Optional[bool] = None
    driver: str = ""
    node_type: str = ""
    software: bool = False
    alive: Optional[bool] = None
    gids: tuple[Gid, ...] = ()
    netdev: Optional[Netdev] = None
    settings: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """``mlx5_3/1``."""
        return f"{self.hca}/{self.port}"

    @property
    def infiniband(self) -> bool:
        return self.link_layer == "InfiniBand"

    @property
    def kind(self) -> str:
        """``ib``, ``roce``, ``efa``, ``iwarp``, or ``other``: link layers that say nothing."""
        if self.infiniband:
            return "ib"
        if self.driver == "efa" or self.link_layer == "Unspecified":
            return "efa"
        if "RNIC" in self.node_type:
            return "iwarp"
        return "roce" if self.link_layer == "Ethernet" else "other"

    @property
    def model(self) -> str:
        """Ports of the same model are compared with each other."""
        return self.board_id or self.driver or re.sub(r"[\d_].*", "", self.hca)


def parse_rate(text: str) -> tuple[Optional[float], Optional[int], str]:
    """``100 Gb/sec (2X HDR)`` -> (100.0, 2, "HDR"); (None, None, "") where it is not of that form."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec(?:\s*\((\d+)X(?:\s+(\w+))?\))?", text)
    if match is None:
        return None, None, ""
    return float(match.group(1)), int(match.group(2)) if match.group(2) else None, match.group(3) or ""


def read_ports(root: Path, step: Callable[[str], None] = lambda _: None) -> list[PortSnapshot]:
    """Every port of every RDMA device, sorted by device (by number, not by text) and port. step: told each port."""
    folder = root / "sys/class/infiniband"
    try:
        devices = sorted(os.listdir(folder), key=_natural)
    except OSError:
        return []
    verbs = _owners(root / "sys/class/infiniband_verbs", "uverbs")
    umad = _owners(root / "sys/class/infiniband_mad", "umad")
    found = []
    for name in devices:
        device = f"{folder}/{name}"
        try:
            numbers = sorted(int(port) for port in os.listdir(f"{device}/ports") if re.fullmatch(r"[0-9]{1,4}", port))
        except OSError:
            continue
        if not numbers:
            continue
        step(f"sysfs of {name}")
        facts = _device_facts(device)
        facts.update(verbs=_has(verbs, name, len(devices)), umad=_has(umad, name, len(devices)))
        for number in numbers:
            step(f"sysfs of {name}/{number}")
            found.append(_port(str(root), device, name, number, facts))
    return found


def _device_facts(device: str) -> dict[str, object]:
    physfn = f"{device}/device/physfn"
    return {
        "pci": _pci_of(device),
        "driver": os.path.basename(_link(f"{device}/device/driver")),
        "virtual": os.path.lexists(physfn),
        "alive": _alive(f"{device}/device/config"),
        "board_id": _word(read_line(f"{device}/board_id") or read_line(f"{device}/hca_type")),
        "firmware": _word(read_line(f"{device}/fw_ver")),
        "node_type": read_line(f"{device}/node_type"),
        "software": not os.path.lexists(f"{device}/device") and os.path.lexists(f"{device}/parent"),
    }


def _port(root: str, device: str, name: str, number: int, facts: dict[str, object]) -> PortSnapshot:
    port = f"{device}/ports/{number}"
    state = _word(read_line(f"{port}/state"))
    rate, lanes, speed = parse_rate(read_line(f"{port}/rate"))
    lid = read_line(f"{port}/lid")
    link_layer = read_line(f"{port}/link_layer") or "InfiniBand"
    gids: tuple[Gid, ...] = ()
    netdev, settings = None, {}
    if link_layer == "Ethernet" and not facts["virtual"]:
        gids = read_gids(port)
        interface = netdev_of(device, number, gids)
        netdev, settings = read_netdev(root, interface), flow_settings(device, root, interface)
    return PortSnapshot(
        hca=name,
        port=number,
        state=state,
        phys_state=_word(read_line(f"{port}/phys_state")),
        rate_gbps=rate,
        lanes=lanes,
        speed=speed,
        link_layer=link_layer,
        lid=int(lid, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", lid) else None,
        counters={} if facts["virtual"] else read_counters(port, state == "ACTIVE"),
        gids=gids,
        netdev=netdev,
        settings=settings,
        **facts,  # type: ignore[arg-type]
    )


def _pci_of(device: str) -> str:
    """From the link; a copy that followed links has it in ``uevent`` only."""
    target = os.path.basename(_link(f"{device}/device"))
    if target:
        return target
    match = re.search(r"^PCI_SLOT_NAME=(\S+)", read_line(f"{device}/device/uevent", 4096), re.MULTILINE)
    return match.group(1) if match else ""


def _alive(config: str) -> Optional[bool]:
    """None where the configuration cannot be read."""
    try:
        fd = os.open(config, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        head = os.read(fd, 4)
    except OSError:
        return None
    finally:
        os.close(fd)
    return head != b"\xff\xff\xff\xff" if len(head) == 4 else None


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _owners(folder: Path, prefix: str) -> Optional[list[str]]:
    """RDMA device of each ``uverbsN`` (or ``umadN``); "" where the file does not say. None: there is no such class."""
    try:
        return [read_line(f"{folder}/{name}/ibdev") for name in os.listdir(folder) if name.startswith(prefix)]
    except OSError:
        return None


def _has(owners: Optional[list[str]], device: str, devices: int) -> Optional[bool]:
    """Whether the device has its file; None where that cannot be told: no such class, or entries that name no device (then
    only their number counts)."""
    if owners is None:
        return None
    if owners and not any(owners):
        return None if len(owners) >= devices else False
    return device in owners


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _word(text: str) -> str:
    """``4: ACTIVE`` -> ``ACTIVE``; ``5: LinkUp`` -> ``LinkUp``. One line that can be printed, whatever the file holds."""
    tail = text.partition(":")[2] if ":" in text else text
    return " ".join("".join(c if c.isprintable() else " " for c in tail).split())
