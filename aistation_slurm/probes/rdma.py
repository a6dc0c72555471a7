"""RDMA devices and ports from sysfs (/sys/class/infiniband; kernel Documentation/ABI/stable/sysfs-class-infiniband).

What the file says is parsed once: ``4: ACTIVE`` -> ``ACTIVE``, ``400 Gb/sec (4X NDR)`` -> 400 Gb/s, 4 lanes, NDR.
Reading the state of a sick HCA asks its firmware and can block: call :func:`read_ports` in a child (probes/child.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

__all__ = ["PortSnapshot", "parse_rate", "read_ports"]


@dataclass(frozen=True)
class PortSnapshot:
    """One port. rate_gbps: None where unreadable. virtual: an SR-IOV virtual function (``device/physfn`` exists).

    lid: None where the tree does not say; 0 and 0xffff mean unassigned. counters: those that tell whether the port was ever
    used, read only of ports that are not ACTIVE (each read asks the firmware). verbs, umad: None where that class of device
    files is not there at all.
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

    @property
    def name(self) -> str:
        """``mlx5_3/1``."""
        return f"{self.hca}/{self.port}"

    @property
    def infiniband(self) -> bool:
        return self.link_layer == "InfiniBand"


def parse_rate(text: str) -> tuple[Optional[float], Optional[int], str]:
    """``100 Gb/sec (2X HDR)`` -> (100.0, 2, "HDR"); (None, None, "") where it is not of that form."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec(?:\s*\((\d+)X(?:\s+(\w+))?\))?", text)
    if match is None:
        return None, None, ""
    return float(match.group(1)), int(match.group(2)) if match.group(2) else None, match.group(3) or ""


def read_ports(root: Path, step: Callable[[str], None] = lambda _: None) -> list[PortSnapshot]:
    """Every port of every RDMA device, sorted by device (by number, not by text) and port. step: told each port."""
    try:
        devices = sorted((root / "sys/class/infiniband").iterdir(), key=lambda p: _natural(p.name))
    except OSError:
        return []
    verbs = _owners(root / "sys/class/infiniband_verbs", "uverbs")
    umad = _owners(root / "sys/class/infiniband_mad", "umad")
    found = []
    for device in devices:
        try:
            numbers = sorted(int(p.name) for p in (device / "ports").iterdir() if p.name.isdigit())
        except OSError:
            continue
        for number in numbers:
            step(f"sysfs of {device.name}/{number}")
            has = [_has(owners, device.name, len(devices)) for owners in (verbs, umad)]
            found.append(_port(device, number, *has))
    return found


def _port(device: Path, number: int, verbs: Optional[bool], umad: Optional[bool]) -> PortSnapshot:
    port = device / "ports" / str(number)
    state = _word(_line(port / "state"))
    rate, lanes, speed = parse_rate(_line(port / "rate"))
    lid = _line(port / "lid")
    counters = {}
    if state != "ACTIVE":
        for name in ("port_rcv_data", "port_xmit_data", "link_downed"):
            value = _line(port / "counters" / name)
            if value.isdigit():
                counters[name] = int(value)
    link = device / "device"
    return PortSnapshot(
        hca=device.name,
        port=number,
        state=state,
        phys_state=_word(_line(port / "phys_state")),
        rate_gbps=rate,
        lanes=lanes,
        speed=speed,
        link_layer=_line(port / "link_layer") or "InfiniBand",
        lid=int(lid, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", lid) else None,
        virtual=(link / "physfn").exists() or (link / "physfn").is_symlink(),
        pci=link.resolve().name if link.exists() else "",
        board_id=_line(device / "board_id") or _line(device / "hca_type"),
        firmware=_line(device / "fw_ver"),
        counters=counters,
        verbs=verbs,
        umad=umad,
    )


def _owners(folder: Path, prefix: str) -> Optional[list[str]]:
    """RDMA device of each ``uverbsN`` (or ``umadN``); "" where the file does not say. None: there is no such class."""
    try:
        return [_line(path / "ibdev") for path in folder.iterdir() if path.name.startswith(prefix)]
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
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _word(text: str) -> str:
    """``4: ACTIVE`` -> ``ACTIVE``; ``5: LinkUp`` -> ``LinkUp``."""
    return text.partition(":")[2].strip() if ":" in text else text


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
