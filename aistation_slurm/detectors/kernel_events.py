"""Kernel messages -> events: Xid, SXid, lost GPUs, link, PCIe, NVMe, memory and file system errors.

Pure. Line forms are documented with a sample at each pattern; meanings come from xid.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from aistation_slurm.detectors.xid_table import load_table
from aistation_slurm.probes.klog import Record

__all__ = ["Event", "find_events", "gpu_key"]


@dataclass(frozen=True)
class Event:
    """One thing that happened, of one kernel record (or of several that say the same).

    fatal: the hardware (or driver) cannot go on. drain: the node should be drained for it. superseded: a later line took it
    back (Xid 154 to None). pci: ``0000:3b:00``, domain kept, function dropped.
    """

    kind: str
    raw: str
    time: str = ""
    xid: Optional[int] = None
    sxid: Optional[int] = None
    pci: str = ""
    fatal: bool = False
    drain: bool = False
    action: str = "none"
    synthetic: bool = False
    pid: Optional[int] = None
    process: Optional[str] = None
    unit: str = ""
    link: Optional[int] = None
    cross: Optional[int] = None
    switch: Optional[int] = None
    uuid: Optional[str] = None
    serial: Optional[str] = None
    recovery_action: str = ""
    meaning: str = ""
    classified: str = ""
    superseded: bool = False
    device: str = ""
    details: tuple[str, ...] = field(default=(), compare=False)

    def as_json(self) -> dict[str, Any]:
        """Fields of the public shape; those that do not apply to the kind are left out, pid and process of an Xid stay."""
        always = {"kind", "fatal", "drain", "action", "synthetic", "time", "raw"}
        if self.kind in ("xid", "gpu_lost"):
            always |= {"xid", "pci", "pid", "process", "uuid", "serial"}
        out: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if name == "details":
                continue
            key = "class" if name == "classified" else name
            empty = value is None or value is False or value == "" or value == ()
            if name in always or not empty:
                out[key] = value
        return out


# NVRM: Xid (PCI:0000:0f:00): 119, pid=5521, name=python3, Timeout after 6s ...
# NVRM: Xid (0000:03:00): 13, 0003 00000000 ...      NVRM: Xid (PCI:0000:17:00 GPU-I:05): 45, pid=..., name=..., Ch 00000008
_XID = re.compile(r"(?<![A-Za-z])Xid\s*\((?:PCI:)?([0-9a-fA-F:.]+)(?:\s+[^)]*)?\):\s*(\d+)\b\s*,?\s*(.*)", re.DOTALL)
_PID = re.compile(r"pid=(?:(\d+)|'?<?[\w ]+>?'?)(?:\([^)]*\))?,?\s*(?:name=(.*?)(?:,\s+|$))?(.*)", re.DOTALL)
# NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x...)
_NVLINK = re.compile(r"(\w+)\s+(Non-?fatal|Fatal)\s+XC(\d+)\s+i\d+\s+Link\s+(-?\d+)", re.IGNORECASE)
# GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)
_RECOVERY = re.compile(r"recovery action changed from\s+\S+\s+\([^)]*\)\s+to\s+\S+\s+\(([^)]*)\)", re.IGNORECASE)
_RECOVERY_ACTIONS = {
    # text of the driver: (our name, action); NVML's GPU recovery action has the same five values
    "none": ("none", "none"),
    "gpu reset required": ("gpu_reset", "gpu_reset"),
    "node reboot required": ("reboot", "reboot"),
    "drain p2p": ("drain_p2p", "gpu_reset"),
    "drain and reset": ("drain_and_reset", "gpu_reset"),
}
# nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up
_SXID = re.compile(r"nvidia-nvswitch(\d+):\s*SXid\s*\((?:PCI:)?([0-9a-fA-F:.]+)\):\s*(\d+),\s*(.*)", re.DOTALL)
_SXID_FAULT = re.compile(r"(Non-?fatal|Fatal),\s*(?:Link\s+(-?\d+))?", re.IGNORECASE)
# NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.     NVRM: The NVIDIA GPU 0000:b3:00.0\n(PCI ID: ...) ... fallen off the bus
_OFF_BUS = re.compile(r"fallen\s+off\s+the\s+bus", re.IGNORECASE)
_ADDRESS = re.compile(r"\b((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?\b")
_UUID = re.compile(r"GPU at (?:PCI:)?([0-9a-fA-F:.]+):\s*(GPU-[0-9a-fA-F-]+)")
_SERIAL = re.compile(r"(?:Board Serial Number:|serial number is)\s*(\w+)", re.IGNORECASE)
# mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE         mlx5_core 0000:3b:00.0 ens1f0np0: Link down
_MLX = re.compile(r"mlx5_core\s+([0-9a-fA-F:.]+)\s+(\S+?):\s+(?:Port:\s*(\d+)\s+)?Link\s+(\w+)", re.IGNORECASE)
_LINK_IB = re.compile(r"^(?:\S+\s)?(ib\w+):.*link becomes (ready|down)", re.IGNORECASE)
_OTHERS = (
    # kind, pattern (group 1: device), fatal
    ("pcie_aer", re.compile(r"(?:pcieport|mlx5_core|nvidia|nvme)\s+([0-9a-fA-F:.]+):.*(?:AER|PCIe Bus Error)"), False),
    (
        "nvme",
        re.compile(r"(nvme\d+)(?:n\d+)?: .*(?:I/O \d+.*timeout|controller is down|Removing after probe failure)"),
        False,
    ),
    ("oom", re.compile(r"Out of memory: Killed process (\d+)|oom-kill:.*task=(\S+)"), False),
    ("read_only", re.compile(r"\(([\w-]+)\): .*[Rr]emount(?:ing|ed) (?:filesystem )?read-only"), False),
    ("mce", re.compile(r"(mce|EDAC \w+): .*(?:Hardware Error|Machine Check|\bUE\b)", re.IGNORECASE), False),
)


def gpu_key(address: str) -> str:
    """Any PCI address form -> ``0000:3b:00``: lower case, four-digit domain where that holds it, no function."""
    parts = address.lower().split(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0000", *parts]
    domain = parts[0]
    if len(domain) > 4 and int(domain, 16) <= 0xFFFF:
        domain = domain[-4:]
    return ":".join([domain.rjust(4, "0"), *parts[1:3]])


def find_events(records: Iterable[Record]) -> list[Event]:
    """Events in the order of the log. A GPU that is said to be lost on several lines is one event."""
    found: list[Event] = []
    identity: dict[str, dict[str, str]] = {}
    lost_text: dict[str, int] = {}
    last_gpu = ""
    partial = ""
    for record in records:
        text = record.text
        if partial:
            text, partial = f"{partial} {text}", ""
        uuid = _UUID.search(text)
        serial = _SERIAL.search(text)
        if uuid:
            last_gpu = gpu_key(uuid.group(1))
            identity.setdefault(last_gpu, {})["uuid"] = uuid.group(2)
        if serial:
            address = _ADDRESS.search(text)
            last_gpu = gpu_key(address.group(1)) if address else last_gpu
            identity.setdefault(last_gpu, {})["serial"] = serial.group(1)
            continue
        # the three-line notice of the probe routine may come as three records
        if re.search(r"The NVIDIA GPU\s+[0-9a-fA-F:.]+\s*$", text) or (
            "The NVIDIA GPU" in text and not _OFF_BUS.search(text) and "PCI ID" in text
        ):
            partial = text
            continue
        event = _one(text, record)
        if event is None:
            continue
        if event.kind == "gpu_lost":
            if event.pci in lost_text or any(e.xid == 79 and e.pci == event.pci for e in found):
                continue
            lost_text[event.pci] = len(found)
        elif event.xid == 79 and event.pci in lost_text:
            # the number came after the sentence: the numbered line is the event
            index = lost_text.pop(event.pci)
            found[index] = replace(event, time=found[index].time or event.time)
            continue
        found.append(event)
    found = _supersede(found)
    return [_identify(e, identity.get(e.pci, {})) for e in found]


def _one(text: str, record: Record) -> Optional[Event]:
    sxid = _SXID.search(text)
    if sxid:
        return _sxid(sxid, record)
    xid = _XID.search(text) if "NVRM" in text or text.lstrip().startswith("Xid") else None
    if xid:
        return _xid(xid, record)
    if _OFF_BUS.search(text) and ("NVRM" in text or "NVIDIA" in text):
        address = _ADDRESS.search(text)
        if address:
            row = load_table()[79]
            return Event(
                "gpu_lost", record.raw, record.time, 79, pci=gpu_key(address.group(1)), fatal=True, drain=True,
                action=row.action, synthetic=True, meaning=row.meaning, classified=row.kind,
            )  # fmt: skip
        return None
    link = _MLX.search(text)
    if link:
        state = link.group(4).lower()
        port = f"{link.group(2)}/{link.group(3) or 1}"
        return Event("link", record.raw, record.time, pci=gpu_key(link.group(1)), device=port, unit=state)
    netdev = _LINK_IB.search(text)
    if netdev:
        return Event("link", record.raw, record.time, device=netdev.group(1), unit=netdev.group(2).lower())
    for kind, pattern, fatal in _OTHERS:
        match = pattern.search(text)
        if match:
            return Event(kind, record.raw, record.time, device=match.group(1) or "", fatal=fatal, action="inspect")
    return None


def _sxid(match: re.Match[str], record: Record) -> Optional[Event]:
    """The severity line is the fault; the engine and Data lines that follow are its details."""
    fault = _SXID_FAULT.match(match.group(4))
    if fault is None:
        return None
    fatal = fault.group(1).lower() == "fatal"
    return Event(
        "sxid", record.raw, record.time, sxid=int(match.group(3)), pci=gpu_key(match.group(2)), fatal=fatal, drain=fatal,
        action="reboot" if fatal else "none", switch=int(match.group(1)),
        link=int(fault.group(2)) if fault.group(2) else None,
    )  # fmt: skip


def _xid(match: re.Match[str], record: Record) -> Event:
    code, rest = int(match.group(2)), match.group(3)
    pid: Optional[int] = None
    process: Optional[str] = None
    who = _PID.match(rest)
    if who:
        pid = int(who.group(1)) if who.group(1) else None
        name = (who.group(2) or "").strip()
        process = name if name and name.strip("'") != "<unknown>" else None
        rest = who.group(3)
    row = load_table().get(code)
    kind = row.kind if row else "unknown"
    action = row.action if row else "inspect"
    event = Event(
        "xid", record.raw, record.time, code, pci=gpu_key(match.group(1)), pid=pid, process=process,
        fatal=kind == "fatal", drain=kind == "fatal", action=action, meaning=row.meaning if row else "", classified=kind,
    )  # fmt: skip
    if kind == "by_word":
        word = _NVLINK.search(rest)
        if word is None:
            # a form without the word cannot be judged: shown, not acted on
            return replace(event, action="inspect")
        fatal = word.group(2).lower() == "fatal"
        return replace(
            event, fatal=fatal, drain=fatal, action="gpu_reset" if fatal else "none", unit=word.group(1),
            link=int(word.group(4)), cross=int(word.group(3)),
        )  # fmt: skip
    if kind == "recovery_action":
        told = _RECOVERY.search(rest)
        name, wanted = _RECOVERY_ACTIONS.get(told.group(1).strip().lower() if told else "", ("", "inspect"))
        needed = name not in ("", "none")
        return replace(event, fatal=needed, drain=needed, action=wanted, recovery_action=name)
    return event


def _supersede(events: list[Event]) -> list[Event]:
    """Of a GPU's recovery actions only the last counts; "None" says that the driver needs nothing any more."""
    last = {e.pci: i for i, e in enumerate(events) if e.recovery_action}
    return [
        replace(e, superseded=True, drain=False) if e.recovery_action and last[e.pci] != i else e
        for i, e in enumerate(events)
    ]


def _identify(event: Event, known: dict[str, str]) -> Event:
    """Add uuid and serial where the log itself named them. What is not known is left open, never a reason to drop."""
    if event.kind not in ("xid", "gpu_lost") or not known:
        return event
    return replace(event, uuid=known.get("uuid"), serial=known.get("serial"))
