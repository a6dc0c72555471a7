"""The public bug reports of areas xid, gpu, ib and roce (tests/cases), and the trees that they describe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).resolve().parents[2] / "cases"
AREAS = ("xid", "gpu", "ib", "roce")
PORT = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}


@dataclass(frozen=True)
class Run:
    """One input of a case (``klog`` text, or a tree of ``ports``, ``pci`` and ``files``) and what must come out."""

    id: str
    given: dict[str, Any]

    @property
    def expected(self) -> dict[str, Any]:
        expected: dict[str, Any] = self.given["expected"]
        return expected


def case(number: str) -> dict[str, Any]:
    (path,) = CASES.glob(f"{number}-*.yaml")
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def runs(kind: str) -> Iterator[Run]:
    """Runs with a kernel log (``klog``) or with a tree (``tree``)."""
    for path in sorted(CASES.glob("*.yaml")):
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        if loaded.get("area") not in AREAS:
            continue
        for given in loaded.get("runs", [loaded]):
            if "expected" in given and ("klog" in given) == (kind == "klog") and "nvml" not in given:
                yield Run(f"{loaded['id']} {given.get('name', '')}".strip(), given)


def build_tree(root: Path, given: dict[str, Any]) -> None:
    """The captured tree of one run."""
    (root / "sys/class/infiniband").mkdir(parents=True)
    (root / "proc").mkdir()
    for number, (name, port) in enumerate(given.get("ports", {}).items()):
        add_port(root, name, number, **port)
    for address, device in given.get("pci", {}).items():
        add_pci(root, address, **device)
    for path, text in given.get("files", {}).items():
        put(root, path, text)


def add_port(root: Path, name: str, number: int = 0, **facts: Any) -> None:
    """One RDMA device below its PCI device, with the links that sysfs has."""
    pci = facts.pop("device", f"0000:{0x10 + number:02x}:00.0")
    device = root / f"sys/devices/pci0000:00/{pci}"
    device.mkdir(parents=True, exist_ok=True)
    if facts.pop("virtual", False):
        (device / "physfn").symlink_to("../0000:3b:00.0")
    folder = device / "infiniband" / name
    for counter, value in facts.pop("counters", {}).items():
        put(folder, f"ports/1/counters/{counter}", f"{value}\n")
    for key in ("board_id", "fw_ver"):
        if key in facts:
            put(folder, key, facts.pop(key) + "\n")
    for key, value in {**PORT, **facts}.items():
        put(folder, f"ports/1/{key}", f"{value}\n")
    (folder / "device").symlink_to(f"../../../{pci}")
    (root / "sys/class/infiniband").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/infiniband" / name).symlink_to(f"../../devices/pci0000:00/{pci}/infiniband/{name}")


def add_pci(root: Path, address: str, config: str = "alive", **facts: str) -> None:
    """A PCI device; ``config`` is alive, ff (off the bus) or empty."""
    device = root / "sys/bus/pci/devices" / address
    for key, value in {"vendor": "0x10de", "class": "0x030200", **facts}.items():
        put(device, key, f"{value}\n")
    content = {"alive": b"\xde\x10\x30\x23" + bytes(60), "ff": b"\xff" * 64, "empty": b""}[config]
    (device / "config").write_bytes(content)


def put(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
