"""What the PCI bus, the RDMA class and the host's files say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aistation_slurm.probes import host
from aistation_slurm.probes.pci import read_gpus
from aistation_slurm.probes.rdma import parse_rate, read_ports
from tests.unit.cases_health.cases import add_pci, add_port, put


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", (400.0, 4, "NDR")),
        ("100 Gb/sec (2X HDR)", (100.0, 2, "HDR")),
        ("2.5 Gb/sec (1X SDR)", (2.5, 1, "SDR")),
        ("10 Gb/sec (4X)", (10.0, 4, "")),
        ("800 Gb/sec", (800.0, None, "")),
        ("", (None, None, "")),
        (". Gb/sec", (None, None, "")),
        ("unknown", (None, None, "")),
    ],
)
def test_rates(text: str, rate: object) -> None:
    assert parse_rate(text) == rate


def test_ports_are_sorted_by_number_and_told_in_full(tmp_path: Path) -> None:
    for number, name in enumerate(("mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_1")):
        add_port(tmp_path, name, number, lid=f"0x{number + 1:x}", board_id="MT_1")
    ports = read_ports(tmp_path)
    assert [p.name for p in ports] == ["mlx5_1/1", "mlx5_2/1", "mlx5_10/1", "mlx5_bond_0/1"]
    first = ports[0]
    assert (first.state, first.phys_state, first.rate_gbps, first.speed) == ("ACTIVE", "LinkUp", 400.0, "NDR")
    assert (first.lid, first.pci, first.board_id, first.virtual) == (4, "0000:13:00.0", "MT_1", False)
    assert first.counters == {}, "counters of a healthy port are not asked for"


def test_a_dangling_physfn_still_marks_a_virtual_function(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_9", virtual=True)
    assert [p.virtual for p in read_ports(tmp_path)] == [True]


def test_odd_files_are_no_error(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", rate="?", state="", phys_state="", lid="none")
    put(tmp_path, "sys/class/infiniband/abi_version", "1\n")
    (port,) = read_ports(tmp_path)
    assert (port.state, port.rate_gbps, port.lid) == ("", None, None)
    assert read_ports(tmp_path / "nowhere") == []


def test_gpus_are_told_from_other_functions_of_the_card(tmp_path: Path) -> None:
    add_pci(tmp_path, "0000:1a:00.0", **{"class": "0x030000"})
    add_pci(tmp_path, "0000:1a:00.1", **{"class": "0x040300"})
    add_pci(tmp_path, "0000:1b:00.0", config="ff")
    add_pci(tmp_path, "0000:1c:00.0", config="empty")
    add_pci(tmp_path, "0000:1d:00.0", config="empty", revision="0xff")
    add_pci(tmp_path, "0000:1e:00.0", vendor="0x1002")
    information = "Model: \t\t H100\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\n"
    put(tmp_path, "proc/driver/nvidia/gpus/0000:1a:00.0/information", information)
    steps: list[str] = []
    gpus = read_gpus(tmp_path, steps.append)
    assert [(g.address[5:7], g.alive) for g in gpus] == [("1a", True), ("1b", False), ("1c", None), ("1d", False)]
    assert (gpus[0].minor, gpus[0].uuid, gpus[1].minor) == (3, "GPU-1", -1)
    assert steps[0] == "sysfs of 0000:1a:00.0"
    assert read_gpus(tmp_path / "nowhere") == []


def test_host_facts_of_a_tree(tmp_path: Path) -> None:
    assert host.uptime_s(tmp_path) == float("inf")
    assert host.boot_id(tmp_path) == ""
    assert host.read_memory(tmp_path) is None
    assert host.captured_name(tmp_path) == tmp_path.name
    put(tmp_path, "proc/uptime", "12.5 99.0\n")
    put(tmp_path, "proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    250 kB\n")
    put(tmp_path, "etc/hostname", "gpu17.example.org\n")
    assert host.uptime_s(tmp_path) == 12.5
    assert host.read_memory(tmp_path) == host.Memory(1000, 250)
    assert host.captured_name(tmp_path) == "gpu17"


def test_disks_that_exist(tmp_path: Path) -> None:
    disks = host.read_disks([str(tmp_path / "none"), str(tmp_path)], tmp_path / "run", "boot-1")
    assert [d.path for d in disks] == [str(tmp_path)]
    assert 0 <= disks[0].free_percent <= 100
    assert disks[0].error == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's driver work counts")
@pytest.mark.parametrize(
    ("name", "argument", "is_work"),
    [
        ("nvidia-smi", "--gpu-reset", True),
        ("nvidia-smi", "-mig", True),
        ("nvidia-smi", "-L", False),
        ("modprobe", "nvidia_uvm", True),
        ("modprobe", "mlx5_core", False),
        ("dkms", "build", True),
    ],
)
def test_driver_work_is_recognised(tmp_path: Path, name: str, argument: str, is_work: bool) -> None:
    if host.driver_work():
        pytest.skip("driver work runs on this machine right now")
    program = tmp_path / name
    program.write_text(f"#!{sys.executable}\nimport time; time.sleep(600)\n")
    # comm of a script is the script's own name
    program.chmod(0o755)
    with subprocess.Popen([program, argument], stdout=subprocess.DEVNULL) as child:
        try:
            comm = Path(f"/proc/{child.pid}/comm")
            while comm.read_text().strip() != name:
                assert child.poll() is None
            assert bool(host.driver_work()) is is_work
        finally:
            child.kill()
