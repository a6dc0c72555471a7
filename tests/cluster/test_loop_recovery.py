"""The watchdog on a real Slurm: every recovery happens exactly once, and nothing of anybody else is touched.

The agents are stopped: the drains here are set by hand in an agent's words, so that each test says when what happens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

OURS = "ais:gpu.lost GPU3 0000:8f:00 PCI configuration reads 0xff [abc123]"
# The second start ends by itself after a while, so that a test can look at it and need not wait for long.
JOB = """#!/bin/bash
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exec srun sleep 4
exec srun sleep 600
"""
STOCK_DELAY_S = 121


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, aistation=True, config={"watchdog": {"poll_s": 5.0}}) as up:
        for name in up.names:
            up.stop_agent(name)
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.reset()


def submit(cluster: Cluster, *options: str, script: str = JOB) -> int:
    return cluster.submit(script, "--gpus-per-node=8", "--ais-resume", *options, user="alice")


def running(cluster: Cluster, *options: str, script: str = JOB) -> tuple[int, list[str]]:
    """A job that runs and that the watchdog has seen; its nodes."""
    job_id = submit(cluster, *options, script=script)
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    cluster.wait_for(lambda: "started" in kinds(cluster, job_id), 60, "the watchdog has seen the job run")
    return job_id, cluster.expand(cluster.show_job(job_id)["NodeList"])


def drain(cluster: Cluster, node: str, reason: str = OURS) -> None:
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])


def incidents(cluster: Cluster, job_id: int) -> list[dict[str, Any]]:
    shown = cluster.run(["aistation", "incidents", "--json", "--job", str(job_id)], check=False)
    return list(json.loads(shown.stdout)["incidents"]) if shown.returncode == 0 else []


def kinds(cluster: Cluster, job_id: int) -> list[str]:
    return [row["kind"] for row in incidents(cluster, job_id)]


def back_elsewhere(cluster: Cluster, job_id: int, bad: str, timeout: float = 60) -> float:
    """Wait until the job runs again, without ``bad``; seconds that took. Then see it end, with one restart."""
    began = time.monotonic()

    def again() -> bool:
        job = cluster.show_job(job_id)
        return job["JobState"] in ("RUNNING", "COMPLETED") and job["Restarts"] == "1"

    cluster.wait_for(again, timeout, f"job {job_id} runs again")
    took = time.monotonic() - began
    cluster.wait_job(job_id, "COMPLETED", timeout=60)
    job = cluster.show_job(job_id)
    assert job["Restarts"] == "1"
    assert bad not in cluster.expand(job["NodeList"])
    return took


def test_a_requeue_after_our_drain_is_sped_up_with_the_node_excluded(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=2", "--comment=my first run")
    drain(cluster, nodes[1])
    cluster.run(["scontrol", "requeue", str(job_id)])
    took = back_elsewhere(cluster, job_id, nodes[1])
    job = cluster.show_job(job_id)
    assert took < STOCK_DELAY_S / 3
    assert job["ExcNodeList"] == nodes[1]
    assert job["Comment"].startswith(f"my first run [ais: restart 1 away from {nodes[1]}: ais:gpu.lost GPU3")
    assert "attempt=1 act=start" in job["AdminComment"]
    assert cluster.node(nodes[1])["reason"] == OURS
    print(f"requeue to running again: {took:.1f} s")


def test_the_watchdog_pushes_when_no_agent_does(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=2")
    drain(cluster, nodes[0])
    took = back_elsewhere(cluster, job_id, nodes[0])
    assert took < STOCK_DELAY_S / 3
    assert [k for k in kinds(cluster, job_id) if k in ("requeue", "start", "release")] == ["requeue", "start"]


def test_a_node_that_dies_with_its_job(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=2")
    cluster.kill_node(nodes[1])
    cluster.wait_for(lambda: cluster.show_job(job_id)["Restarts"] == "1", 120, "Slurm gives the node up")
    took = back_elsewhere(cluster, job_id, nodes[1])
    assert took < STOCK_DELAY_S / 3
    assert cluster.show_job(job_id)["ExcNodeList"] == nodes[1]
    print(f"NODE_FAIL to running again: {took:.1f} s")


def test_a_job_that_fails_with_the_gpu_is_requeued(cluster: Cluster) -> None:
    script = JOB.replace("exec srun sleep 600", "sleep 8; exit 1")
    job_id, nodes = running(cluster, "--nodes=2", script=script)
    drain(cluster, nodes[0])
    back_elsewhere(cluster, job_id, nodes[0], timeout=90)


def test_exit_1_is_not_requeued(cluster: Cluster) -> None:
    job_id = submit(cluster, "--nodes=1", script="#!/bin/bash\nexit 1\n")
    cluster.wait_job(job_id, "FAILED", timeout=60)
    cluster.wait_for(lambda: "left" in kinds(cluster, job_id), 60, "the watchdog says that it leaves the job alone")
    time.sleep(6)
    assert cluster.show_job(job_id)["Restarts"] == "0"
    text = " ".join(row["text"] for row in incidents(cluster, job_id))
    assert "the job failed with exit code 1, and no fault was found" in text


def test_an_administrators_drain_and_requeue_keep_slurms_ways(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=2")
    drain(cluster, nodes[0], "memory test tomorrow")
    time.sleep(8)
    assert cluster.show_job(job_id)["JobState"] == "RUNNING"
    cluster.run(["scontrol", "requeue", str(job_id)])
    cluster.wait_for(lambda: "left" in kinds(cluster, job_id), 60, "the watchdog says that it leaves the job alone")
    time.sleep(6)
    job = cluster.show_job(job_id)
    assert (job["JobState"], job["Reason"], job["ExcNodeList"]) == ("PENDING", "BeginTime", "(null)")
    assert cluster.node(nodes[0])["reason"] == "memory test tomorrow"


@pytest.mark.parametrize("hold", ["uhold", "hold"])
def test_a_hold_of_somebody_stays(cluster: Cluster, hold: str) -> None:
    job_id, nodes = running(cluster, "--nodes=2")
    cluster.stop_watchdog()
    drain(cluster, nodes[0])
    cluster.run(["scontrol", "requeue", str(job_id)])
    cluster.wait_job(job_id, "PENDING", timeout=60)
    cluster.run(["scontrol", hold, str(job_id)])
    cluster.start_watchdog()
    cluster.wait_for(lambda: "left" in kinds(cluster, job_id), 60, "the watchdog says that it leaves the job alone")
    time.sleep(6)
    job = cluster.show_job(job_id)
    expected = {"uhold": "JobHeldUser", "hold": "JobHeldAdmin"}[hold]
    assert (job["JobState"], job["Priority"], job["Reason"]) == ("PENDING", "0", expected)


def test_killed_between_the_requeue_and_the_new_start_time(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=2")
    drain(cluster, nodes[0])
    cluster.wait_for(lambda: cluster.show_job(job_id)["Restarts"] == "1", 60, "the watchdog requeues")
    cluster.kill_watchdog()
    cluster.wait_job(job_id, "PENDING", timeout=60)
    assert cluster.show_job(job_id)["Reason"] == "BeginTime", "it was killed too late for this test"
    cluster.start_watchdog()
    took = back_elsewhere(cluster, job_id, nodes[0])
    assert took < STOCK_DELAY_S / 3
    cluster.run(["scontrol", "show", "job", str(job_id)])


@pytest.mark.timeout(600)
def test_killed_all_the_time(cluster: Cluster) -> None:
    """SIGKILL at whatever it does, every second or so, until the job is back: one requeue."""
    job_id, nodes = running(cluster, "--nodes=2")
    drain(cluster, nodes[1])
    began = time.monotonic()
    lives = 0.9
    while cluster.show_job(job_id)["JobState"] != "COMPLETED":
        assert time.monotonic() < began + 400, cluster.show_job(job_id)
        cluster.kill_watchdog()
        cluster.start_watchdog()
        # on a busy machine a start alone may take longer than a life
        time.sleep(lives * (1 + (time.monotonic() - began) / 60))
        # each life ends at another moment of what it does, and later ones are long enough to finish it
        lives = 0.9 + (lives - 0.9 + 0.17) % 3.0
    job = cluster.show_job(job_id)
    assert job["Restarts"] == "1"
    assert nodes[1] not in cluster.expand(job["NodeList"])


def test_slurmctld_away_in_the_middle(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=2")
    drain(cluster, nodes[0])
    cluster.run(["scontrol", "requeue", str(job_id)])
    cluster.stop_slurmctld()
    time.sleep(5)
    cluster.start_slurmctld()
    back_elsewhere(cluster, job_id, nodes[0], timeout=90)


def test_one_task_of_an_array(cluster: Cluster) -> None:
    array = cluster.submit(JOB, "--array=0-1", "--nodes=1", "--gpus-per-node=8", "--ais-resume", user="alice")

    def tasks() -> dict[int, dict[str, Any]]:
        rows = json.loads(cluster.run(["squeue", "--json", "--states=all"]).stdout)["jobs"]
        return {r["array_task_id"]: r for r in rows if r["array_job_id"] == array and r["array_task_id"] is not None}

    cluster.wait_for(lambda: [t["job_state"] for t in tasks().values()] == ["RUNNING"] * 2, 60, "both tasks run")
    hit, other = tasks()[0], tasks()[1]
    cluster.wait_for(lambda: kinds(cluster, hit["job_id"]) == ["started"], 60, "the watchdog has seen it")
    drain(cluster, hit["nodes"])
    cluster.wait_for(lambda: tasks()[0]["restart_cnt"] == 1, 60, "task 0 is requeued")
    cluster.wait_for(lambda: tasks()[0]["job_state"] in ("RUNNING", "COMPLETED"), 60, "task 0 is back")
    assert tasks()[0]["nodes"] != hit["nodes"]
    assert (tasks()[1]["job_state"], tasks()[1]["restart_cnt"]) == (other["job_state"], 0)


def test_the_restart_limit_holds_the_job_so_that_its_user_can_release_it(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=1", "--ais-max-restarts=0")
    drain(cluster, nodes[0])
    cluster.run(["scontrol", "requeue", str(job_id)])
    cluster.wait_for(lambda: cluster.show_job(job_id)["Reason"] == "JobHeldUser", 60, "the job is held")
    job = cluster.show_job(job_id)
    assert (
        f"[ais: held: the job asked for no restart (--ais-max-restarts=0); last: {nodes[0]}: ais:gpu.lost"
        in job["Comment"]
    )
    cluster.run(["scontrol", "release", str(job_id)], user="alice")
    assert cluster.show_job(job_id)["Priority"] != "0"


def test_observe_only(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=2")
    cluster.stop_watchdog()
    drain(cluster, nodes[0])
    time.sleep(6)
    seen = cluster.run(["aistation", "watchdog", "once", "--observe"], user="slurm")
    assert f"observe only: would requeue: {nodes[0]}: ais:gpu.lost" in seen.stderr
    job = cluster.show_job(job_id)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "0")
    cluster.start_watchdog()
