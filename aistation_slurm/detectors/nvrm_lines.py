"""The NVIDIA drivers' kernel messages: each pattern with a sample. All are matched at the beginning of a record."""

from __future__ import annotations

import re
from typing import Optional

__all__ = [
    "ADDRESS",
    "DRIVER_LOADED",
    "INIT_FAILED",
    "LINK",
    "NOTICE",
    "NVLINK",
    "NVRM",
    "OFF_BUS",
    "OFF_BUS_XID",
    "RECOVERY_ACTIONS",
    "SERIAL",
    "SXID",
    "SXID_DETAIL",
    "SXID_FAULT",
    "UUID",
    "WORDS",
    "XID",
    "gpu_key",
    "recovery_action",
    "severity_word",
    "who",
]

_PCI = r"(?:PCI:)?([0-9a-fA-F]+:[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2})?(?:\.[0-7])?)"

NVRM = re.compile(r"NVRM:")

# NVRM: Xid (PCI:0000:0f:00): 119, pid=5521, name=python3, Timeout after 6s ...
# NVRM: Xid (0000:03:00): 13, 0003 00000000 ...      NVRM: Xid (PCI:0000:17:00 GPU-I:05): 45, pid=..., name=..., Ch 00000008
# The comma is part of the form: a line that ends inside the number is cut short, and 7 may be 79.
XID = re.compile(rf"NVRM:\s*Xid\s*\({_PCI}(?:\s+[^)]*)?\):\s*(\d+)\s*,\s*(.*)", re.DOTALL)

# pid=5521, name=python3, Ch 00000008       pid='<unknown>', name=<unknown>, GPU has ...
_WHO = re.compile(r"pid=('?<?[\w ]*>?'?)(?:\([^)]*\))?,\s*(?:name=(.*?)(?:,\s+|$))?(.*)", re.DOTALL)

# NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x...)
NVLINK = re.compile(r"(\w+)\s+(Non-?fatal|Fatal)\s+XC(\d+)\s+i\d+\s+Link\s+(-?\d+)\s*(?:\(|$)", re.IGNORECASE)

# NVRM: Xid (PCI:0000:3b:00): 74, pid=..., name=..., NVLink: fatal error detected on link 3(0x10000, 0x0, ...)
LINK = re.compile(r"NVLink: .*?\blink (\d+)\b", re.IGNORECASE)

# GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)
_RECOVERY = re.compile(
    r"GPU recovery action changed from\s+0x[0-9a-f]+\s+\([^)]*\)\s+to\s+0x([0-9a-f]+)\s+\(([^)]*)\)", re.IGNORECASE
)
RECOVERY_ACTIONS = {
    # value, the same as NVML's GPU recovery action (nvml.h): (our name, action, words)
    0: ("none", "none", "None"),
    1: ("gpu_reset", "gpu_reset", "GPU Reset"),
    2: ("reboot", "reboot", "Node Reboot"),
    3: ("drain_p2p", "gpu_reset", "Drain P2P"),
    4: ("drain_and_reset", "gpu_reset", "Drain and Reset"),
    5: ("recover_imex_domain", "inspect", "Recover IMEX Domain"),
    6: ("bus_reset", "gpu_reset", "Bus Reset"),
    7: ("reboot", "reboot", "System Reboot"),
}

# nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up
# nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 63 Sub-engine instance 00
# nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Data {0x10000000, ...}
SXID = re.compile(rf"nvidia-nvswitch(\d+):\s*SXid\s*\({_PCI}\):\s*(\d+)\s*,\s*(.*)", re.DOTALL)
SXID_FAULT = re.compile(r"(Non-?fatal|Fatal)\s*,\s*(?:Link\s+(-?\d+)\s*)?(.*)", re.IGNORECASE | re.DOTALL)
SXID_DETAIL = re.compile(r"(?:Severity\s+\d|Data\s*\{|Engine\s)", re.IGNORECASE)

# NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.        NVRM: GPU at 0000:02:00.0 has fallen off the bus.
# NVRM: The NVIDIA GPU 0000:b3:00.0
# NVRM: (PCI ID: 10de:26b5) installed in this system has
# NVRM: fallen off the bus and is not responding to commands.            (one record or three)
OFF_BUS_XID = 79
OFF_BUS = re.compile(r"fallen\s+(?:NVRM:\s+)?off\s+the\s+bus", re.IGNORECASE)
NOTICE = re.compile(rf"NVRM: The NVIDIA GPU {_PCI}")
ADDRESS = re.compile(r"\b((?:[0-9a-fA-F]{4,8}:)[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b")

# NVRM: GPU at PCI:0000:91:00: GPU-aaaaaaaa-c55b-d076-fa0e-000000000001
UUID = re.compile(rf"NVRM: GPU at {_PCI}: (GPU-[0-9a-fA-F-]+)")
# NVRM: GPU Board Serial Number: 1650000000001               NVRM: GPU 0000:91:00.0: GPU serial number is 1650000000001.
SERIAL = re.compile(rf"NVRM: (?:GPU {_PCI}: )?GPU (?:Board )?serial number(?: is|:)\s*(\w+)", re.IGNORECASE)

# NVRM: GPU 0000:d5:00.0: RmInitAdapter failed! (0x24:0xffff:1220)      NVRM: RmInitAdapter failed! (0x62:0x65:1784)
# NVRM: GPU 0000:d5:00.0: rm_init_adapter failed, device minor number 3     (the second line of the same)
INIT_FAILED = re.compile(rf"NVRM: (?:GPU {_PCI}: )?(RmInitAdapter|rm_init_adapter) failed")

# nvidia-nvlink: Nvlink Core is being initialized, major device number 236       (printed first when the module is loaded)
DRIVER_LOADED = re.compile(r"nvidia-nvlink: Nvlink Core is being initialized")


WORDS = ("nvrm", "nvidia-nv")
"""In lower case: no message without one of them is of any form above."""

_BY_WORD = re.compile(r"\b(Non-?fatal|Fatal)\b", re.IGNORECASE)


def gpu_key(address: str) -> str:
    """Any PCI address form -> ``0000:3b:00``: lower case, four-digit domain where that holds it, no function."""
    parts = address.lower().split(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0000", *parts]
    domain = parts[0].lstrip("0").rjust(4, "0")
    return ":".join([domain, *parts[1:3]]) if len(parts) == 3 else ""


def who(rest: str) -> tuple[Optional[int], Optional[str], str]:
    """(pid, process, what follows) of the text after an Xid's code; None for what the driver did not know."""
    match = _WHO.match(rest)
    if match is None:
        return None, None, rest
    pid = int(match.group(1)) if match.group(1).isdigit() else None
    name = (match.group(2) or "").strip()
    return pid, name if name and name.strip("'") != "<unknown>" else None, match.group(3)


def severity_word(rest: str) -> Optional[str]:
    """``fatal`` or ``nonfatal`` of an NVLink Xid's text in a form that is not known; None where it has no such word.

    The last one counts: what comes first may be the name of a process.
    """
    words = _BY_WORD.findall(rest)
    return words[-1].lower().replace("-", "") if words else None


def recovery_action(rest: str) -> tuple[str, str]:
    """(name, action) of Xid 154's text: the new value, not the old one. ("", "inspect") for a form that is not known."""
    match = _RECOVERY.search(rest)
    return RECOVERY_ACTIONS.get(int(match.group(1), 16) if match else -1, ("", "inspect", ""))[:2]
