"""Kernel messages about links, PCIe, NVMe, memory and file systems: each pattern with a sample.

All are matched at the beginning of a record. None of these events drains by itself.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

__all__ = ["PATTERNS", "WORDS", "find"]

_BDF = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_WHERE = r"(?:[\w .-]+:\d+:\(pid \d+\): |[\w.-]+: )*"
"""Where in a driver the message comes from: ``poll_health:840:(pid 0): ``; some releases write the function's module first."""

Fields = dict[str, Any]


def _pci(address: str) -> str:
    return address.lower().rpartition(".")[0]


def _link_ib(match: re.Match[str]) -> Fields:
    return {
        "kind": "link",
        "pci": _pci(match.group(1)),
        "device": f"{match.group(2)}/{match.group(3)}",
        "state": match.group(4).lower(),
    }


def _link_net(match: re.Match[str]) -> Fields:
    pci = _pci(match.group(1)) if match.group(1) else ""
    return {"kind": "link", "pci": pci, "device": match.group(2), "state": match.group(3).lower()}


def _link_ready(match: re.Match[str]) -> Fields:
    return {"kind": "link", "device": match.group(1), "state": "down" if "not" in match.group(2) else "up"}


def _cable(match: re.Match[str]) -> Fields:
    return {"kind": "cable", "pci": _pci(match.group(1)), "meaning": match.group(2), "action": "inspect"}


def _hca(match: re.Match[str]) -> Fields:
    return {"kind": "hca", "pci": _pci(match.group(1)), "meaning": match.group(2), "fatal": True, "action": "reboot"}


def _power(match: re.Match[str]) -> Fields:
    return {"kind": "hca_power", "pci": _pci(match.group(1)), "meaning": match.group(2), "action": "inspect"}


def _aer(match: re.Match[str]) -> Fields:
    words = match.group(2).lower()
    corrected = "uncorrect" not in words and "corrected" in words
    severity = "corrected" if corrected else "fatal" if re.search(r"(?<!non-)fatal", words) else "non-fatal"
    named = re.search(r"received:? (?:from )?" + _BDF, match.group(2))
    pci = _pci(named.group(1) if named else match.group(1))
    fatal = severity == "fatal"
    return {
        "kind": "pcie_aer",
        "pci": pci,
        "severity": severity,
        "fatal": fatal,
        "action": "none" if corrected else "inspect",
    }


def _hotplug(match: re.Match[str]) -> Fields:
    return {
        "kind": "pcie_link",
        "pci": _pci(match.group(1)),
        "device": match.group(2),
        "state": match.group(3).lower(),
        "action": "inspect",
    }


def _narrow(match: re.Match[str]) -> Fields:
    return {"kind": "pcie_limited", "pci": _pci(match.group(1)), "meaning": match.group(2), "action": "inspect"}


def _nvme(match: re.Match[str]) -> Fields:
    return {"kind": "nvme", "device": match.group(1), "meaning": match.group(2), "action": "inspect"}


def _nvme_gone(match: re.Match[str]) -> Fields:
    return {**_nvme(match), "fatal": True}


def _block(match: re.Match[str]) -> Fields:
    kind = "nvme" if match.group(1).startswith("nvme") else "disk"
    return {"kind": kind, "device": match.group(1), "meaning": "I/O error", "action": "inspect"}


def _oom(match: re.Match[str]) -> Fields:
    return {
        "kind": "oom",
        "pid": int(match.group(2)),
        "process": match.group(3),
        "device": "cgroup" if match.group(1) else "node",
        "meaning": "out of memory",
        "action": "restart_app",
    }


def _read_only(match: re.Match[str]) -> Fields:
    return {
        "kind": "read_only",
        "device": match.group(1),
        "meaning": "file system stopped",
        "fatal": True,
        "action": "inspect",
    }


def _machine_check(_match: re.Match[str]) -> Fields:
    return {"kind": "mce", "meaning": "machine check", "action": "inspect"}


def _edac(match: re.Match[str]) -> Fields:
    corrected = match.group(2) == "CE"
    return {
        "kind": "mce",
        "device": match.group(1),
        "severity": "corrected" if corrected else "uncorrected",
        "action": "none" if corrected else "inspect",
    }


def _hung_task(match: re.Match[str]) -> Fields:
    return {
        "kind": "hung_task",
        "process": match.group(1),
        "pid": int(match.group(2)),
        "meaning": f"blocked for more than {match.group(3)} s",
        "action": "inspect",
    }


def _lockup(match: re.Match[str]) -> Fields:
    stuck = f" for {match.group(3)} s" if match.group(3) else ""
    return {
        "kind": "lockup",
        "device": f"CPU {match.group(2)}",
        "meaning": f"{match.group(1).lower()} lockup{stuck}",
        "action": "inspect",
    }


def _file_server(match: re.Match[str]) -> Fields:
    well = match.group(2) == "OK"
    meaning = f"file server {match.group(2)}" if match.group(2) else "client was evicted by the file server"
    return {
        "kind": "file_server",
        "device": match.group(1),
        "meaning": meaning,
        "action": "none" if well else "inspect",
    }


PATTERNS: tuple[tuple[str, str, Callable[[re.Match[str]], Fields]], ...] = (
    # mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE
    ("link ", rf"mlx[45]_core {_BDF} (\S+?): Port: (\d+) Link (\w+)", _link_ib),
    # mlx5_core 0000:3b:00.0 ens1f0np0: Link down         ice 0000:4b:00.0 eth0: NIC Link is Down
    ("link ", rf"\w+ {_BDF}:? ([\w.-]+): (?:NIC )?Link (?:is )?(up|down)\b", _link_net),
    ("link ", r"()([\w.-]+): (?:NIC )?Link is (up|down)\b", _link_net),
    # IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready
    ("link ", r"IPv6: ADDRCONF\(NETDEV_\w+\): ([\w.-]+): link (becomes ready|is not ready)", _link_ready),
    # mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged
    ("mlx5_core", rf"mlx5_core {_BDF}[^:]*: {_WHERE}Port module event(?:\[\w+\])?: module \d+, "
     r"(Cable (?:unplugged|error)[^\n]{0,60})", _cable),
    # mlx5_core 0000:5c:00.0: poll_health:840:(pid 0): Fatal error 3 detected       ... device's health compromised
    ("mlx5_core", rf"mlx5_core {_BDF}[^:]*: {_WHERE}(Fatal error \d+ detected)", _hca),
    ("mlx5_core", rf"mlx5_core {_BDF}[^:]*: {_WHERE}(device's health compromised)", _hca),
    # mlx5_core 0000:5d:00.0: mlx5_pcie_event:299:(pid 7): Detected insufficient power on the PCIe slot (27W).
    ("mlx5_core", rf"mlx5_core {_BDF}[^:]*: {_WHERE}"
     r"(Detected insufficient power on the PCIe slot(?: \(\d+W\))?)", _power),
    # pcieport 0000:16:00.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0
    # nvidia 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
    ("aer: ", rf"\w+ {_BDF}: (AER: [^\n]*)", _aer),
    ("pcie", rf"\w+ {_BDF}: (PCIe Bus Error: [^\n]*)", _aer),
    # pcieport 0000:16:01.0: pciehp: Slot(3): Link Down
    ("pcie", rf"pcieport {_BDF}: pciehp: (Slot\(\S+?\)): (Link Down|Card not present)", _hotplug),
    # pci 0000:17:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at 0000:16:01.0 (capable of ...)
    ("pcie", rf"\w+ {_BDF}: ([\d.]+ Gb/s available PCIe bandwidth, "
     r"limited by [\d.]+ GT/s (?:PCIe )?x\d+ link)", _narrow),
    # nvme nvme0: Removing after probe failure status: -19      nvme nvme0: I/O 23 QID 4 timeout, aborting
    ("nvme nvme", r"nvme (nvme\d+): (Removing after probe failure|Disabling device after reset failure)", _nvme_gone),
    ("nvme nvme", r"nvme (nvme\d+)(?:n\d+)?: (I/O (?:tag )?\d+ .*timeout|controller is down|Device not ready)", _nvme),
    # I/O error, dev nvme0n1, sector 12345      blk_update_request: critical medium error, dev sda, sector 1
    (" error, dev ", r"(?:blk_update_request: )?(?:I/O|critical \w+) error, dev (\w+), sector", _block),
    # Out of memory: Killed process 1234 (python) total-vm:...     Memory cgroup out of memory: Killed process ...
    ("out of memory: kill", r"(Memory cgroup )?out of memory: Kill(?:ed)? process (\d+) \((.*?)\)(?: |,|$)", _oom),
    # EXT4-fs (sda1): Remounting filesystem read-only       XFS (nvme0n1p1): log I/O error ... Shutting down filesystem
    ("filesystem", r"EXT4-fs \(([\w-]+)\): Remounting filesystem read-only()", _read_only),
    ("filesystem", r"XFS \(([\w-]+)\): .*Shutting down filesystem()", _read_only),
    ("forced readonly", r"BTRFS.* \(?device ([\w-]+)\)?.*forced readonly()", _read_only),
    # mce: [Hardware Error]: Machine check events logged         EDAC MC0: 1 UE memory read error on ...
    ("[hardware error]", r"(?:mce: )?\[Hardware Error\]: Machine check", _machine_check),
    ("edac ", r"(EDAC \w+): \d+ ([CU]E) ", _edac),
    # INFO: task python:1234 blocked for more than 120 seconds.
    ("blocked for more than", r"INFO: task (.*):(\d+) blocked for more than (\d+) seconds", _hung_task),
    # watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]    NMI watchdog: Watchdog detected hard LOCKUP on cpu 3
    (" lockup ", r"(?:NMI )?(?:watchdog: )?BUG: (soft) lockup - CPU#(\d+) stuck for (\d+)s", _lockup),
    (" lockup ", r"(?:NMI )?watchdog: Watchdog detected (hard) LOCKUP on cpu (\d+)()", _lockup),
    # nfs: server filer1 not responding, still trying      nfs: server filer1 OK
    ("nfs: server ", r"nfs: server (\S+) (not responding|OK)", _file_server),
    # LustreError: 1234:0:(import.c:1:f()) ...: This client was evicted by scratch-MDT0000; in progress ...
    ("client was evicted by", r"LustreError: [^\n]*This client was evicted by ([\w-]+)()", _file_server),
)  # fmt: skip
"""(word in lower case that every match has, pattern, what is made of a match). Compiled when the word is met: most never are."""

WORDS = tuple(sorted({word for word, _, _ in PATTERNS}))
"""In lower case: no message without one of them is an event of this module. Few and rare, since each is looked for in the whole
of a large log."""


def find(text: str) -> Optional[Fields]:
    """Fields of the event that this message is; None where it is none."""
    lower = text.lower()
    for word, pattern, build in PATTERNS:
        match = re.compile(pattern, re.IGNORECASE).match(text) if word in lower else None
        if match:
            return build(match)
    return None
