"""RDMA ports from sysfs (/sys/class/infiniband; kernel Documentation/ABI/stable/sysfs-class-infiniband).

What the file says is parsed once: ``4: ACTIVE`` -> ``ACTIVE``, ``400 Gb/sec (4X NDR)`` -> 400 Gb/s, 4 lanes, NDR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

__all__ = ["PortSnapshot", "parse_rate", "read_ports"]


@dataclass(frozen=True)
class PortSnapshot:
    """One port. rate_gbps: None where unreadable. virtual: an SR-IOV virtual function (``device/physfn`` exists).

    lid: 0 where none was assigned or the port is Ethernet. counters: those of ``counters/`` that were read.
    """

    hca: str
    port: int
    state: str
    phys_state: str
    rate_gbps: Optional[float]
    lanes: Optional[int]
    speed: str
    link_layer: str
    lid: int = 0
    virtual: bool = False
    pci: str = ""
    board_id: str = ""
    firmware: str = ""
    counters: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """``mlx5_3/1``."""
        return f"{self.hca}/{self.port}"

    @property
    def infiniband(self) -> bool:
        return self.link_layer == "InfiniBand"


def parse_rate(text: str) -> tuple[Optional[float], Optional[int], str]:
    """``100 Gb/sec (2X HDR)`` -> (100.0, 2, "HDR"); (None, None, "") where it is not of that form."""
    match = re.match(r"\s*([\d.]+)\s*Gb/sec(?:\s*\((\d+)X(?:\s+(\w+))?\))?", text)
    if match is None:
        return None, None, ""
    return float(match.group(1)), int(match.group(2)) if match.group(2) else None, match.group(3) or ""


def read_ports(root: Path) -> list[PortSnapshot]:
    """Every port of every RDMA device, sorted by device (by number, not by text) and port."""
    try:
        devices = sorted((root / "sys/class/infiniband").iterdir(), key=lambda p: _natural(p.name))
    except OSError:
        return []
    found = []
    for device in devices:
        ports = device / "ports"
        try:
            numbers = sorted(int(p.name) for p in ports.iterdir() if p.name.isdigit())
        except OSError:
            continue
        found += [_port(device, number) for number in numbers]
    return found


def _port(device: Path, number: int) -> PortSnapshot:
    port = device / "ports" / str(number)
    rate, lanes, speed = parse_rate(_line(port / "rate"))
    lid = _line(port / "lid")
    counters = {}
    for name in ("port_rcv_data", "port_xmit_data", "link_downed", "symbol_error"):
        value = _line(port / "counters" / name)
        if value.isdigit():
            counters[name] = int(value)
    link = device / "device"
    return PortSnapshot(
        hca=device.name,
        port=number,
        state=_word(_line(port / "state")),
        phys_state=_word(_line(port / "phys_state")),
        rate_gbps=rate,
        lanes=lanes,
        speed=speed,
        link_layer=_line(port / "link_layer") or "InfiniBand",
        lid=int(lid, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", lid) else 0,
        virtual=(link / "physfn").exists() or (link / "physfn").is_symlink(),
        pci=link.resolve().name if link.exists() else "",
        board_id=_line(device / "board_id"),
        firmware=_line(device / "fw_ver"),
        counters=counters,
    )


def _natural(name: str) -> list[object]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _word(text: str) -> str:
    """``4: ACTIVE`` -> ``ACTIVE``; ``5: LinkUp`` -> ``LinkUp``."""
    return text.partition(":")[2].strip() if ":" in text else text


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
