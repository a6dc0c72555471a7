"""GPU facts that are not lost cards, through ``aistation check`` on the make-believe node."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from aistation_slurm.findings import Status
from aistation_slurm.node.health import check_node
from tests.cluster import faults
from tests.cluster.faults import Fault
from tests.unit.cases_health.node import Node

GPU1 = "GPU1 0000:2a:00"


@pytest.mark.parametrize(
    ("fault", "bad"),
    [
        (faults.gpu_facts(1, retired__sbe=4, retired__dbe=0, retired__pending=0), set()),
        (faults.gpu_facts(1, retired__sbe=9, retired__dbe=2), {("gpu.retired_pages", "warn", GPU1)}),
        (faults.gpu_facts(1, retired__pending=1), {("gpu.retired_pages", "warn", GPU1)}),
        (faults.gpu_facts(1, retired__sbe=30, retired__dbe=34), {("gpu.retired_pages", "fail", GPU1)}),
        (faults.gpu_facts(1, ecc__aggregate__uncorrected=3), set()),
        (
            faults.gpu_facts(1, ecc__aggregate__uncorrected=9, sram__aggregate__uncorrected=5),
            {("gpu.ecc_uncorrectable", "warn", GPU1)},
        ),
        (faults.gpu_facts(1, sram__threshold=1), {("gpu.ecc_uncorrectable", "warn", GPU1)}),
        (faults.gpu_facts(1, ecc__volatile__corrected=1000), set()),
        (faults.gpu_facts(1, ecc__volatile__corrected=60_000_000), {("gpu.ecc_corrected", "warn", GPU1)}),
        (faults.gpu_facts(1, ecc__mode=0), {("gpu.ecc_mode", "warn", GPU1)}),
        (faults.gpu_facts(1, remap__uncorrectable=600), {("gpu.row_remap", "warn", GPU1)}),
        (faults.gpu_facts(1, remap__banks_without_spare=1), {("gpu.row_remap", "warn", GPU1)}),
        (faults.gpu_facts(1, fabric__state=1), {("gpu.fabric_manager", "warn", "NVSwitch fabric")}),
        (faults.gpu_facts(1, fabric__state=2), {("gpu.fabric_manager", "warn", "NVSwitch fabric")}),
        (faults.gpu_facts(1, fabric__state=3), set()),
        (faults.gpu_facts(1, fabric__state=3, fabric__status=999), {("gpu.fabric_manager", "warn", "NVSwitch fabric")}),
        (faults.gpu_facts(1, temperature=90), {("gpu.temperature", "warn", GPU1)}),
        (faults.gpu_facts(1, temperature_memory=96), {("gpu.temperature", "warn", GPU1)}),
        (faults.gpu_facts(1, temperature=85, temperature_memory=94), set()),
        (faults.gpu_facts(1, power_limit_mw=500_000), {("gpu.power", "warn", GPU1)}),
        (faults.pcie_link(1, gts=2.5), set()),
        (faults.pcie_link(1, width=8), {("gpu.pcie", "fail", GPU1)}),
        (faults.gpu_facts(1, persistence=0), {("gpu.persistence", "warn", GPU1)}),
        (faults.gpu_text(1, "vbios", "96.00.61.00.02"), {("gpu.versions", "warn", GPU1)}),
        (faults.gpu_text(1, "inforom", "G520.0200.00.01"), {("gpu.versions", "warn", GPU1)}),
        (faults.gpu_facts(1, mig_pending=1), {("gpu.mig", "warn", GPU1)}),
        (
            faults.host_file("proc/modules", "nvidia 1 32 - Live 0x0\nmlx5_core 1 1 - Live 0x0\n"),
            {("gpu.peermem", "warn", "GPUDirect RDMA")},
        ),
        (
            faults.host_file(
                "proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n",
            ),
            {("gpu.versions", "warn", "NVIDIA driver")},
        ),
    ],
    ids=lambda value: value.what if isinstance(value, Fault) else "",
)
def test_faults(node: Node, fault: Fault, bad: set[tuple[str, str, str]]) -> None:
    node.inject(fault)
    report = node.report(only=["gpu.*"])
    assert {(f.check, f.status.value, f.subject) for f in report.findings if f.status is not Status.OK} == bad


def test_only_a_card_that_is_worse_than_its_slot_is_the_nodes_own_fault(node: Node) -> None:
    node.inject(faults.pcie_link(1, width=8), faults.gpu_facts(2, fabric__state=1), faults.gpu_facts(3, temperature=99))
    drains = [(f.check, f.subject) for f in node.report(only=["gpu.*"]).findings if f.drains]
    assert drains == [("gpu.pcie", GPU1)]


def at(node: Node, *seconds: float) -> list[str]:
    """Checks that are not ok at the last of these looks."""
    found = []
    for now in seconds:
        report = check_node(node.config, now=now, node="gpu1", only=["gpu.*"])
        found = [f"{f.check} {f.status.value}" for f in report.findings if f.status is not Status.OK]
    return found


def test_one_slow_moment_among_many_looks_is_no_warning_and_a_lasting_one_is(node: Node) -> None:
    assert at(node, 1000, 1030, 1060, 1090) == []
    node.inject(faults.throttle(0, "power_brake"))
    assert at(node, 1120) == [], "1 look of 5"
    assert at(node, 1150, 1180, 1210, 1240, 1270, 1300) == ["gpu.throttle warn"], "7 looks of 11"
    node.hardware.make_healthy()
    assert at(node, 2500) == [], "10 minutes later nothing of it is left"


def test_time_lost_to_heat_counts_without_a_look_that_saw_it(node: Node) -> None:
    for number in range(6):
        node.inject(faults.gpu_facts(2, thermal_ns=number * 27 * 10**9))
        found = at(node, 1000 + 30 * number)
    assert found == ["gpu.throttle warn"], "27 of every 30 seconds"


def test_link_errors_count_by_rate_and_not_by_their_sum(node: Node) -> None:
    node.inject(faults.gpu_facts(0, nvlink__replay=100_000))
    assert at(node, 1000, 1060, 1120) == [], "an old sum"
    node.inject(faults.gpu_facts(0, nvlink__replay=100_040, nvlink__crc_flit=20))
    assert at(node, 1180) == ["gpu.nvlink_errors warn"]
    node.inject(faults.gpu_facts(0, nvlink__replay=0, nvlink__crc_flit=0))
    assert at(node, 1900, 1960) == [], "the driver was loaded anew"


def test_a_slow_link_counts_under_load_and_after_three_looks(node: Node) -> None:
    node.inject(faults.pcie_link(3, gts=2.5))
    assert at(node, 1000, 1030, 1060, 1090) == [], "idle cards lower their speed"
    node.inject(faults.gpu_facts(3, utilization=90))
    assert at(node, 2000, 2030) == []
    assert at(node, 2060) == ["gpu.pcie warn"]


def test_a_link_that_loses_lanes_is_a_fail_at_the_second_look(node: Node) -> None:
    assert at(node, 1000) == []
    node.inject(faults.pcie_link(3, width=8))
    assert at(node, 1030) == ["gpu.pcie warn"], "perhaps it is being trained anew"
    assert at(node, 1060) == ["gpu.pcie fail"]


def test_slow_clocks_under_load_that_no_policy_asks_for(node: Node) -> None:
    node.inject(faults.gpu_facts(3, clock__sm=345))
    assert at(node, 1000, 1030, 1060) == [], "idle"
    node.inject(faults.gpu_facts(3, utilization=90))
    assert at(node, 2000, 2030, 2060) == ["gpu.clocks warn"]
    node.inject(faults.throttle(3, "sw_power_cap"))
    assert at(node, 2090) == [], "the power cap asks for it"


def test_looks_of_another_boot_and_a_damaged_file_count_for_nothing(node: Node) -> None:
    node.inject(faults.gpu_facts(0, nvlink__replay=1))
    at(node, 1000)
    kept = node.state_dir / "looks.json"
    text = json.loads(kept.read_text())
    kept.write_text(json.dumps({**text, "boot": "another"}))
    node.inject(faults.gpu_facts(0, nvlink__replay=5000))
    assert at(node, 1120) == []
    kept.write_text('{"boot": ')
    assert at(node, 1180) == []


def test_shuffled_minors_are_told_by_address_and_minor(node: Node) -> None:
    """NVML's order, Slurm's order and the minors all differ; a finding is bound to the address."""
    minors = [2, 0, 3, 1]
    for slot, minor in enumerate(minors):
        pci = node.hardware.gpu(slot).pci
        node.inject(faults.gpu_facts(slot, minor=minor))
        path = f"proc/driver/nvidia/gpus/{pci}/information"
        text = node.hardware.read(path).replace(f"Device Minor: \t {slot}", f"Device Minor: \t {minor}")
        node.inject(faults.host_file(path, text))
    node.gres.write_text("Name=gpu File=/dev/nvidia[3,1]\nName=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia2\n")
    node.inject(faults.gpu_lost(0), faults.pcie_link(1, width=4))
    report = node.report(only=["gpu.*"])
    failed = {(f.check, f.subject, f.device) for f in report.findings if f.status is Status.FAIL}
    assert ("gpu.lost", "GPU2 0000:18:00", "0000:18:00.0") in failed
    assert ("gpu.pcie", "GPU0 0000:2a:00", "0000:2a:00.0") in failed
    assert {(g.pci, g.minor) for g in report.gpus} == {(node.hardware.gpu(i).pci, m) for i, m in enumerate(minors)}
    (count,) = [f for f in report.findings if f.check == "gpu.count"]
    assert (count.status, count.evidence) == (Status.OK, "4 of 4")


def test_fewer_gpus_than_gres_conf_says(node: Node) -> None:
    node.gres.write_text("NodeName=gpu[1-2] Name=gpu File=/dev/nvidia[0-7]\n")
    (count,) = node.report(only=["gpu.count"]).findings
    assert (count.status, count.evidence) == (Status.FAIL, "4 found, 4 on the PCI bus, expected 8")


def test_a_process_without_a_job_is_reported_and_root_and_services_are_not(node: Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to start a process of another user")
    argv = [sys.executable, "-c", "import os, time; os.setuid(65534); print('up', flush=True); time.sleep(600)"]
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={"PATH": "/usr/bin"}, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "up\n"
            node.inject(faults.gpu_process(2, other.pid, 2048), faults.gpu_process(3, mine.pid))
            found = [f for f in node.report(only=["gpu.*"]).findings if f.check == "gpu.orphan_process"]
        finally:
            for process in (other, mine):
                process.kill()
            mine.wait()
    assert [(f.status, f.subject, f.drains) for f in found] == [(Status.WARN, "GPU2 0000:3a:00", False)]
    assert f"process {other.pid}" in found[0].evidence
    assert "2048 MiB" in found[0].evidence


def test_inside_a_job_the_nodes_processes_are_unknown(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_PROCID", "0")
    unknown = {f.check for f in node.report(only=["gpu.*"]).findings if f.status is Status.UNKNOWN}
    assert unknown == {"gpu.count", "gpu.orphan_process"}
