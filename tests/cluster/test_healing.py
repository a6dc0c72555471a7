"""Self-healing on a real Slurm: our own drain on an empty node, an action, checks, and back to service or to a person."""

from __future__ import annotations

import json
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, ecc_uncorrectable, gpu_lost, gpu_process

pytestmark = pytest.mark.cluster

RESET = """#!/bin/sh
# A reset as the node's make-believe hardware takes it: argv is --gpu-reset -i 0000:18:00.0
echo "$3" >>"/shared/resets.$(hostname)"
[ -e /shared/slow ] && sleep 300
[ -e /shared/useless ] && { echo "GPU $3 could not be reset" >&2; exit 3; }
state=/run/aisim/nvml.state
index=$(sed -n "s/^gpu\\.\\([0-9]*\\)\\.pci 0000$(echo "$3" | tr a-f A-F)\\$/\\1/p" $state)
grep -v "^gpu\\.$index\\.\\(ecc\\.volatile\\|recovery_action\\)" $state >$state.reset && mv $state.reset $state
"""
REBOOT = """#!/bin/sh
echo asked >>"/shared/reboots.$(hostname)"
"""
HEALING = {
    "enabled": True,
    "reset": ["/shared/bin/gpu-reset", "--gpu-reset", "-i", "{pci}"],
    "settle_s": 0.0,
    "pass_every_s": 0.5,
    "passes": 2,
    "every_s": 1.0,
    "deadline_s": 20.0,
    "same_fault_s": 0.0,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    conf = "RebootProgram=/shared/bin/node-reboot\nResumeTimeout=120"
    with Cluster(
        nodes=2, conf_extra=conf, config={"healing": HEALING, "node": {"poll_s": 2.0}, "watchdog": {"poll_s": 0.5}}
    ) as up:
        folder = up.dir / "shared/bin"
        folder.mkdir()
        for name, text in {"gpu-reset": RESET, "node-reboot": REBOOT}.items():
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    """Every test starts with healthy nodes in service, nothing remembered, resets that help."""
    yield
    for pattern in ("resets.*", "reboots.*", "useless", "slow"):
        for path in (cluster.dir / "shared").glob(pattern):
            path.unlink()
    cluster.reset()
    for name in cluster.names:
        for path in folder_of(cluster, name).glob("*"):
            path.unlink()


def folder_of(cluster: Cluster, node: str) -> Path:
    return cluster.disk(node) / "var/lib/aistation/healing"


def case_of(cluster: Cluster, node: str) -> dict[str, Any]:
    """The newest case in the node's history; empty where there is none."""
    path = folder_of(cluster, node) / f"{node}.json"
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.exists() else []
    return dict(cases[-1]) if cases else {}


def lines(cluster: Cluster, name: str) -> list[str]:
    path = cluster.dir / "shared" / name
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def drained(cluster: Cluster, node: str) -> str:
    return str(
        cluster.wait_for(
            lambda: "DRAIN" in cluster.node(node)["flags"] and cluster.node(node)["reason"], 60, f"{node} is drained"
        )
    )


def in_service(cluster: Cluster, node: str) -> None:
    cluster.wait_for(
        lambda: cluster.node(node)["state"] == "IDLE" and not cluster.node(node)["flags"], 90, f"{node} is in service"
    )


def inspected(cluster: Cluster, node: str) -> str:
    return str(
        cluster.wait_for(
            lambda: " inspect: " in cluster.node(node)["reason"] and cluster.node(node)["reason"], 120, "an inspection"
        )
    )


def test_a_reset_that_heals_gives_the_node_back(cluster: Cluster) -> None:
    cluster.inject("gpu1", ecc_uncorrectable(0))
    drained(cluster, "gpu1")
    in_service(cluster, "gpu1")
    assert lines(cluster, "resets.gpu1") == [cluster.hardware["gpu1"].gpu(0).pci]
    cluster.wait_for(lambda: case_of(cluster, "gpu1")["state"] == "returned", 10, "the case is closed")
    # a job starts there: neither gate nor agent holds the old messages against the node
    job = cluster.submit("srun hostname", "--nodes=1", "--gpus-per-node=8", "--nodelist=gpu1", user="alice")
    cluster.wait_job(job, "COMPLETED", timeout=60)
    time.sleep(5)
    assert not cluster.node("gpu1")["flags"]


def test_a_reset_that_does_not_help_is_tried_twice_and_then_a_person_is_asked(cluster: Cluster) -> None:
    (cluster.dir / "shared/useless").touch()
    cluster.inject("gpu1", ecc_uncorrectable(2, 5))
    ident = drained(cluster, "gpu1")[-8:]
    reason = inspected(cluster, "gpu1")
    assert reason.startswith("ais:gpu."), reason
    assert reason.endswith(ident), reason
    hardware = cluster.hardware["gpu1"].gpu(2)
    assert lines(cluster, "resets.gpu1") == [hardware.pci] * 2
    (archive,) = folder_of(cluster, "gpu1").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        texts = {Path(m.name).name: tar.extractfile(m).read().decode() for m in tar.getmembers()}  # type: ignore[union-attr]
    assert set(texts) == {"evidence.json", "evidence.txt", "kernel.log"}
    facts = json.loads(texts["evidence.json"])
    card = next(gpu for gpu in facts["gpus"] if gpu["pci"] == hardware.pci)
    assert (card["serial"], card["uuid"], card["suspect"]) == (hardware.serial, hardware.uuid, True)
    assert card["counters"]["ecc_volatile"] == 5
    assert [attempt["action"] for attempt in facts["attempts"]] == ["gpu_reset", "gpu_reset"]
    assert "could not be reset" in facts["attempts"][0]["outcome"]
    assert any("Xid" in line and ": 48," in line for line in facts["xids"]), facts["xids"]
    assert hardware.serial in texts["evidence.txt"]
    status = json.loads(cluster.run(["aistation", "status", "--json"], check=False).stdout)
    (row,) = status["drained_by_us"]
    assert row["evidence"] == f"gpu1:/var/lib/aistation/healing/{archive.name}"
    time.sleep(4)
    assert len(lines(cluster, "resets.gpu1")) == 2, "nothing more is tried"
    assert cluster.node("gpu1")["reason"] == reason


def test_an_administrator_who_takes_the_drain_over_is_left_alone(cluster: Cluster) -> None:
    (cluster.dir / "shared/useless").touch()
    job = cluster.submit("sleep 600", "--nodes=1", "--gpus-per-node=1", "--nodelist=gpu1", user="alice")
    cluster.wait_job(job, "RUNNING")
    cluster.inject("gpu1", ecc_uncorrectable(0))
    drained(cluster, "gpu1")
    cluster.wait_for(lambda: "not empty" in str(case_of(cluster, "gpu1").get("steps")), 60, "healing waits for the job")
    assert lines(cluster, "resets.gpu1") == []
    cluster.run(["scontrol", "update", "NodeName=gpu1", "Reason=card is ordered, leave it"])
    cluster.run(["scancel", str(job)])
    cluster.wait_for(lambda: case_of(cluster, "gpu1")["state"] == "left", 60, "healing lets go")
    time.sleep(3)
    assert lines(cluster, "resets.gpu1") == []
    assert cluster.node("gpu1")["reason"] == "card is ordered, leave it"
    assert "DRAIN" in cluster.node("gpu1")["flags"]


def test_a_job_and_a_process_on_a_gpu_are_waited_for(cluster: Cluster) -> None:
    job = cluster.submit("sleep 600", "--nodes=1", "--gpus-per-node=1", "--nodelist=gpu1", user="alice")
    cluster.wait_job(job, "RUNNING")
    cluster.inject("gpu1", ecc_uncorrectable(7))
    drained(cluster, "gpu1")
    cluster.wait_for(lambda: "not empty" in str(case_of(cluster, "gpu1").get("steps")), 60, "healing waits for the job")
    left = cluster.popen(["sleep", "600"], "bob", "gpu1", stdin=subprocess.DEVNULL)
    find = ["pgrep", "-x", "-u", "bob", "sleep"]
    pid = int(cluster.wait_for(lambda: cluster.run(find, host="gpu1", check=False).stdout, 30, "the process to run"))
    gpu_process(3, pid).apply(cluster.hardware["gpu1"])
    cluster.run(["scancel", str(job)])
    cluster.wait_for(
        lambda: f"process {pid} (sleep" in str(case_of(cluster, "gpu1")["steps"]), 60, "it waits for the process"
    )
    assert lines(cluster, "resets.gpu1") == []
    cluster.run(["kill", "-KILL", str(pid)], host="gpu1")
    left.communicate(timeout=30)
    in_service(cluster, "gpu1")
    assert len(lines(cluster, "resets.gpu1")) == 1


def test_a_reboot_keeps_the_reason_and_the_node_returns_after_its_new_boot(cluster: Cluster) -> None:
    cluster.inject("gpu1", gpu_lost(3))
    reason = drained(cluster, "gpu1")
    cluster.wait_for(lambda: lines(cluster, "reboots.gpu1"), 60, "RebootProgram runs")
    node = cluster.node("gpu1")
    assert node["reason"] == f"{reason} : reboot issued"
    assert "DRAIN" in node["flags"]
    cluster.kill_node("gpu1")
    cluster.heal("gpu1")
    cluster.start_node("gpu1")
    in_service(cluster, "gpu1")
    assert lines(cluster, "reboots.gpu1") == ["asked"]
    case = case_of(cluster, "gpu1")
    assert case["reason"] == reason
    assert "stands again as before the reboot" in str(case["steps"])


def incidents(cluster: Cluster, text: str) -> list[str]:
    told = json.loads(cluster.run(["aistation", "incidents", "--json"]).stdout)["incidents"]
    return [row["text"] for row in told if text in row["text"]]


def test_two_reboots_that_do_not_help_end_in_an_inspection_with_what_the_kernel_said_before_them(
    cluster: Cluster,
) -> None:
    cards = folder_of(cluster, "gpu1") / "gpu1-gpus.json"
    cluster.wait_for(cards.exists, 30, "the agent to learn who its GPUs are")
    # the watchdog asks for nodes while it has a job to look after
    waits = cluster.submit(
        "true", "--nodelist=gpu1", "--gpus-per-node=8", "--ais-resume", "--begin=now+1hour", user="bob"
    )
    time.sleep(3)  # what stands at the watchdog's first look at nodes is no news to it
    cluster.inject("gpu1", gpu_lost(3))
    ident = drained(cluster, "gpu1")[-8:]
    for count in (1, 2):
        cluster.wait_for(lambda: len(lines(cluster, "reboots.gpu1")) == count, 90, f"reboot {count}")  # noqa: B023
        time.sleep(2.5)
        cluster.kill_node("gpu1")
        cluster.start_node("gpu1")
    reason = inspected(cluster, "gpu1")
    assert reason.endswith(ident)
    told = cluster.wait_for(lambda: incidents(cluster, "healing has given up"), 60, "the incident")
    assert f"gpu1: healing has given up: {reason}; evidence in gpu1:/var/lib/aistation/healing/" in told[0]
    assert incidents(cluster, "reboot, the drain stays"), incidents(cluster, "")
    cluster.run(["scancel", str(waits)])
    assert len(lines(cluster, "reboots.gpu1")) == 2
    (archive,) = folder_of(cluster, "gpu1").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        member = next(m for m in tar.getmembers() if m.name.endswith("evidence.json"))
        facts = json.load(tar.extractfile(member))  # type: ignore[arg-type]
    assert any(": 79," in line for line in facts["xids"]), "the first boot's log is gone but for what was kept"
    hardware = cluster.hardware["gpu1"].gpu(3)
    card = next(gpu for gpu in facts["gpus"] if gpu["pci"] == hardware.pci)
    assert (card["serial"], card["suspect"]) == (hardware.serial, True), "kept from when the card still spoke"


def test_killed_between_record_and_end_of_the_action_it_has_a_bound(cluster: Cluster) -> None:
    """kill -9 in the middle of each reset: an attempt each, the node never in service, then an inspection."""
    (cluster.dir / "shared/slow").touch()
    cluster.inject("gpu1", ecc_uncorrectable(1))
    drained(cluster, "gpu1")
    for count in (1, 2):
        cluster.wait_for(lambda: len(lines(cluster, "resets.gpu1")) == count, 120, f"reset {count}")  # noqa: B023
        cluster.stop_agent("gpu1", signal.SIGKILL)
        assert "DRAIN" in cluster.node("gpu1")["flags"]
        cluster.start_agent("gpu1")
    inspected(cluster, "gpu1")
    assert len(lines(cluster, "resets.gpu1")) == 2
    assert [a["outcome"] for a in case_of(cluster, "gpu1")["attempts"]] == ["", ""]


def test_many_at_once_are_one(cluster: Cluster) -> None:
    cluster.inject("gpu2", ecc_uncorrectable(4))
    cluster.stop_agent("gpu2")
    cluster.run(["aistation", "check", "--act"], host="gpu2", check=False)
    drained(cluster, "gpu2")
    (cluster.dir / "shared/slow").touch()
    (cluster.dir / "shared/useless").touch()
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda _: cluster.run(["aistation", "heal"], host="gpu2", check=False).stdout, range(4)))
    assert sum("reset 0000:" in text for text in said) == 1, said
    assert sum("another process heals" in text for text in said) == 3, said
    assert len(lines(cluster, "resets.gpu2")) == 1
    assert "did not end within 20 s" in case_of(cluster, "gpu2")["attempts"][0]["outcome"]
    assert cluster.run(["pgrep", "-x", "sleep"], host="gpu2", check=False).stdout == "", "ended as a group"
    cluster.start_agent("gpu2")


def test_the_breaker_and_a_dry_run_do_nothing_and_say_so(cluster: Cluster) -> None:
    run = Path(f"/proc/{cluster.host('gpu1').pid}/root/run/aistation")
    cluster.inject("gpu1", ecc_uncorrectable(0))
    cluster.stop_agent("gpu1")
    cluster.run(["aistation", "check", "--act"], host="gpu1", check=False)
    drained(cluster, "gpu1")
    dry = cluster.run(["aistation", "heal", "--dry-run"], host="gpu1", check=False)
    assert dry.returncode == 1
    assert f"would reset {cluster.hardware['gpu1'].gpu(0).pci}" in dry.stdout
    (run / "breaker").write_text(f"open {time.time() + 600:.0f} sixty nodes at once\n", encoding="ascii")
    held = cluster.run(["aistation", "heal", "gpu1"], host="gpu1", check=False)
    assert held.returncode == 1
    assert "breaker is open" in held.stdout
    assert lines(cluster, "resets.gpu1") == []
    (run / "breaker").unlink()
    other = cluster.run(["aistation", "heal", "gpu2"], host="gpu1", check=False)
    assert (other.returncode, "this node is gpu1" in other.stderr) == (2, True)
    for _ in range(3):
        time.sleep(0.6)
        cluster.run(["aistation", "heal"], host="gpu1", check=False)
    in_service(cluster, "gpu1")
    assert len(lines(cluster, "resets.gpu1")) == 1
    cluster.start_agent("gpu1")
