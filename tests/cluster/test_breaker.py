"""Correlated findings and the mass-drain breaker on a real Slurm: who is drained, who is not, and what is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from aistation_slurm.correlation.published import shown
from tests.cluster import Cluster, gpu_lost, ib_down

pytestmark = pytest.mark.cluster

AISTATION = ["/opt/aistation/.venv/bin/python", "-m", "aistation_slurm"]
SETTLE_S = 20.0
CONFIG: dict[str, dict[str, Any]] = {
    "node": {"poll_s": 2.0},
    # two of six nodes may be drained in ten minutes
    "breaker": {"least": 2, "look_s": 1.0, "spread_s": 2.0, "settle_s": SETTLE_S, "calm_s": 4.0, "drains_per_min": 60},
}
LEAF1 = ["gpu1", "gpu2", "gpu3"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=6, config=CONFIG) as up:
        yield up


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" not in request.fixturenames:
        return
    up: Cluster = request.getfixturevalue("cluster")
    up.reset()
    up.wait_for(lambda: not any(reported(up, name) for name in up.names), 120, "reports to be taken back")
    up.wait_for(lambda: markers(up) == [], 60, "the breaker to be closed")


def reported(cluster: Cluster, name: str) -> list[str]:
    return [p.check for p in shown(cluster.node(name)["comment"] or "")]


def drained(cluster: Cluster) -> list[str]:
    return [name for name in cluster.names if "DRAIN" in cluster.node(name)["flags"]]


def markers(cluster: Cluster) -> list[str]:
    text = cluster.run(["scontrol", "show", "reservation"]).stdout
    return [word.partition("=")[2] for word in text.split() if word.startswith("ReservationName=ais-breaker_")]


def incidents(cluster: Cluster, kind: str) -> list[str]:
    rows = json.loads(cluster.run([*AISTATION, "incidents", "--json"], check=False).stdout)
    return [row["text"] for row in (rows["incidents"] if isinstance(rows, dict) else rows) if row["kind"] == kind]


def look_on(cluster: Cluster, looks: int = 5) -> None:
    """Let the watchdog look a few times more: it is to do nothing."""
    cluster.run(["sleep", str(SETTLE_S + looks)])


def test_a_port_that_is_down_on_one_node_drains_that_node(cluster: Cluster) -> None:
    cluster.inject("gpu1", ib_down("mlx5_3"))
    cluster.wait_for(lambda: drained(cluster) == ["gpu1"], 60, "gpu1 to be drained")
    assert cluster.node("gpu1")["reason"].startswith("ais:fabric.port_state mlx5_3/1 ")
    assert any(
        "no other node shares it: ais:fabric.port_state mlx5_3/1" in t for t in incidents(cluster, "correlated_drain")
    )
    cluster.run(["scontrol", "update", "NodeName=gpu1", "State=RESUME"])
    look_on(cluster)
    assert drained(cluster) == [], "whoever gives the node back is not argued with"


def test_a_whole_leaf_is_named_and_nobody_is_drained(cluster: Cluster) -> None:
    for name in LEAF1:
        cluster.inject(name, ib_down("mlx5_1"))
    cluster.wait_for(lambda: all(reported(cluster, name) for name in LEAF1), 60, "all to report")
    look_on(cluster)
    assert drained(cluster) == []
    said = incidents(cluster, "common_cause")
    assert any("leaf switch leaf1: 3 of 3 nodes report fabric.port_state together (gpu[1-3])" in t for t in said), said
    page = json.loads(cluster.run([*AISTATION, "status", "--json"], check=False).stdout)
    assert [c["where"] for c in page["breaker"]["causes"]] == ["leaf switch leaf1"]
    # a job starts there with a warning: refusing jobs would drain node after node
    job_id = cluster.submit(
        "#!/bin/bash\nsrun hostname\n", "--nodes=3", "--gpus-per-node=8", f"--nodelist={','.join(LEAF1)}", user="alice"
    )
    cluster.wait_job(job_id, "COMPLETED", timeout=90)
    assert drained(cluster) == []


def test_more_than_sixty_percent_of_the_nodes_at_once(cluster: Cluster) -> None:
    sick = cluster.names[:4]
    for number, name in enumerate(sick):
        cluster.inject(name, ib_down(f"mlx5_{number}"))
    cluster.wait_for(lambda: all(reported(cluster, name) for name in sick), 60, "all to report")
    look_on(cluster)
    assert set(drained(cluster)) <= {"gpu4"}, "those of leaf1 have one cause; gpu4 is alone on its leaf"
    assert any("the mass-drain breaker opens for partition gpu" in t for t in incidents(cluster, "breaker_open"))
    assert markers(cluster) == [], "the nodes' own hardware is not what makes the excess"


@pytest.mark.timeout(600)
def test_too_many_lost_gpus_open_the_breaker_for_every_drain_until_it_is_over(cluster: Cluster) -> None:
    for name in cluster.names[:3]:
        cluster.inject(name, gpu_lost(3))
    cluster.wait_for(lambda: markers(cluster) == ["ais-breaker_gpu"], 60, "the breaker to open")
    assert drained(cluster) == cluster.names[:3]
    cluster.inject("gpu5", gpu_lost(3))
    cluster.inject("gpu6", ib_down("mlx5_3"))
    cluster.wait_for(lambda: reported(cluster, "gpu6") != [], 60, "gpu6 to report")
    look_on(cluster)
    assert drained(cluster) == cluster.names[:3]
    page = json.loads(cluster.run([*AISTATION, "status", "--json"], check=False).stdout)
    assert [(o["partition"], o["everything"]) for o in page["breaker"]["open"]] == [("gpu", True)]
    for name in cluster.names[:3]:  # their agents do not argue with whoever gives them back
        cluster.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
    cluster.wait_for(lambda: markers(cluster) == [], 60, "the breaker to close")
    cluster.wait_for(lambda: {"gpu5", "gpu6"} <= set(drained(cluster)), 180, "the others to be drained now")
    assert any("closes for partition gpu" in t for t in incidents(cluster, "breaker_closed"))


def test_a_controller_that_is_away_meanwhile(cluster: Cluster) -> None:
    cluster.stop_slurmctld()
    try:
        cluster.inject("gpu6", ib_down("mlx5_3"))
        look_on(cluster)
    finally:
        cluster.start_slurmctld()
    cluster.wait_for(lambda: "gpu6" in drained(cluster), 120, "gpu6 to be drained when the controller is back")
    assert cluster.node("gpu6")["reason"].startswith("ais:fabric.port_state mlx5_3/1 ")


def test_observing_only_it_says_what_it_would_do() -> None:
    config = {**CONFIG, "breaker": {**CONFIG["breaker"], "mode": "observe"}}
    with Cluster(nodes=2, config=config) as up:
        up.inject("gpu1", ib_down("mlx5_3"))
        up.wait_for(lambda: incidents(up, "correlated_drain") != [], 90, "the watchdog to say so")
        (text,) = incidents(up, "correlated_drain")
        assert text.startswith("observe only: would drain, no other node shares it: ais:fabric.port_state mlx5_3/1 ")
        look_on(up)
        assert (drained(up), len(incidents(up, "correlated_drain"))) == ([], 1)
