"""Kernel messages as events."""

from __future__ import annotations

from typing import Any

import pytest

from aistation_slurm.detectors.kernel_events import Event, deciding, find_events, gpu_key
from aistation_slurm.probes.klog_text import read_text

XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=7, name=python, text"


def events(*lines: str, **options: Any) -> list[Event]:
    return find_events(read_text(lines), **options)


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("NVRM: Xid (0000:03:00): 13, 0003 00000000 0000a06f", {"xid": 13, "pci": "0000:03:00", "pid": None}),
        ("NVRM: Xid (PCI:0000:17:00 GPU-I:05): 45, pid=9, name=a, Ch 8", {"xid": 45, "pci": "0000:17:00", "pid": 9}),
        ("NVRM: Xid (PCI:00000000:3B:00.0): 79, GPU has fallen off", {"xid": 79, "pci": "0000:3b:00"}),
        ("NVRM: Xid (PCI:10000:3b:00): 79, x", {"xid": 79, "pci": "10000:3b:00"}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=8(host), name=a,b c, Ch 1", {"pid": 8, "process": "a,b c"}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=<unknown>, name=<unknown>, Ch 1", {"pid": None, "process": None}),
        ("NVRM: Xid (PCI:0000:3b:00): 43, Ch 00000010", {"xid": 43, "drain": False, "action": "restart_app"}),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=x, Ch 1", {"classified": "cascade", "fatal": False}),
        (
            "NVRM: Xid (PCI:0000:3b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x1, 0x0)",
            {"link": 3, "drain": True, "action": "gpu_reset"},
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 999, new", {"classified": "unknown", "drain": False, "action": "inspect"}),
        ("NVRM: Xid (PCI:0000:3b:00): 145, no word here", {"classified": "unknown", "drain": False}),
        (
            "NVRM: Xid (PCI:0000:3b:00): 144, SAW: Fatal, new form",
            {"classified": "fatal", "drain": False, "action": "inspect"},
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 144, pid=1, name=a, X Fatal, SAW: Non-fatal, new form",
            {"classified": "nonfatal", "fatal": False},
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery) action( changed", {"drain": False, "action": "inspect"}),
        (
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            {"drain": True, "action": "reboot", "recovery_action": "reboot"},
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            {"drain": False, "fatal": False, "action": "none", "recovery_action": "none"},
        ),
        ("NVRM: GPU at 0000:02:00.0 has fallen off the bus.", {"kind": "gpu_lost", "synthetic": True, "drain": True}),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 10003, Fatal, unhandled", {"sxid": 10003, "link": None}),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 77777, something", {"drain": False, "action": "inspect"}),
    ],
)
def test_lines_of_the_nvidia_drivers(line: str, fields: dict[str, Any]) -> None:
    (event,) = events(f"[12.5] {line}")
    assert {key: getattr(event, key) for key in fields} == fields


@pytest.mark.parametrize(
    "line",
    [
        'overlayfs: unrecognized mount option "NVRM: Xid (PCI:0000:3b:00): 79, x" or missing value',
        "python[12]: segfault at 0 in NVRM: Xid (PCI:0000:3b:00): 79, x",
        "NVRM: Xid (PCI:0000:3b:00): 7",
        "NVRM: Xid (PCI:0000:3b",
        "NVRM: Xid (PCI:): 79, x",
        "NVRM: Xid (PCI:0000:3b:00): , pid=79",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0}",
        r"audit: name=4E56524D: Xid",
    ],
)
def test_what_only_looks_like_an_event(line: str) -> None:
    assert events(f"[1.0] {line}") == []


def test_text_behind_a_newline_in_a_record_is_quoted_text() -> None:
    assert events(r"4,1,1000000,-;overlayfs: bad option \"x\x0aNVRM: Xid (PCI:0000:3b:00): 79, y") == []


def test_the_notice_of_a_lost_gpu_as_one_record_or_as_three() -> None:
    parts = ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has"]
    parts.append("NVRM: fallen off the bus and is not responding to commands.")
    one = events("4,7,1843308145,-;" + r"\x0a".join(parts))
    between = "[1.2] usb 1-1: reset"
    three = events(*(f"[1.{i}] {part}" for i, part in enumerate(parts)))
    mixed = events(f"[1.0] {parts[0]}", between, f"[1.3] {parts[1]}", between, f"[1.4] {parts[2]}")
    for found in (one, three, mixed):
        assert [(e.kind, e.pci, e.drain) for e in found] == [("gpu_lost", "0000:b3:00", True)]


def test_a_gpu_is_lost_once_whatever_comes_first() -> None:
    sentence, number = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", XID.format(79)
    for lines in ([sentence, number], [number, sentence], [number, number, sentence]):
        (event,) = events(*lines)
        assert (event.kind, event.xid, event.synthetic, event.count) == ("xid", 79, False, len(lines))
    other = sentence.replace("3b", "5e")
    assert [e.pci for e in events(number, other, sentence)] == ["0000:3b:00", "0000:5e:00"]


def test_a_lost_gpu_without_an_address_is_still_told() -> None:
    (event,) = events("NVRM: GPU has fallen off the bus.")
    assert (event.kind, event.pci, event.drain) == ("gpu_lost", "", True)


def test_cascades_after_a_loss_do_not_decide() -> None:
    found = events(*(XID.format(code) for code in (79, 45, 45, 43, 31)))
    assert [e.drain for e in found] == [True, False, False, False, False]
    first = deciding(found)
    assert first is not None
    assert first.xid == 79


def test_a_carrier_decides_only_where_it_stands_alone() -> None:
    told = XID.format("154").replace("text", "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    first = deciding(events(told, XID.format(119)))
    assert first is not None
    assert first.xid == 119
    alone = deciding(events(told))
    assert alone is not None
    assert alone.xid == 154
    assert deciding(events(XID.format(13))) is None


def test_the_same_record_in_two_logs_is_one_event_but_two_moments_are_two() -> None:
    line = XID.format(13)
    assert len(events(f"[5.000001] {line}", f"[5.000001] {line}")) == 1
    assert len(events(f"[5.000001] {line}", f"[5.000002] {line}")) == 2
    assert len(events(f"[Fri Aug 30 11:43:09 2024] {line}", f"[Fri Aug 30 11:43:09 2024] {line}")) == 2


LOADED = "nvidia-nvlink: Nvlink Core is being initialized, major device number 236"
CLEARED = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def test_what_a_driver_reload_or_a_reset_dealt_with_does_not_drain() -> None:
    reloaded = events(XID.format(79), XID.format(119), LOADED, XID.format(31))
    assert [(e.drain, e.superseded, e.fatal) for e in reloaded] == [
        (False, True, True),
        (False, True, True),
        (False, False, False),
    ]
    again = events(XID.format(79), LOADED, XID.format(79))
    assert [e.drain for e in again] == [False, True]
    reset = events(XID.format(119), XID.format(64), XID.format(119).replace("3b", "5e"), CLEARED)
    assert [(e.xid, e.drain) for e in reset] == [(119, False), (64, True), (119, True), (154, False)]
    later = events(XID.format(119), CLEARED, XID.format(119))
    assert [e.drain for e in later] == [False, False, True]


def test_only_the_last_boot_counts_unless_all_are_asked_for() -> None:
    lines = [XID.format(79), "-- Reboot --", XID.format(31)]
    assert [e.xid for e in events(*lines)] == [31]
    assert [e.xid for e in events(*lines, all_boots=True)] == [79, 31]
    first_line = "[0.000000] Linux version 6.1.0-27-amd64 (debian-kernel@lists.debian.org)"
    assert [e.xid for e in events(f"[99.5] {XID.format(79)}", first_line, f"[9.0] {XID.format(31)}")] == [31]


def test_details_of_a_switch_fault_stay_with_it() -> None:
    switch = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, "
    found = events(
        switch + "Fatal, Link 63 LTSSM Fault Up", switch + "Severity 1 Engine instance 63", switch + "Data {0x1}"
    )
    (event,) = found
    assert (event.meaning, event.action, len(event.details)) == ("LTSSM Fault Up", "reboot", 2)
    assert event.as_json()["details"] == [switch + "Severity 1 Engine instance 63", switch + "Data {0x1}"]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
            {"kind": "link", "device": "mlx5_5/1", "state": "active"},
        ),
        ("mlx5_core 0000:3b:00.0 ens1f0np0: Link down", {"kind": "link", "device": "ens1f0np0", "state": "down"}),
        ("ice 0000:4b:00.0 eth0: NIC Link is Down", {"kind": "link", "pci": "0000:4b:00", "state": "down"}),
        ("IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready", {"kind": "link", "device": "ib0", "state": "up"}),
        (
            "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged",
            {"kind": "cable", "pci": "0000:5c:00", "meaning": "Cable unplugged"},
        ),
        (
            "mlx5_core 0000:5c:00.0: poll_health:840:(pid 0): Fatal error 3 detected",
            {"kind": "hca", "fatal": True, "drain": False},
        ),
        (
            "pcieport 0000:16:00.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0",
            {"kind": "pcie_aer", "severity": "fatal", "pci": "0000:17:00", "fatal": True, "drain": False},
        ),
        (
            "pcieport 0000:16:00.0: AER: Uncorrected (Non-Fatal) error received: 0000:17:00.0",
            {"severity": "non-fatal", "fatal": False},
        ),
        (
            "nvidia 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            {"kind": "pcie_aer", "severity": "corrected", "action": "none", "pci": "0000:17:00"},
        ),
        ("pcieport 0000:16:01.0: pciehp: Slot(3): Link Down", {"kind": "pcie_link", "device": "Slot(3)"}),
        ("nvme nvme0: I/O 23 QID 4 timeout, aborting", {"kind": "nvme", "device": "nvme0", "fatal": False}),
        ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff", {"kind": "nvme", "device": "nvme1"}),
        ("nvme nvme2: Removing after probe failure status: -19", {"kind": "nvme", "fatal": True}),
        ("I/O error, dev nvme0n1, sector 12345 op 0x0:(READ)", {"kind": "nvme", "device": "nvme0n1"}),
        ("blk_update_request: critical medium error, dev sda, sector 1", {"kind": "disk", "device": "sda"}),
        (
            "Out of memory: Killed process 1234 (python) total-vm:1kB",
            {"kind": "oom", "pid": 1234, "process": "python", "device": "node"},
        ),
        (
            "Memory cgroup out of memory: Killed process 9 (a) (b) total-vm:1kB",
            {"kind": "oom", "device": "cgroup", "pid": 9},
        ),
        ("EXT4-fs (sda1): Remounting filesystem read-only", {"kind": "read_only", "device": "sda1"}),
        (
            "XFS (nvme0n1p1): Metadata I/O Error (0x4) detected. Shutting down filesystem.",
            {"kind": "read_only", "device": "nvme0n1p1"},
        ),
        ("mce: [Hardware Error]: Machine check events logged", {"kind": "mce"}),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", {"kind": "mce", "severity": "uncorrected"}),
        ("INFO: task python:77 blocked for more than 120 seconds.", {"kind": "hung_task", "pid": 77}),
        (
            "mlx5_core 0000:5c:00.0: mlx5_health: poll_health:800:(pid 0): device's health compromised - reached miss count",
            {"kind": "hca", "pci": "0000:5c:00", "meaning": "device's health compromised"},
        ),
        (
            "mlx5_core 0000:5d:00.0: mlx5_pcie_event:301:(pid 7): Detected insufficient power on the PCIe slot (27W).",
            {"kind": "hca_power", "pci": "0000:5d:00", "action": "inspect"},
        ),
        (
            "pci 0000:17:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at 0000:16:01.0 "
            "(capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)",
            {"kind": "pcie_limited", "pci": "0000:17:00", "fatal": False},
        ),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:77]", {"kind": "lockup", "device": "CPU 3"}),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", {"kind": "lockup", "meaning": "hard lockup"}),
        ("nfs: server filer1 not responding, still trying", {"kind": "file_server", "action": "inspect"}),
        ("nfs: server filer1 OK", {"kind": "file_server", "action": "none"}),
        (
            "LustreError: 9:0:(import.c:1:f()) x-MDT0000-mdc: This client was evicted by x-MDT0000; in progress operations fail.",
            {"kind": "file_server", "device": "x-MDT0000"},
        ),
    ],
)
def test_lines_of_the_rest_of_the_kernel(line: str, fields: dict[str, Any]) -> None:
    (event,) = events(f"[12.5] {line}")
    assert {key: getattr(event, key) for key in fields} == fields
    assert not event.drain


def test_the_json_shape() -> None:
    (event,) = events(f"[12.5] {XID.format(79)}")
    shown = event.as_json()
    for key in ("kind", "xid", "pci", "fatal", "drain", "action", "synthetic", "pid", "process", "time", "raw"):
        assert key in shown
    assert (shown["uuid"], shown["serial"]) == (None, None)
    assert "sxid" not in shown
    assert "count" not in shown


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("0000:3b:00", "0000:3b:00"),
        ("00000000:3B:00.0", "0000:3b:00"),
        ("3b:00.0", "0000:3b:00"),
        ("0019:01:00", "0019:01:00"),
        ("10000:e1:00.0", "10000:e1:00"),
        ("", ""),
        ("x", ""),
    ],
)
def test_pci_addresses(address: str, key: str) -> None:
    assert gpu_key(address) == key


def test_a_gpu_that_cannot_be_initialised_is_one_event_for_all_tries() -> None:
    lines = [
        "[1.0] NVRM: GPU 0000:d5:00.0: RmInitAdapter failed! (0x24:0xffff:1220)",
        "[1.1] NVRM: GPU 0000:d5:00.0: rm_init_adapter failed, device minor number 3",
        "[2.0] NVRM: GPU 0000:d5:00.0: RmInitAdapter failed! (0x24:0xffff:1220)",
        "[2.1] NVRM: GPU 0000:d5:00.0: rm_init_adapter failed, device minor number 3",
        "[3.0] NVRM: RmInitAdapter failed! (0x62:0x65:1784)",
    ]
    named, nameless = events(*lines)
    assert (named.kind, named.pci, named.count, named.drain, named.action) == (
        "gpu_init",
        "0000:d5:00",
        2,
        False,
        "inspect",
    )
    assert (nameless.kind, nameless.pci, nameless.count) == ("gpu_init", "", 1)
    loaded = events(*lines, "[9.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 236")
    assert all(event.superseded for event in loaded)
