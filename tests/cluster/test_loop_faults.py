"""Faults under a running job, on a real Slurm: the right node is drained, the job gets away, others are untouched."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster, gpu_lost, ib_down, nvml_block, xid

pytestmark = pytest.mark.cluster

# The second start of the job ends at once, so that a test need not wait for a long run.
RESTARTABLE = """#!/bin/bash
echo "attempt $AISTATION_ATTEMPT on $SLURM_JOB_NODELIST"
[ "$AISTATION_ATTEMPT" -gt 0 ] && exit 0
srun sleep 600
"""
TRAPS_SIGTERM = """#!/bin/bash
echo "attempt $AISTATION_ATTEMPT on $SLURM_JOB_NODELIST"
[ "$AISTATION_ATTEMPT" -gt 0 ] && exit 0
srun bash -c 'trap "" TERM; while :; do sleep 1; done'
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, aistation=True) as up:
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    """Every test starts with healthy, undrained nodes and no job."""
    yield
    cluster.reset()


def started(cluster: Cluster, job_id: int) -> list[str]:
    """Wait until the job's script runs; its node names. Slurm says RUNNING from the start of the prolog on."""
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    cluster.wait_for(lambda: cluster.show_job(job_id)["Reason"] == "None", 60, "the prologs to end")
    return cluster.expand(cluster.show_job(job_id)["NodeList"])


def drained(cluster: Cluster, node: str) -> str:
    """Wait until the node is drained; the reason."""
    return str(
        cluster.wait_for(
            lambda: "DRAIN" in cluster.node(node)["flags"] and cluster.node(node)["reason"], 60, f"{node} is drained"
        )
    )


def completed_elsewhere(cluster: Cluster, job_id: int, bad: str, restarts: int = 1) -> None:
    cluster.wait_job(job_id, "COMPLETED", timeout=120)
    job = cluster.show_job(job_id)
    assert int(job["Restarts"]) == restarts
    assert bad not in cluster.expand(job["NodeList"])


def others_untouched(cluster: Cluster, *but: str) -> None:
    for name in cluster.names:
        if name not in but:
            assert "DRAIN" not in cluster.node(name)["flags"], (name, cluster.node(name))


def test_gpu_lost_in_mid_run(cluster: Cluster) -> None:
    job_id = cluster.submit(RESTARTABLE, "--nodes=2", "--gpus-per-node=8", "--ais-resume", user="alice")
    bad = started(cluster, job_id)[-1]
    cluster.inject(bad, gpu_lost(3))
    reason = drained(cluster, bad)
    assert re.match(r"ais:gpu\.(lost|xid) GPU3 ", reason), reason
    completed_elsewhere(cluster, job_id, bad)
    others_untouched(cluster, bad)


def test_fatal_xid_in_mid_run_and_an_application_xid_that_is_left_alone(cluster: Cluster) -> None:
    job_id = cluster.submit(RESTARTABLE, "--nodes=1", "--gpus-per-node=8", "--ais-resume", user="alice")
    (bad,) = started(cluster, job_id)
    cluster.inject(bad, xid(2, 31, pid=4242))
    time.sleep(3)
    assert cluster.show_job(job_id)["JobState"] == "RUNNING"
    others_untouched(cluster)
    cluster.inject(bad, xid(2, 95))
    assert drained(cluster, bad).startswith("ais:gpu.xid GPU2 ")
    completed_elsewhere(cluster, job_id, bad)
    others_untouched(cluster, bad)


def test_a_job_that_did_not_opt_in_is_not_requeued(cluster: Cluster) -> None:
    job_id = cluster.submit(RESTARTABLE, "--nodes=1", "--gpus-per-node=8", user="alice")
    (bad,) = started(cluster, job_id)
    cluster.inject(bad, gpu_lost(0))
    drained(cluster, bad)
    time.sleep(4)
    job = cluster.show_job(job_id)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "0")


def test_no_requeue_is_honoured(cluster: Cluster) -> None:
    job_id = cluster.submit(RESTARTABLE, "--nodes=1", "--gpus-per-node=8", "--ais-resume", "--no-requeue", user="alice")
    (bad,) = started(cluster, job_id)
    cluster.inject(bad, gpu_lost(0))
    drained(cluster, bad)
    time.sleep(4)
    job = cluster.show_job(job_id)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "0")


def test_a_port_that_goes_down_is_reported_but_does_not_drain_by_itself(cluster: Cluster) -> None:
    cluster.inject("gpu1", ib_down("mlx5_3"))
    check = cluster.run(
        ["/opt/aistation/.venv/bin/python", "-m", "aistation_slurm", "check", "--act"], host="gpu1", check=False
    )
    assert check.returncode == 1
    assert "mlx5_3" in check.stdout
    assert "fabric.port_state" in check.stdout
    others_untouched(cluster)


def test_the_gate_refuses_a_job_on_a_port_that_is_down_and_the_job_runs_elsewhere(cluster: Cluster) -> None:
    cluster.inject("gpu1", ib_down("mlx5_3"))
    job_id = cluster.submit(
        "#!/bin/bash\nsrun hostname\n",
        "--nodes=1",
        "--gpus-per-node=8",
        "--nodelist=gpu1",
        "--ais-resume",
        user="alice",
    )
    reason = drained(cluster, "gpu1")
    assert reason.startswith("ais:fabric.port_state mlx5_3/1"), reason
    # the user asked for this very node, so the job waits; it is neither lost nor failed
    cluster.wait_job(job_id, "PENDING", timeout=60)
    assert cluster.show_job(job_id)["Restarts"] == "1"


def test_a_rank_that_traps_sigterm_only_costs_the_kill_wait(cluster: Cluster) -> None:
    job_id = cluster.submit(TRAPS_SIGTERM, "--nodes=2", "--gpus-per-node=8", "--ais-resume", user="alice")
    bad = started(cluster, job_id)[-1]
    cluster.inject(bad, gpu_lost(1))
    drained(cluster, bad)
    completed_elsewhere(cluster, job_id, bad)


def test_node_killed_in_mid_run(cluster: Cluster) -> None:
    """The power goes: slurmd and every process of the job end at once, and Slurm itself declares the node down."""
    job_id = cluster.submit(RESTARTABLE, "--nodes=2", "--gpus-per-node=8", "--ais-resume", user="alice")
    bad = started(cluster, job_id)[-1]
    cluster.kill_node(bad)
    cluster.wait_for(lambda: int(cluster.show_job(job_id)["Restarts"]) == 1, 120, "Slurm requeues the job")
    completed_elsewhere(cluster, job_id, bad)
    cluster.start_node(bad, reboot=True)


@pytest.mark.parametrize("kind", ["dstate"])
def test_a_driver_call_that_blocks_for_ever(cluster: Cluster, kind: str) -> None:
    """The gate keeps its budget, the agent confirms the hang, drains, and the job gets away."""
    job_id = cluster.submit(RESTARTABLE, "--nodes=1", "--gpus-per-node=8", "--ais-resume", user="alice")
    (bad,) = started(cluster, job_id)
    cluster.inject(bad, nvml_block(kind))
    reason = drained(cluster, bad)
    assert reason.startswith("ais:gpu.driver_hang"), reason
    completed_elsewhere(cluster, job_id, bad)
    others_untouched(cluster, bad)


def test_an_administrators_drain_is_left_alone(cluster: Cluster) -> None:
    job_id = cluster.submit(RESTARTABLE, "--nodes=1", "--gpus-per-node=8", "--ais-resume", user="alice")
    (bad,) = started(cluster, job_id)
    cluster.run(["scontrol", "update", f"NodeName={bad}", "State=DRAIN", "Reason=memory test tomorrow"])
    cluster.inject(bad, gpu_lost(3))
    completed_elsewhere(cluster, job_id, bad)
    assert cluster.node(bad)["reason"] == "memory test tomorrow"
