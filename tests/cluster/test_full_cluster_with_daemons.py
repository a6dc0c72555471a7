"""A GPU falls off the bus under a job on a full cluster: agents and watchdog put it in front, and undo that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster, gpu_lost

pytestmark = pytest.mark.cluster

JOB = """#!/bin/bash
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exec srun sleep 6
exec srun sleep 600
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, aistation=True, config={"watchdog": {"poll_s": 5.0}}) as up:
        yield up


def begun(cluster: Cluster, jobs: list[int]) -> list[dict[str, Any]]:
    return [cluster.show_job(job) for job in jobs if cluster.show_job(job)["JobState"] != "PENDING"]


def test_the_job_that_met_a_fault_is_the_next_to_start(cluster: Cluster) -> None:
    job_id = cluster.submit(JOB, "--nodes=2", "--gpus-per-node=8", "--nice=200", "--ais-resume", user="alice")
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    cluster.wait_for(lambda: cluster.show_job(job_id)["Reason"] == "None", 60, "its prologs to be over")
    good, bad = cluster.expand(cluster.show_job(job_id)["NodeList"])
    backlog = [
        cluster.submit(f"sleep {12 + 3 * (index % 3)}", "--nodes=1", "--gpus-per-node=8", "--time=3", user="bob")
        for index in range(20)
    ]
    for first in backlog[:2]:
        cluster.wait_job(first, "RUNNING", timeout=60)

    cluster.inject(bad, gpu_lost(3))
    cluster.wait_for(lambda: cluster.show_job(job_id)["Restarts"] == "1", 60, "the agent to requeue it")
    before = {job["JobId"] for job in begun(cluster, backlog)}
    cluster.wait_job(job_id, "RUNNING", timeout=90)
    overtook = [job["JobId"] for job in begun(cluster, backlog) if job["JobId"] not in before]
    again = cluster.show_job(job_id)
    nodes = cluster.expand(again["NodeList"])
    assert good in nodes
    assert bad not in nodes
    assert overtook == [], "backlog was let in between"

    cluster.wait_job(job_id, "COMPLETED", timeout=60)
    after = cluster.show_job(job_id)
    assert (after["Restarts"], "nice=" in after["AdminComment"]) == ("1", False)
    cluster.wait_for(
        lambda: "No reservations" in cluster.run(["scontrol", "show", "reservation"]).stdout,
        60,
        "no reservation is left",
    )
    told = cluster.run(["aistation", "explain", str(job_id)]).stdout
    assert "in front: keeps" in told
    assert "no longer in front: the job runs" in told
