"""What nvidia-smi and lspci printed on a captured node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aistation_slurm.probes.pci import parse_lspci
from aistation_slurm.probes.smi_text import parse
from tests.unit.cases_health.cases import put
from tests.unit.cases_health.commands import aistation

TABLE = """\
| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06     CUDA Version: 12.8     |
|=========================================+========================+======================|
|  13  NVIDIA RTX 4000 Ada Gene...    On  |   00000000:CB:00.0 Off |                  Off |
| 30%   38C    P8             12W /  130W |       1MiB /  20475MiB |      0%      Default |
|  14  NVIDIA RTX 4000 Ada Gene...    On  |   00000000:CC:00.0 Off |                  Off |
|ERR!   68C    P2             99W /  130W |       1MiB /  20475MiB |     93%      Default |
"""
CSV = """\
--query-gpu=index,ecc.errors.uncorrected.volatile.total,gpu_recovery_action --format=csv,noheader
13, [N/A], None
14, [Unknown Error], Reset
"""
REPORT = """\
==============NVSMI LOG==============

Timestamp                                 : Mon Dec  1 05:00:00 2025
Driver Version                            : 550.90.07
CUDA Version                              : 12.4

Attached GPUs                             : 2
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-1
    Minor Number                          : 3
    VBIOS Version                         : 96.00.74.00.01
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
                Device Current            : 1
            Link Width
                Max                       : 16x
                Current                   : 16x
    Clocks Event Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    Utilization
        Gpu                               : 93 %
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 5
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 1
            DRAM Correctable              : 7
            DRAM Uncorrectable            : 2
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 1
            SRAM Uncorrectable SEC-DED    : 1
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 2
            SRAM Threshold Exceeded       : No
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 90 C
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
        Memory Current Temp               : 80 C
    GPU Power Readings
        Power Draw                        : 99.50 W
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
GPU 00000000:2A:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Fan Speed                             : [Unknown Error]
    Temperature
        GPU Current Temp                  : Unknown Error
    Remapped Rows
        Pending                           : No
        Remapping Failure Occurred        : Yes
"""


def test_the_report() -> None:
    told = parse(REPORT)
    assert told is not None
    assert told.driver == "550.90.07"
    first, second = told.gpus
    wanted: dict[str, Any] = {
        "pci": "0000:18:00.0", "minor": 3, "persistence": True, "mig": False, "pcie_gen": 1, "pcie_max_gen": 5,
        "pcie_width": 16, "pcie_max_width": 16, "throttle": 0x48, "utilization": 93, "ecc_volatile": 3, "sram_volatile": 1,
        "ecc_aggregate": 4, "sram_aggregate": 2, "ecc_corrected": 12, "retired_single": None, "remap_pending": True,
        "remap_failed": False, "temperature": 90, "temperature_slowdown": 89, "power": 99500, "power_limit": 700000,
        "vbios": "96.00.74.00.01", "sram_threshold": False, "errors": {},
    }  # fmt: skip
    assert {key: getattr(first, key) for key in wanted} == wanted
    assert (second.pci, second.remap_failed, second.errors) == (
        "0000:2a:00.0",
        True,
        {"nvmlDeviceGetTemperature": "NVML_ERROR_UNKNOWN"},
    )


def test_not_supported_is_no_failure_and_err_is() -> None:
    told = parse(TABLE + CSV)
    assert told is not None
    assert [(g.index, g.pci, sorted(g.errors), g.recovery_action) for g in told.gpus] == [
        (13, "0000:cb:00.0", [], 0),
        (14, "0000:cc:00.0", ["nvidia-smi", "nvmlDeviceGetTotalEccErrors"], 1),
    ]
    with_header = "index, pci.bus_id, memory.used [MiB], pcie.link.width.current\n0, 00000000:18:00.0, 12 MiB, 8\n"
    told = parse(with_header)
    assert told is not None
    assert [(g.pci, g.memory_used, g.pcie_width) for g in told.gpus] == [("0000:18:00.0", 12 << 20, 8)]


@pytest.mark.parametrize("text", ["", "No devices were found\n", "a, b, c\n1, 2, 3\n", "hello | world\n"])
def test_what_is_no_output_of_nvidia_smi(text: str) -> None:
    assert parse(text) is None


def test_a_capture_with_the_table_and_the_query_of_a_wedged_card(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    put(tmp_path, "nvidia-smi.txt", TABLE + CSV)
    answer = aistation("check", "--root", tmp_path, "--json")
    failed = {(f["check"], f["subject"]) for f in answer.json["findings"] if f["status"] == "fail"}
    assert failed == {("gpu.recovery", "GPU 0000:cc:00"), ("gpu.telemetry", "GPU 0000:cc:00")}


def test_a_capture_with_a_lost_card(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    words = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
    put(tmp_path, "nvidia-smi.txt", words)
    answer = aistation("check", "--root", tmp_path, "--json")
    failed = [(f["check"], f["subject"]) for f in answer.json["findings"] if f["status"] == "fail"]
    assert failed == [("gpu.lost", "GPU 0000:3b:00")]


LSPCI = """\
1a:00.0 VGA compatible controller: NVIDIA Corporation TU102GL [Quadro RTX 6000/8000] (rev a1)
1a:00.1 Audio device: NVIDIA Corporation TU102 High Definition Audio Controller (rev a1)
1c:00.0 VGA compatible controller: NVIDIA Corporation TU102GL [Quadro RTX 6000/8000] (rev ff)
1c:00.1 Audio device: NVIDIA Corporation TU102 High Definition Audio Controller (rev ff)
38:00.0 3D controller: NVIDIA Corporation Device 26b9 (rev a1)
\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)
3b:00.0 Infiniband controller: Mellanox Technologies MT2910
"""


def test_lspci() -> None:
    found = parse_lspci(LSPCI)
    assert [(g.address, g.alive) for g in found] == [
        ("0000:1a:00.0", True),
        ("0000:1c:00.0", False),
        ("0000:38:00.0", True),
    ]
    assert (found[2].width, found[2].max_width, found[2].speed) == (8, 16, 2.5)


def test_a_capture_with_lspci_alone(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    put(tmp_path, "lspci.txt", LSPCI)
    found = aistation("check", "--root", tmp_path, "--json").json["findings"]
    assert [(f["check"], f["subject"]) for f in found if f["status"] == "fail"] == [("gpu.lost", "GPU 0000:1c:00")]
    assert [f["evidence"] for f in found if f["check"] == "gpu.count"] == ["3 on the PCI bus"]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(REPORT) - 1), st.integers(0, 200), st.text(max_size=20))
def test_damaged_reports_never_crash(at: int, cut: int, noise: str) -> None:
    for text in (REPORT, TABLE + CSV, LSPCI):
        place = at % len(text)
        damaged = text[:place] + noise + text[place + cut :]
        told = parse(damaged)
        assert told is None or all(g.index is not None for g in told.gpus)
        assert all(g.address.count(":") == 2 for g in parse_lspci(damaged))
