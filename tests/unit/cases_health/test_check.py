"""``aistation check`` on a make-believe node: real pynvml on the fake NVML, a sysfs tree, a kernel log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from aistation_slurm.findings import Status
from tests.cluster import faults
from tests.cluster.faults import Fault
from tests.unit.cases_health.cases import add_port, put
from tests.unit.cases_health.commands import aistation
from tests.unit.cases_health.node import Node


def test_a_healthy_node(node: Node) -> None:
    answer = node.check()
    assert (answer.exit_code, answer.json["status"]) == (0, "ok")
    checks = {f["check"] for f in answer.json["findings"]}
    assert checks >= {"gpu.count", "gpu.lost", "gpu.xid", "gpu.ecc_uncorrectable", "gpu.row_remap", "gpu.nvlink"}
    assert checks >= {"gpu.driver_hang", "fabric.port_state", "fabric.rate", "host.memory", "host.disk"}
    for finding in answer.json["findings"]:
        assert set(finding) >= {"check", "status", "subject", "evidence", "action"}
    report = node.report()
    assert [(g.index, g.minor) for g in report.gpus] == [(i, i) for i in range(4)]
    assert [(p.name, p.rate_gbps, p.judged) for p in report.ports] == [("mlx5_0/1", 400, True), ("mlx5_1/1", 400, True)]


@pytest.mark.parametrize(
    ("fault", "bad"),
    [
        (faults.gpu_lost(3), {("gpu.lost", "fail", "GPU3 0000:5d:00"), ("gpu.xid", "fail", "GPU3 0000:5d:00")}),
        (faults.gpu_missing(1), {("gpu.count", "fail", "GPUs")}),
        (
            faults.ecc_uncorrectable(1, 2),
            {("gpu.ecc_uncorrectable", "fail", "GPU1 0000:2a:00"), ("gpu.xid", "fail", "GPU1 0000:2a:00")},
        ),
        (faults.row_remap(2, pending=True), {("gpu.row_remap", "warn", "GPU2 0000:3a:00")}),
        (
            faults.row_remap(2, failed=True),
            {
                ("gpu.row_remap", "fail", "GPU2 0000:3a:00"),
                ("gpu.xid", "fail", "GPU2 0000:3a:00"),
                ("gpu.recovery", "fail", "GPU2 0000:3a:00"),
            },
        ),
        (
            faults.nvlink_down(0, 7),
            {("gpu.nvlink", "fail", "GPU0 0000:18:00"), ("gpu.xid", "fail", "GPU0 0000:18:00")},
        ),
        (
            faults.throttle(0, "hw_thermal", temperature=95),
            {("gpu.throttle", "warn", "GPU0 0000:18:00"), ("gpu.temperature", "warn", "GPU0 0000:18:00")},
        ),
        (faults.throttle(0, "idle", "sw_power_cap"), set()),
        (faults.xid(1, 119), {("gpu.xid", "fail", "GPU1 0000:2a:00")}),
        (faults.xid(1, 31, pid=77), set()),
        (faults.ib_down("mlx5_1"), {("fabric.port_state", "fail", "mlx5_1/1")}),
        (faults.memory_low(0.5), {("host.memory", "warn", "memory")}),
    ],
    ids=lambda value: value.what if isinstance(value, Fault) else "",
)
def test_faults(node: Node, fault: Fault, bad: set[tuple[str, str, str]]) -> None:
    node.inject(fault)
    answer = node.check()
    found = {(f["check"], f["status"], f["subject"]) for f in answer.json["findings"] if f["status"] != "ok"}
    assert found == bad
    statuses = {status for _, status, _ in bad}
    assert answer.json["status"] == ("fail" if "fail" in statuses else "warn" if "warn" in statuses else "ok")
    assert answer.exit_code == (1 if "fail" in statuses else 0)


def test_the_rate_of_one_port_needs_an_expectation_or_peers(node: Node) -> None:
    node.inject(faults.ib_rate("mlx5_1", 100))
    assert node.bad() == [("fabric.rate", "warn", "mlx5_1/1")]
    node.toml.write_text(node.toml.read_text().replace("[expect]", "[expect]\nrate_gbps = 400"))
    assert node.bad() == [("fabric.rate", "fail", "mlx5_1/1")]


def test_only_some_checks_ask_only_their_probes(node: Node) -> None:
    node.inject(faults.nvml_block("dstate"), faults.ib_down("mlx5_0"))
    began = time.monotonic()
    answer = node.check("--only", "fabric.*")
    assert time.monotonic() - began < 30, "NVML was not asked"
    assert {f["check"].partition(".")[0] for f in answer.json["findings"]} == {"fabric"}
    assert {f["check"] for f in answer.json["findings"]} >= {"fabric.port_state", "fabric.rate"}
    assert answer.exit_code == 1


def test_no_library_and_no_driver_are_unknown(node: Node) -> None:
    node.configure(nvml_library="/nowhere/libnvidia-ml.so.1")
    answer = node.check()
    assert (answer.exit_code, answer.json["status"]) == (3, "unknown")
    (count,) = (f for f in answer.json["findings"] if f["check"] == "gpu.count")
    assert (count["status"], "/nowhere/libnvidia-ml.so.1" in count["evidence"]) == ("unknown", True)
    node.configure()
    node.inject(faults.nvml_error(9))
    assert node.bad() == [("gpu.count", "unknown", "GPUs")]


def test_nvml_that_sleeps_is_unknown_every_time(node: Node) -> None:
    node.configure(nvml_deadline_s=1.0, hang_confirm_s=0.5)
    node.inject(faults.nvml_block("sleep"))
    for _ in range(3):
        report = node.report()
        (hang,) = (f for f in report.findings if f.check == "gpu.driver_hang")
        assert hang.status is Status.UNKNOWN
        assert "nvmlInit did not return within 1 s" in hang.evidence
    assert not list(node.state_dir.glob("*-child")), "nothing is left behind"


def test_nvml_in_state_d_is_a_hang_at_the_second_look_past_the_confirmation_time(node: Node) -> None:
    node.configure(nvml_deadline_s=2.0, hang_confirm_s=600.0)
    node.inject(faults.nvml_block("dstate", function="nvmlDeviceGetCount_v2"))

    def hang() -> Any:
        (found,) = (f for f in node.report().findings if f.check == "gpu.driver_hang")
        return found

    first = hang()
    assert first.status is Status.UNKNOWN
    assert "nvmlDeviceGetCount" in first.evidence
    assert hang().status is Status.UNKNOWN, "not long enough"
    node.configure(nvml_deadline_s=2.0, hang_confirm_s=1.0)
    time.sleep(1.0)
    confirmed = hang()
    assert (confirmed.status, confirmed.drains) == (Status.FAIL, True)
    assert "state D" in confirmed.evidence
    assert [memo.name for memo in node.state_dir.glob("*-child")] == ["nvml-child"], "one child, not one a look"
    node.hardware.make_healthy()
    deadline = time.monotonic() + 60
    while hang().status is not Status.OK:
        assert time.monotonic() < deadline, "the driver came back and the hang did not go"
        time.sleep(0.2)


def test_a_kernel_log_that_is_missing_is_said(node: Node) -> None:
    node.configure(kmsg="/nowhere/kmsg")
    (found,) = [f for f in node.report().findings if f.status is not Status.OK]
    assert (found.check, found.status) == ("gpu.xid", Status.UNKNOWN)
    assert found.evidence.startswith("/nowhere/kmsg: No such file or directory")


def test_lines_that_users_wrote_into_the_kernel_log_do_not_count(node: Node) -> None:
    with (node.hardware.folder / "kmsg").open("a") as out:
        out.write("14,900,5000000,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has fallen off the bus.\n")
    assert node.bad() == []


def test_inside_a_job_node_wide_facts_are_unknown_and_act_refuses(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert ("gpu.count", "unknown", "GPUs") in node.bad()
    answer = node.check("--act")
    assert answer.exit_code == 3
    assert "refuses inside a job" in answer.error


def test_act_writes_the_state_and_says_what_could_not_be_done(node: Node) -> None:
    node.inject(faults.gpu_lost(2))
    answer = node.check("--act")
    assert answer.exit_code == 1
    state = (node.state_dir / "state").read_text()
    assert state.startswith("aistation-state 1 fail ")
    assert "gpu.lost" in state


def test_a_node_without_gpus_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("sys/bus/pci/devices", "proc"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    toml = tmp_path / "aistation.toml"
    facts = {"root": str(tmp_path / "root"), "kmsg": "/nowhere", "nvml_library": "/nowhere/lib.so"}
    lines = ["[probe]", *(f"{k} = {json.dumps(v)}" for k, v in facts.items()), "[node]"]
    lines += [f"state_dir = {json.dumps(str(tmp_path))}", 'gres_conf = "/nowhere"', "[expect]", 'disk_paths = ["/"]']
    toml.write_text("\n".join(lines))
    put(tmp_path / "root", "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    answer = aistation("check", "--config", toml, "--json")
    assert (answer.exit_code, answer.json["status"]) == (0, "ok")
    assert not [f for f in answer.json["findings"] if f["check"].startswith("gpu.")]


# ---- captured trees


def test_a_capture_is_judged_without_this_machine(node: Node, tmp_path: Path) -> None:
    root = node.hardware.root
    answer = aistation("check", "--root", root, "--json")
    assert (answer.exit_code, answer.json["status"]) == (0, "ok")
    assert answer.json["profile"] == "captured"
    checks = {f["check"] for f in answer.json["findings"]}
    assert checks >= {"gpu.count", "gpu.lost", "gpu.pcie", "fabric.port_state", "fabric.rate", "host.memory"}
    put(root, "etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-7]\n")
    node.inject(faults.gpu_lost(0), faults.gpu_missing(1))
    found = aistation("check", "--root", root, "--json").json["findings"]
    failed = {(f["check"], f["subject"]): f["evidence"] for f in found if f["status"] == "fail"}
    assert failed == {
        ("gpu.count", "GPUs"): "3 on the PCI bus, expected 8",
        ("gpu.lost", "GPU0 0000:18:00"): "PCI configuration reads 0xff",
    }


@pytest.mark.parametrize("place", ["dmesg", "var/log/kern.log", "var/log/messages", "journal.json"])
def test_a_captured_log_is_read_too(tmp_path: Path, place: str) -> None:
    add_port(tmp_path, "mlx5_0")
    text = "NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=x, Timeout"
    line = f"Nov 02 09:10:44 gpu1 kernel: {text}" if place.startswith("var") else f"[ 12.5] {text}"
    if place.endswith("json"):
        line = json.dumps({"_TRANSPORT": "kernel", "MESSAGE": text})
    put(tmp_path, place, line + "\n")
    answer = aistation("check", "--root", tmp_path, "--json")
    failed = [(f["check"], f["subject"]) for f in answer.json["findings"] if f["status"] == "fail"]
    assert (failed, answer.exit_code) == ([("gpu.xid", "GPU 0000:3b:00")], 1)


def test_wrong_usage_and_unusable_folders(tmp_path: Path) -> None:
    wrong = aistation("check", "--only", "gpu.nothing")
    assert wrong.exit_code == 2
    for options in (("--root", tmp_path, "--act"), ("--act", "--only", "gpu.*")):
        assert aistation("check", *options).exit_code == 2
    for folder in (tmp_path, tmp_path / "none"):
        answer = aistation("check", "--root", folder)
        assert answer.exit_code == 3
        assert str(folder) in answer.error
        assert "neither sys/ nor proc/" in answer.error
    (tmp_path / "sys").mkdir()
    assert aistation("check", "--root", tmp_path).exit_code == 3, "a tree that holds nothing to judge"


def test_the_table_for_people_shows_text_as_it_is(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_[red]", state="1: DOWN", phys_state="2: Polling", lid="0x5")
    shown = aistation("check", "--root", tmp_path).output
    assert "mlx5_[red]/1" in shown
    assert "fabric.port_state" in shown
    assert "check_cable" in shown
