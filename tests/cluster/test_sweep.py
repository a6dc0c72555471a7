"""`aistation sweep` on a real Slurm: what it finds, what it drains, what it gives back, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, gpu_lost, nvml_block

pytestmark = pytest.mark.cluster

ON_NODE = """#!/bin/sh
# As ssh would: run a command on a node, by the pid of its init as the controller sees it.
node=$1; shift
pid=$(cat "/shared/init/$node") && [ "$(nsenter --target="$pid" --uts hostname)" = "$node" ] || {
    echo "ssh: connect to host $node port 22: No route to host" >&2; exit 255
}
[ -e "/shared/garble.$node" ] && { echo "Welcome to $node"; exit 0; }
exec nsenter --target="$pid" --mount --net --uts --ipc --pid --time -- env PATH=/opt/bin:/usr/bin:/bin "$@"
"""
SWEEP = {
    "via": "command",
    "command": ["/shared/bin/on-node", "{node}"],
    "program": "/opt/bin/aistation",
    "timeout_s": 60.0,
    "passes": 2,
    "pass_every_s": 0.5,
    "least": 2,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    conf = "PartitionName=gpu Nodes=ALL Default=YES\nPartitionName=pair Nodes=gpu[1-2]"
    with Cluster(nodes=4, conf_extra=conf, config={"sweep": SWEEP, "probe": {"hang_confirm_s": 1.0}}) as up:
        folder = up.dir / "shared/bin"
        folder.mkdir()
        (folder / "on-node").write_text(ON_NODE, encoding="utf-8")
        (folder / "on-node").chmod(0o755)
        (up.dir / "shared/init").mkdir()
        yield up


@pytest.fixture(autouse=True)
def without_agents(cluster: Cluster) -> Iterator[None]:
    """No agent, which would drain before any sweep; healthy nodes in service afterwards."""
    for name in cluster.names:
        if name not in cluster.hosts_on:
            cluster.start_node(name)
        ready(cluster, name)
    yield
    for path in (cluster.dir / "shared").glob("garble.*"):
        path.unlink()
    cluster.reset()


def ready(cluster: Cluster, name: str) -> None:
    """Without its agent, and known to on-node."""
    if f"agent.{name}" in cluster._services:
        cluster.stop_agent(name)
    reach(cluster, name)


def reach(cluster: Cluster, name: str) -> None:
    """Where on-node finds it: the pid of its init in the controller's PID namespace."""
    status = Path(f"/proc/{cluster.host(name).pid}/status").read_text(encoding="ascii")
    pids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    (cluster.dir / "shared/init" / name).write_text(pids[2], encoding="ascii")


def sweep(cluster: Cluster, *words: str, timeout: float = 200) -> tuple[int, dict[str, Any], str]:
    done = cluster.run(["aistation", "sweep", "--json", *words], check=False, timeout=timeout)
    try:
        return done.returncode, json.loads(done.stdout), done.stderr
    except ValueError:
        return done.returncode, {}, done.stderr


def statuses(page: dict[str, Any]) -> dict[str, str]:
    return {row["node"]: row["status"] for row in page["nodes"]}


def kinds(page: dict[str, Any]) -> dict[str, str]:
    return {row["node"]: row["kind"] for row in page["actions"]}


def group(page: dict[str, Any], check: str) -> dict[str, Any]:
    return dict(next(row for row in page["groups"] if row["check"] == check))


def drain_by_sweep(cluster: Cluster, node: str) -> str:
    _, page, err = sweep(cluster, node, "--act")
    assert kinds(page) == {node: "drained"}, (page["actions"], err)
    return str(cluster.node(node)["reason"])


def test_what_many_nodes_say_is_gathered_and_nobody_is_drained_for_it(cluster: Cluster) -> None:
    code, page, err = sweep(cluster)
    assert set(statuses(page).values()) <= {"ok", "warn"}, page["groups"]
    assert code == 0, err
    cluster.inject("gpu1", gpu_lost(3))
    cluster.inject("gpu2", gpu_lost(3))
    (cluster.dir / "shared/garble.gpu3").touch()
    cluster.kill_node("gpu4")
    code, page, _ = sweep(cluster)
    assert code == 1
    assert statuses(page) == {"gpu1": "fail", "gpu2": "fail", "gpu3": "unknown", "gpu4": "unknown"}
    lost = group(page, "gpu.lost")
    assert (lost["nodes"], lost["count"], lost["action"]) == ("gpu[1-2]", 2, "reboot")
    assert "Welcome to gpu3" in group(page, "sweep.garbled")["evidence"]
    assert "No route to host" in group(page, "sweep.unreachable")["evidence"]
    assert page["actions"] == []
    assert not any("DRAIN" in cluster.node(name)["flags"] for name in cluster.names)
    text = cluster.run(["aistation", "sweep"], check=False, timeout=200)
    print(text.stdout)
    assert "unknown    2 gpu[3-4]" in text.stdout
    assert text.stderr == ""


def test_act_drains_what_failed_only_and_an_admins_drain_stays(cluster: Cluster) -> None:
    cluster.inject("gpu1", gpu_lost(3))
    cluster.inject("gpu2", gpu_lost(5))
    cluster.kill_node("gpu4")
    cluster.run(["scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=memory test, bob"])
    _, page, _ = sweep(cluster, "--act", "--dry-run")
    assert kinds(page) == {"gpu1": "would drain"}
    assert not cluster.node("gpu1")["flags"]
    code, page, err = sweep(cluster, "--act")
    assert (code, kinds(page)) == (1, {"gpu1": "drained"}), err
    assert cluster.node("gpu1")["reason"].startswith("ais:gpu.lost GPU3 ")
    assert cluster.node("gpu2")["reason"] == "memory test, bob"
    assert not any("DRAIN" in cluster.node(name)["flags"] for name in ("gpu3", "gpu4"))
    # the administrator gives it back as it is: a sweep does not argue
    cluster.run(["scontrol", "update", "NodeName=gpu1", "State=RESUME"])
    _, page, _ = sweep(cluster, "gpu1", "--act")
    assert kinds(page) == {"gpu1": "not drained"}
    assert "somebody gave it back" in page["actions"][0]["text"]


def test_more_failures_than_the_share_drain_nobody(cluster: Cluster) -> None:
    for name in ("gpu1", "gpu2", "gpu3"):
        cluster.inject(name, gpu_lost(1))
    _, page, _ = sweep(cluster, "--act")
    assert set(kinds(page).values()) == {"not drained"}
    assert "look for a common cause" in page["actions"][0]["text"]
    assert not any("DRAIN" in cluster.node(name)["flags"] for name in cluster.names)


def test_a_hung_driver_hangs_no_sweep(cluster: Cluster) -> None:
    cluster.inject("gpu1", nvml_block("dstate"))
    # shorter than the node's own deadline for the driver: ended here and there, unknown, left alone
    code, page, _ = sweep(cluster, "gpu1", "--act", "--timeout", "1")
    assert (code, statuses(page), page["actions"]) == (1, {"gpu1": "unknown"}, [])
    assert group(page, "sweep.no_answer")["nodes"] == "gpu1"
    _, page, _ = sweep(cluster)
    found = statuses(page)
    assert found.pop("gpu1") in ("unknown", "fail")
    assert set(found.values()) <= {"ok", "warn"}

    def drained() -> bool:
        return kinds(sweep(cluster, "gpu1", "--act")[1]) == {"gpu1": "drained"}

    cluster.wait_for(drained, 120, "the hang to be confirmed", 2.0)
    assert cluster.node("gpu1")["reason"].startswith("ais:gpu.driver_hang ")


def test_return_to_service_wants_a_boot_passes_and_our_own_reason(cluster: Cluster) -> None:
    cluster.inject("gpu1", gpu_lost(3))
    cluster.inject("gpu2", gpu_lost(3))
    reason = drain_by_sweep(cluster, "gpu1")
    drain_by_sweep(cluster, "gpu2")
    cluster.run(["scontrol", "update", "NodeName=gpu2", f"Reason={cluster.node('gpu2')['reason']} ordered"])
    cluster.run(["scontrol", "update", "NodeName=gpu3", "State=DRAIN", "Reason=memory test, bob"])
    cluster.heal("gpu1")
    _, page, _ = sweep(cluster, "--return-to-service")
    assert kinds(page) == {"gpu1": "not returned", "gpu2": "not returned"}
    assert "waits for a reboot" in page["actions"][0]["text"]
    assert "was changed since" in page["actions"][1]["text"]
    cluster.kill_node("gpu1")
    cluster.start_node("gpu1")
    if "agent.gpu1" not in cluster._services:
        cluster.start_agent("gpu1")  # it must not take what the sweep does for somebody's argument
    reach(cluster, "gpu1")
    dry = ("gpu1", "--return-to-service", "--dry-run")
    cluster.wait_for(lambda: kinds(sweep(cluster, *dry)[1]) == {"gpu1": "would return"}, 120, "gpu1 registers", 2.0)
    assert cluster.node("gpu1")["reason"] == reason
    _, page, err = sweep(cluster, "--return-to-service")
    assert kinds(page) == {"gpu1": "returned", "gpu2": "not returned"}, (page["actions"], err)
    assert not cluster.node("gpu1")["flags"]
    assert cluster.node("gpu3")["reason"] == "memory test, bob"
    job = cluster.submit("srun hostname", "--nodes=1", "--gpus-per-node=8", "--nodelist=gpu1", user="alice")
    cluster.wait_job(job, "COMPLETED")
    assert not cluster.node("gpu1")["flags"]


def test_a_node_with_a_job_or_a_fault_is_not_given_back(cluster: Cluster) -> None:
    job = cluster.submit("sleep 600", "--nodes=1", "--gpus-per-node=1", "--nodelist=gpu1", user="alice")
    cluster.wait_job(job, "RUNNING")
    cluster.inject("gpu1", gpu_lost(3))
    drain_by_sweep(cluster, "gpu1")
    _, page, _ = sweep(cluster, "gpu1", "--return-to-service")
    assert "not empty" in page["actions"][0]["text"]
    cluster.wait_job(job, "RUNNING", timeout=5)
    cluster.run(["scancel", str(job)])
    cluster.wait_for(lambda: cluster.node("gpu1")["state"] == "IDLE", 60, "gpu1 is empty")
    _, page, _ = sweep(cluster, "gpu1", "--return-to-service")
    assert "DRAIN" in cluster.node("gpu1")["flags"]


def test_two_sweeps_at_once(cluster: Cluster) -> None:
    cluster.inject("gpu1", gpu_lost(3))
    argv = ["aistation", "sweep", "--act", "--json"]
    both = [cluster.popen(argv, stdin=subprocess.DEVNULL) for _ in range(2)]
    ends = [(*process.communicate(timeout=200), process.returncode) for process in both]
    codes = sorted(code for _, _, code in ends)
    assert codes == [1, 3], ends
    assert "another sweep acts right now" in next(err for _, err, code in ends if code == 3)
    assert cluster.node("gpu1")["reason"].startswith("ais:gpu.lost GPU3 ")


def test_with_slurmctld_stopped_named_nodes_are_still_checked_and_nothing_is_done(cluster: Cluster) -> None:
    cluster.inject("gpu1", gpu_lost(3))
    cluster.stop_slurmctld()
    try:
        code, page, err = sweep(cluster, "gpu[1-2]")
        assert (code, page["slurm_answered"]) == (1, False), err
        assert statuses(page)["gpu1"] == "fail"
        assert sweep(cluster)[0] == 3
        code, page, err = sweep(cluster, "--act")
        assert (code, page) == (3, {}), err
    finally:
        cluster.start_slurmctld()
    assert not cluster.node("gpu1")["flags"]


def test_over_slurm_a_silent_node_is_not_taken_for_a_healthy_one(cluster: Cluster) -> None:
    code, page, _ = sweep(cluster, "gpu1", "--via", "slurm")
    assert (code, statuses(page)) == (1, {"gpu1": "unknown"})
    cluster.inject("gpu1", gpu_lost(3))
    drain_by_sweep(cluster, "gpu1")
    code, page, _ = sweep(cluster, "gpu1", "--via", "slurm")
    assert (code, statuses(page)) == (1, {"gpu1": "fail"})
    assert group(page, "gpu.lost")["evidence"].startswith("ais:gpu.lost GPU3")
    assert sweep(cluster, "gpu1", "--via", "slurm", "--act")[0] == 2


def test_partitions_and_names(cluster: Cluster) -> None:
    _, page, _ = sweep(cluster, "@pair")
    assert set(statuses(page)) == {"gpu1", "gpu2"}
    for wrong, said in {"@nosuch": "there are: ", "gpu[1-9]": "Slurm has no node gpu[5-9]", "gpu[1": "bracket"}.items():
        code, _, err = sweep(cluster, wrong)
        assert code == 2, err
        assert said in err
