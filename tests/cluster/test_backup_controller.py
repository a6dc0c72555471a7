"""Two controllers, a watchdog on each: one acts, and a take-over in the middle of a recovery neither loses nor doubles it.

The journals are on local disks: what the new one knows it has from Slurm. The agents are stopped and their words and orders
are given by hand, so that each test says when what happens.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from aistation_slurm.slurm import tags
from tests.cluster import Cluster, ClusterError, gpu_lost

pytestmark = pytest.mark.cluster

OURS = "ais:gpu.lost GPU3 0000:8f:00 PCI configuration reads 0xff [abc123]"
JOB = """#!/bin/bash
echo "${SLURM_RESTART_COUNT:-0}" >> /shared/alice/starts.$SLURM_JOB_ID
exec srun sleep 600
"""
MY_TURN = """
from aistation_slurm.config import Slurm
from aistation_slurm.recovery.clock import SystemClock
from aistation_slurm.recovery.primary import Primary
primary = Primary(Slurm(timeout_s=4.0), SystemClock())
print(primary.acts(), primary.state)
"""
PYTHON = "/opt/aistation/.venv/bin/python"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, backup=True, config={"watchdog": {"poll_s": 5.0}}) as up:
        for name in up.names:
            up.stop_agent(name)
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> None:
    """ctl1 is in control again, and the nodes are as new."""
    if "ctl1" not in cluster.hosts_on:
        cluster.start_controller("ctl1")
    elif not cluster.slurmctld_runs("ctl1"):
        cluster.start_slurmctld("ctl1")
    cluster.reset()


def running(cluster: Cluster, *options: str) -> tuple[int, list[str]]:
    job_id = cluster.submit(JOB, "--gpus-per-node=8", "--ais-resume", *options, user="alice")
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    cluster.wait_for(lambda: starts(cluster, job_id) == ["0"], 60, "the job's script")
    return job_id, cluster.expand(cluster.show_job(job_id)["NodeList"])


def starts(cluster: Cluster, job_id: int) -> list[str]:
    """SLURM_RESTART_COUNT of every attempt that really ran."""
    path = cluster.dir / f"shared/alice/starts.{job_id}"
    return path.read_text().split() if path.exists() else []


def rows(cluster: Cluster, host: str, job_id: int) -> list[dict[str, Any]]:
    """What the journal on this host's disk tells of the job."""
    argv = ["aistation", "incidents", "--json", "--job", str(job_id)]
    return list(json.loads(cluster.run(argv, host=host).stdout)["incidents"])


def incidents(cluster: Cluster, host: str, job_id: int) -> list[str]:
    return [row["kind"] for row in rows(cluster, host, job_id)]


def saw(cluster: Cluster, host: str, job_id: int, attempt: int) -> None:
    """Wait until the watchdog of this host has seen the attempt run."""

    def seen() -> bool:
        return any(row["text"].startswith(f"attempt {attempt} runs") for row in rows(cluster, host, job_id))

    cluster.wait_for(seen, 60, f"{host}'s watchdog to see attempt {attempt} of job {job_id}", interval=0.5)


def push(cluster: Cluster, job_id: int, node: str) -> None:
    """What the node's agent does: drain, note, requeue."""
    job = cluster.show_job(job_id)
    start = int(cluster.run(["date", "+%s", "-d", job["StartTime"]]).stdout)
    noted = tags.tag_with(job["AdminComment"], {"fault": tags.fault_text("gpu.lost", node, start)})
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={OURS}"])
    cluster.run(["scontrol", "update", f"JobId={job_id}", f"AdminComment={noted}"])
    cluster.run(["scontrol", "requeue", str(job_id)])


def saved(cluster: Cluster, job_id: int) -> None:
    """Wait until the job is in Slurm's saved state as it is now; slurmctld writes it some seconds later."""
    mark = f"mark {job_id} {len(starts(cluster, job_id))}"
    cluster.run(["scontrol", "update", f"JobId={job_id}", f"Comment={mark}"])
    path = cluster.dir / "shared/slurmctld/job_state"
    cluster.wait_for(lambda: mark.encode() in path.read_bytes(), 60, "slurmctld to save its state")


def back(cluster: Cluster, job_id: int, times: int, bad: str, first: int = 0) -> None:
    """The job runs again, for the ``times``-th time, away from ``bad``; each attempt from ``first`` on ran just once."""
    wanted = [str(number) for number in range(first, times + 1)]
    try:
        cluster.wait_for(lambda: starts(cluster, job_id) == wanted, 100, f"restart {times} of job {job_id}")
    except ClusterError as exc:
        raise ClusterError(f"{exc}\n{cluster.last_words(12)}") from None
    job = cluster.wait_job(job_id, "RUNNING", timeout=30)
    record = cluster.show_job(job_id)
    assert (job["restart_cnt"], tags.read_tag(record["AdminComment"])["attempt"]) == (times, str(times))
    assert bad not in cluster.expand(record["NodeList"])


def test_a_slurmctld_in_standby_gives_its_host_no_turn(cluster: Cluster) -> None:
    ask = [PYTHON, "-c", MY_TURN]
    first = cluster.run(ask, "slurm", host="ctl1").stdout
    assert first == "True acts: this host is in control (controllers ctl1, ctl2)\n"
    assert cluster.run(ask, "slurm", host="ctl2").stdout.startswith("False stands by: ctl1 comes before")
    assert cluster.run(ask, "slurm", host="gpu1").stdout.startswith("False stands by: this host (gpu1) is none")
    cluster.stop_slurmctld(signal.SIGKILL)
    assert "ctl2 is UP" in cluster.run(["scontrol", "ping"]).stdout  # as if it were in control
    answer = cluster.run(ask, "slurm", host="ctl2").stdout
    cluster.start_slurmctld("ctl1")
    assert answer.startswith("False stands by until it is known")
    assert "ctl1 does not answer, and this host is not in control yet" in answer


def test_a_take_over_after_the_restart_was_ordered(cluster: Cluster) -> None:
    """ctl1 restarts the job; ctl2 knows that from the job itself, leaves it alone, and counts on at the next fault."""
    job_id, nodes = running(cluster, "--nodes=1")
    push(cluster, job_id, nodes[0])
    back(cluster, job_id, 1, nodes[0])
    assert incidents(cluster, "ctl1", job_id).count("start") == 1
    assert incidents(cluster, "ctl2", job_id) == []
    saved(cluster, job_id)
    cluster.takeover()
    saw(cluster, "ctl2", job_id, 1)
    assert starts(cluster, job_id) == ["0", "1"]
    second = cluster.expand(cluster.show_job(job_id)["NodeList"])[0]
    push(cluster, job_id, second)
    back(cluster, job_id, 2, second)
    told = incidents(cluster, "ctl2", job_id)
    assert (told.count("start"), told.count("requeue")) == (1, 0)
    assert incidents(cluster, "ctl1", job_id).count("start") == 1


def test_a_held_job_is_released_by_the_one_that_takes_over(cluster: Cluster) -> None:
    """The gate refused it under ctl1, whose watchdog was dead: the node's Comment names the job."""
    cluster.kill_watchdog("ctl1")
    cluster.inject("gpu1", gpu_lost(3))
    job_id = cluster.submit(JOB, "--gpus-per-node=8", "--nodelist=gpu1", "--ais-resume", user="alice")
    cluster.wait_for(lambda: "launch" in cluster.show_job(job_id)["Reason"], 90, "the refused job is held")
    cluster.run(["scontrol", "update", f"JobId={job_id}", "ReqNodeList="])
    saved(cluster, job_id)
    cluster.takeover()
    back(cluster, job_id, 1, "gpu1", first=1)
    assert incidents(cluster, "ctl2", job_id).count("release") == 1
    cluster.start_watchdog("ctl1")


def test_a_power_cut_between_requeue_and_start(cluster: Cluster) -> None:
    job_id, nodes = running(cluster, "--nodes=2")
    cluster.kill_watchdog("ctl1")  # it would be done in two seconds
    push(cluster, job_id, nodes[1])
    cluster.wait_job(job_id, "PENDING", timeout=60)
    saved(cluster, job_id)
    cluster.kill_controller("ctl1")
    back(cluster, job_id, 1, nodes[1])
    told = incidents(cluster, "ctl2", job_id)
    assert (told.count("start"), told.count("requeue")) == (1, 0)
    # and back: the old primary's watchdog, whose journal ends before all this, leaves the job alone
    cluster.start_controller("ctl1")
    saw(cluster, "ctl1", job_id, 1)
    cluster.reload_watchdog("ctl2")
    cluster.wait_for(
        lambda: cluster.logs("watchdog.ctl2").rstrip().endswith("stands by: ctl1 comes before this host and answers"),
        60,
        "ctl2's watchdog stands by",
    )
    assert starts(cluster, job_id) == ["0", "1"]
    assert "start" not in incidents(cluster, "ctl1", job_id)
