"""Host facts and the site's own checks, through ``aistation check`` on the make-believe node and on captured trees."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from aistation_slurm.config import Check, Expect, Mount
from aistation_slurm.findings import Status
from aistation_slurm.node.site_checks import run_site_checks
from aistation_slurm.probes import command, storage, system
from tests.cluster import faults
from tests.unit.cases_health.cases import put
from tests.unit.cases_health.commands import aistation
from tests.unit.cases_health.node import Node


def script(folder: Path, name: str, body: str, mode: int = 0o755) -> Path:
    folder.mkdir(exist_ok=True, mode=0o755)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


def add(node: Node, text: str) -> None:
    node.toml.write_text(node.toml.read_text() + text)


# ---- the site's own checks


def test_the_sites_checks_run_and_are_reported(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "checks.d"
    script(folder, "10-ok.sh", "echo fine")
    script(folder, "20-raid.sh", "echo; echo member sdb is missing; exit 1")
    script(folder, "30-odd.sh", "exit 77")
    script(folder, "40-notes.txt", "exit 1", mode=0o644)
    script(folder, ".hidden", "exit 1")
    script(folder, "20-raid.sh.rpmsave", "exit 1")
    add(node, f'[check]\nplugins_dir = "{folder}"\n')
    answer = node.check()
    found = {f["check"]: f for f in answer.json["findings"] if f["check"].startswith("site.")}
    assert {name: f["status"] for name, f in found.items()} == {
        "site.10-ok": "ok",
        "site.20-raid": "fail",
        "site.30-odd": "unknown",
    }
    assert (found["site.20-raid"]["evidence"], found["site.20-raid"]["scope"]) == ("member sdb is missing", "shared")
    assert (answer.exit_code, answer.json["status"]) == (1, "fail")
    only = node.check("--only", "site.*").json["findings"]
    assert {f["check"] for f in only} == set(found)


def test_a_rule_lets_a_sites_check_drain_and_turns_another_off(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "checks.d"
    script(folder, "raid", "exit 1")
    script(folder, "smart", "exit 1")
    add(node, f'[check]\nplugins_dir = "{folder}"\n[checks."site.raid"]\naction = "drain"\n')
    add(node, '[checks."site.smart"]\nenabled = false\n[checks."host.*"]\nseverity = "warn"\n')
    report = node.report(slow_max_age_s=0.0)
    assert [(f.check, f.drains) for f in report.findings if f.check.startswith("site.")] == [("site.raid", True)]


def test_a_site_check_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    folder, mark = tmp_path / "checks.d", tmp_path / "pid"
    script(folder, "slow", f"sleep 600 & echo $! > {mark}; wait")
    began = time.monotonic()
    (result,) = run_site_checks(Check(plugins_dir=str(folder), plugin_deadline_s=1.0), "gpu1")
    assert (result.code, result.error) == (None, f"{folder}/slow did not end within 1 s")
    assert time.monotonic() - began < 30
    child, deadline = Path(f"/proc/{mark.read_text().strip()}/stat"), time.monotonic() + 30
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the check's own child lives on"
        time.sleep(0.1)


def test_all_together_have_a_budget(tmp_path: Path) -> None:
    folder = tmp_path / "checks.d"
    for name in "abc":
        script(folder, name, "sleep 600")
    settings = Check(plugins_dir=str(folder), plugin_deadline_s=1.0, plugins_budget_s=1.5)
    errors = [r.error for r in run_site_checks(settings, "gpu1")]
    assert "did not end within 1 s" in errors[0]
    assert errors[2] == "not run: the others took all 1.5 s"


def test_what_others_may_write_is_not_run(tmp_path: Path) -> None:
    folder, mark = tmp_path / "checks.d", tmp_path / "ran"
    script(folder, "loose", f"touch {mark}", mode=0o777)
    theirs = script(folder, "theirs", f"touch {mark}")
    settings = Check(plugins_dir=str(folder))
    if os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
        by_name = {r.name: r.error for r in run_site_checks(settings, "gpu1")}
        assert "belongs to uid 65534, not to root" in by_name["theirs"]
    loose = next(r for r in run_site_checks(settings, "gpu1") if r.name == "loose")
    assert "may be written by others" in loose.error
    folder.chmod(0o777)
    assert all(r.error for r in run_site_checks(settings, "gpu1"))
    assert not mark.exists()
    assert run_site_checks(Check(plugins_dir=str(tmp_path / "none")), "gpu1") == []


def test_those_in_a_hurry_use_the_last_answers(node: Node, tmp_path: Path) -> None:
    folder, count = tmp_path / "checks.d", tmp_path / "count"
    script(folder, "slow", f"echo x >> {count}; exit 2")
    add(node, f'[check]\nplugins_dir = "{folder}"\n')

    def site(max_age_s: object) -> list[str]:
        report = node.report(only=["site.*"], slow_max_age_s=max_age_s)
        return [f.status.value for f in report.findings]

    assert site(None) == [], "nothing is known, and there is no time to ask"
    assert site(0.0) == ["warn"]
    assert site(None) == ["warn"]
    assert site(3600.0) == ["warn"]
    assert count.read_text().split() == ["x"], "asked once"
    assert site(0.0) == ["warn"]
    assert count.read_text().split() == ["x", "x"]


def test_a_programs_output_and_end() -> None:
    ended = command.run(["/bin/sh", "-c", "head -c 1000000 /dev/zero; echo; exit 3"], 60)
    assert (ended.code, len(ended.output)) == (3, command.MOST_BYTES)
    assert command.run(["/bin/sh", "-c", "echo out; echo err >&2"], 60).output == "out\n"
    assert command.run(["/bin/sh", "-c", "echo err >&2"], 60, stderr=True).output == "err\n"
    began = time.monotonic()
    assert command.run(["/bin/sh", "-c", "echo kept; sleep 600 & exit 0"], 60).output == "kept\n"
    assert time.monotonic() - began < 30, "a child that keeps the pipe open is not waited for"
    assert command.run(["/nowhere/x"], 1).error == "/nowhere/x: No such file or directory"
    assert command.run(["/bin/sh", "-c", "kill -9 $$"], 60).code == -9


# ---- facts of the tree

STAT = "{pid} ({name}) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n"


@pytest.mark.parametrize(
    ("files", "bad"),
    [
        ({"sys/devices/system/edac/mc/mc0/ue_count": "1", "sys/devices/system/edac/mc/mc0/ce_count": "0"},
         {("host.memory_errors", "fail", "mc0")}),
        ({"sys/devices/system/edac/mc/mc0/ue_count": "0", "sys/devices/system/edac/mc/mc0/ce_count": "7"}, set()),
        ({"proc/sys/kernel/tainted": "12289"}, set()),
        ({"proc/sys/kernel/tainted": "12305"}, {("host.kernel", "warn", "kernel")}),
        ({"sys/class/nvme/nvme0/state": "live"}, set()),
        ({"sys/class/nvme/nvme0/state": "dead", "sys/class/nvme/nvme0/transport": "pcie"}, {("host.nvme", "fail", "nvme0")}),
        ({"etc/fstab": "UUID=1 / ext4 errors=remount-ro 0 1\n", "proc/mounts": "/dev/sda1 / ext4 ro,relatime 0 0\n"},
         {("host.mounts", "warn", "/")}),
        ({"etc/fstab": "# c\nUUID=1 / ext4 defaults 0 1\nUUID=2 none swap sw 0 0\ns:/x /x nfs nofail 0 0\n",
          "proc/mounts": "/dev/sda1 / ext4 rw,relatime 0 0\n"}, set()),
        ({"etc/fstab": "srv:/home /home nfs4 defaults 0 0\n", "proc/mounts": "/dev/sda1 / ext4 rw 0 0\n"},
         {("host.mounts", "warn", "/home")}),
        ({"proc/7/stat": STAT.format(pid=7, name="a) D (b", state="Z", flags=0, start=5)}, set()),
        ({f"proc/{i}/stat": STAT.format(pid=i, name="x", state="Z", flags=0, start=5) for i in range(1, 102)},
         {("host.zombies", "warn", "processes")}),
        ({f"proc/{i}/stat": STAT.format(pid=i, name="x", state="D", flags=0x200040, start=5) for i in range(1, 102)}, set()),
        ({f"proc/{i}/stat": STAT.format(pid=i, name="x", state="D", flags=0x400040, start=5) for i in range(1, 102)},
         {("host.blocked", "warn", "processes")}),
        ({"dmesg": "[ 9.1] EXT4-fs (sda1): Remounting filesystem read-only\n"}, {("host.mounts", "warn", "sda1")}),
    ],
)  # fmt: skip
def test_a_captured_tree(tmp_path: Path, files: dict[str, str], bad: set[tuple[str, str, str]]) -> None:
    put(tmp_path, "proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n")
    for path, text in files.items():
        put(tmp_path, path, text)
    answer = aistation("check", "--root", tmp_path, "--json")
    found = {(f["check"], f["status"], f["subject"]) for f in answer.json["findings"] if f["status"] != "ok"}
    assert found == bad


@pytest.mark.parametrize(
    ("facts", "other", "slot", "status"),
    [
        ({"current_link_width": "16", "current_link_speed": "2.5 GT/s PCIe"}, {}, "", "ok"),
        ({"current_link_width": "8"}, {}, "", "fail"),
        ({"current_link_width": "8"}, {"current_link_width": "8"}, "", "warn"),
        ({"current_link_width": "63", "current_link_speed": "Unknown"}, {}, "", None),
        ({"current_link_width": "0"}, {}, "", None),
        ({"current_link_width": "8"}, {"current_link_width": "16"}, "16", "fail"),
        ({"current_link_width": "8"}, {"current_link_width": "8"}, "8", "ok"),
    ],
)
def test_pcie_links_of_a_captured_tree(
    tmp_path: Path, facts: dict[str, str], other: dict[str, str], slot: str, status: object
) -> None:
    """Three like cards; the first two differ as given, the third is x16 unless both are not."""
    links: list[dict[str, str]] = [facts, {"current_link_width": "16", **other}]
    links.append({"current_link_width": other.get("current_link_width", "16")})
    for number, link in enumerate(links):
        address = f"0000:{0x18 + number:02x}:00.0"
        port = f"sys/devices/pci0000:00/0000:00:0{number}.0"
        all_facts = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "max_link_width": "16", **link}
        all_facts.setdefault("current_link_speed", "32.0 GT/s PCIe")
        for name, value in all_facts.items():
            put(tmp_path, f"{port}/{address}/{name}", value + "\n")
        (tmp_path / port / address / "config").write_bytes(b"\xde\x10\x30\x23" + bytes(60))
        if slot:
            put(tmp_path, f"{port}/max_link_width", slot + "\n")
        (tmp_path / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(tmp_path / port / address)
    found = aistation("check", "--root", tmp_path, "--json").json["findings"]
    mine = [f["status"] for f in found if f["check"] == "gpu.pcie" and f.get("device") == "0000:18:00.0"]
    assert mine == ([] if status is None else [status])


def test_no_gpu_on_the_bus_where_gres_conf_names_eight(tmp_path: Path) -> None:
    put(tmp_path, "etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-7]\n")
    put(tmp_path, "sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086\n")
    (count,) = [
        f for f in aistation("check", "--root", tmp_path, "--json").json["findings"] if f["check"] == "gpu.count"
    ]
    assert (count["status"], count["evidence"]) == ("fail", "0 on the PCI bus, expected 8")


# ---- facts of the running machine


def test_chronys_words() -> None:
    line = "A29FC801,162.159.200.1,4,1764565200.123,-0.734000012,0.000001,0.00002,-12.3,0.001,0.02,0.01,0.001,64.2,Normal\n"
    assert system.parse_tracking(line) == system.Clock(True, -0.734000012, "chronyc")
    off = line.replace("Normal", "Not synchronised")
    told = system.parse_tracking(off)
    assert told is not None
    assert told.synchronized is False
    assert system.parse_tracking("506 Cannot talk to daemon\n") is None


def test_a_mount_that_answers_and_one_that_does_not_exist(tmp_path: Path) -> None:
    good, gone = storage.ask_mounts([str(tmp_path), str(tmp_path / "gone")], tmp_path / "run", "boot")
    assert (good.error, gone.error, gone.late) == ("", "No such file or directory", False)


def test_services_and_clock_answer_in_time_or_say_why() -> None:
    began = time.monotonic()
    states = system.read_services(("nothing-of-this-name.service",))
    clock = system.read_clock()
    assert time.monotonic() - began < 60
    (state,) = states.values()
    assert state.startswith("?") or state in ("inactive", "unknown", "failed")
    assert clock.synchronized in (True, False, None)


def test_expected_mounts_of_the_make_believe_node(node: Node) -> None:
    node.inject(
        faults.host_file("proc/mounts", "s:/home /home nfs4 ro,relatime 0 0\ns:/my\\040data /my\\040data nfs4 rw 0 0\n")
    )
    add(node, "")
    text = node.toml.read_text().replace(
        'disk_paths = ["/"]',
        'disk_paths = ["/"]\nmounts = [{path = "/home"}, {path = "/my data"}, {path = "/scratch"}]',
    )
    node.toml.write_text(text)
    assert node.config.expect == Expect(
        disk_free_percent=0.0, disk_paths=("/",), mounts=(Mount("/home"), Mount("/my data"), Mount("/scratch"))
    )
    found = {f.subject: f for f in node.report(only=["host.mounts"]).findings}
    assert {path: f.status for path, f in found.items()} == {
        "/home": Status.FAIL,
        "/my data": Status.OK,
        "/scratch": Status.FAIL,
    }
    assert not any(f.drains for f in found.values())
