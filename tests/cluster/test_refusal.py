"""A job that the gate refused is found again, whatever became of its event and of the controller, on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aistation_slurm.node import refusals
from aistation_slurm.node.refusals import Refusal
from aistation_slurm.slurm import tags
from tests.cluster import Cluster, ib_down

pytestmark = pytest.mark.cluster

SHORT = "#!/bin/bash\nsrun hostname\n"
SITES_TEXT = "rack 12 State=IDLE\n\nsecond paragraph, 'quoted' = \"twice\""


# The gate as the last of the site's prologs, which a test can hold up between Slurm's placing of a job and the gate's look.
PROLOG = """#!/bin/sh
while [ -e /shared/hold ]; do /bin/sleep 0.1; done
exec /opt/aistation/prolog/aistation-prolog
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # no agent may see the port before the gate does: it only looks when a test asks for it
    config = {"node": {"poll_s": 3600.0}, "gate": {"max_age_s": 3600.0}}
    with Cluster(nodes=2, config=config, conf_extra="Prolog=/shared/prolog") as up:
        up.run(["sh", "-c", "cat >/shared/prolog && chmod 755 /shared/prolog"], input=PROLOG)
        up.stop_watchdog()  # what is tested is what it finds
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    free_gate(cluster)
    for name in cluster.names:
        cluster.run(["scontrol", "update", f"NodeName={name}", "Comment="])
    cluster.reset()


def hold_gate(cluster: Cluster) -> None:
    cluster.run(["touch", "/shared/hold"])


def free_gate(cluster: Cluster) -> None:
    cluster.run(["rm", "-f", "/shared/hold"])


def in_run(cluster: Cluster, node: str) -> Path:
    """The node's /run/aistation."""
    return Path(f"/proc/{cluster.host(node).pid}/root/run/aistation")


def refused_jobs(cluster: Cluster, node: str) -> list[int]:
    return [job for job, _ in tags.refusals_of(cluster.node(node)["comment"] or "")]


def records(cluster: Cluster, node: str) -> list[Refusal]:
    """What the node's gate left behind, as the node sees it."""
    boot = (cluster.disk(node) / "boot_id").read_text(encoding="ascii").strip()
    return refusals.read_all(str(in_run(cluster, node)), boot)


def submit(cluster: Cluster) -> int:
    """A job for gpu1 that uses its ports."""
    return cluster.submit(SHORT, "--nodes=1", "--gpus-per-node=8", "--nodelist=gpu1", "--ais-resume", user="alice")


def test_one_update_drains_and_names_the_job_beside_the_sites_own_comment(cluster: Cluster) -> None:
    cluster.run(["scontrol", "update", "NodeName=gpu1", f"Comment={SITES_TEXT}"])
    cluster.inject("gpu1", ib_down("mlx5_3"))
    job_id = submit(cluster)
    cluster.wait_for(lambda: refused_jobs(cluster, "gpu1") == [job_id], 60, "the job is named in the node's Comment")
    node = cluster.node("gpu1")
    assert node["reason"].startswith("ais:fabric.port_state mlx5_3/1")
    assert node["comment"].partition(" [ais refused=")[0] == SITES_TEXT
    assert [(r.job_id, r.progress) for r in records(cluster, "gpu1")] == [(job_id, refusals.CLOSED)]


def test_an_administrators_drain_stays_and_the_refused_job_is_named(cluster: Cluster) -> None:
    """The drain comes between Slurm's placing of the job and the gate's look."""
    cluster.inject("gpu1", ib_down("mlx5_3"))
    hold_gate(cluster)
    job_id = submit(cluster)
    cluster.wait_job(job_id, "RUNNING")
    cluster.run(["scontrol", "update", "NodeName=gpu1", "State=DRAIN", "Reason=memory test tomorrow"])
    free_gate(cluster)
    cluster.wait_for(lambda: refused_jobs(cluster, "gpu1") == [job_id], 60, "the job is named in the node's Comment")
    cluster.wait_job(job_id, "PENDING")
    node = cluster.node("gpu1")
    assert (node["reason"], "DRAIN" in node["flags"]) == ("memory test tomorrow", True)


@pytest.mark.parametrize("who", ["agent", "cron"])
def test_what_slurm_drained_with_the_controller_away_is_adopted_and_the_job_named(cluster: Cluster, who: str) -> None:
    cluster.inject("gpu1", ib_down("mlx5_3"))
    hold_gate(cluster)
    job_id = submit(cluster)
    cluster.wait_job(job_id, "RUNNING")
    cluster.stop_slurmctld()
    free_gate(cluster)
    said = in_run(cluster, "gpu1") / "hooks.log"
    cluster.wait_for(lambda: said.exists() and f"job {job_id}: refused" in said.read_text(), 60, "the gate to refuse")
    assert [(r.job_id, r.progress) for r in records(cluster, "gpu1")] == [(job_id, refusals.OPEN)]
    if who == "cron":
        cluster.stop_agent("gpu1")
    try:
        cluster.start_slurmctld()
        cluster.wait_for(
            lambda: cluster.node("gpu1")["reason"] == "Prolog error", 120, "Slurm to drain for the failed prolog"
        )
        look(cluster, who)
        cluster.wait_for(lambda: cluster.node("gpu1")["reason"] != "Prolog error", 60, "the drain to be adopted")
    finally:
        if who == "cron":
            cluster.start_agent("gpu1")
    node = cluster.node("gpu1")
    assert node["reason"].startswith("ais:fabric.port_state mlx5_3/1"), node["reason"]
    assert "DRAIN" in node["flags"]
    assert refused_jobs(cluster, "gpu1") == [job_id]
    assert [r.progress for r in records(cluster, "gpu1")] == [refusals.CLOSED]


def test_a_prolog_error_of_the_sites_own_is_left_alone(cluster: Cluster) -> None:
    """The gate refused nothing here, so what Slurm says is all that is known."""
    cluster.run(["scontrol", "update", "NodeName=gpu1", "State=DRAIN", "Reason=Prolog error"])
    written = in_run(cluster, "gpu1") / "state"
    cluster.wait_for(written.exists, 60, "the agent's first look")
    for who in ("cron", "agent"):
        before = written.stat().st_ino
        look(cluster, who)
        cluster.wait_for(lambda before=before: written.stat().st_ino != before, 60, f"a look by {who}")
    time.sleep(1)  # it acts after it has written
    assert cluster.node("gpu1")["reason"] == "Prolog error"


def look(cluster: Cluster, who: str) -> None:
    """One look at gpu1, by the agent or as cron does."""
    if who == "agent":
        (in_run(cluster, "gpu1") / "refresh").touch()
    else:
        cluster.run(["aistation", "check", "--act"], host="gpu1", check=False)
