"""What is said of a job's place and of its waiting, from Slurm's records alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aistation_slurm.placement.explain import Explanation, explain, fewest_leaves
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.topology.model import Switch, Topology, resolve_levels

NOW = 1_800_000_000
TREE = Topology(
    "tree",
    resolve_levels(
        [
            Switch("leaf1", ("n1", "n2", "n3", "n4")),
            Switch("leaf2", ("n5", "n6", "n7", "n8")),
            Switch("spine", (), ("leaf1", "leaf2")),
        ]
    ),
)


def nodes(**states: str) -> list[Node]:
    """Eight idle nodes, but those named: ``n3="ALLOCATED"``; ``DOWN``, ``DRAIN``, ``DEGRADED``."""
    found = []
    for number in range(1, 9):
        name = f"n{number}"
        state = states.get(name, "IDLE")
        flags = frozenset({"DRAIN"}) if state == "DRAIN" else frozenset()
        comment = "[ais-fabric degraded fabric.errors@mlx5_0/1]" if state == "DEGRADED" else ""
        base = "IDLE" if state in ("DRAIN", "DEGRADED") else state
        found.append(Node(name, base, flags, partitions=("gpu",), comment=comment, gres="gpu:8"))
    return found


def job(job_id: int = 7, **fields: Any) -> Job:
    values = {
        "state": "PENDING",
        "partition": "gpu",
        "min_nodes": 4,
        "priority": 100,
        "eligible_time": NOW - 60,
        **fields,
    }
    return Job(job_id, **values)


def busy(job_id: int, names: str, end_in_s: int = 600) -> Job:
    there = tuple(names.split())
    return job(job_id, state="RUNNING", nodes=there, end_time=NOW + end_in_s, time_limit_s=3600, start_time=NOW - 60)


def told(one: Job, there: list[Node], *others: Job) -> tuple[Explanation, str]:
    found = explain(one, [one, *others], there, TREE, NOW)
    return found, " | ".join((*found.why, *found.sooner))


@pytest.mark.parametrize(
    ("sizes", "wanted", "leaves"),
    [([4, 4], 4, 1), ([4, 4], 5, 2), ([1, 4, 3], 7, 2), ([4, 4], 9, 0), ([], 1, 0), ([4], 0, 1)],
)
def test_the_fewest_leaves(sizes: list[int], wanted: int, leaves: int) -> None:
    assert fewest_leaves(sizes, wanted) == leaves


def test_a_job_on_the_fewest_leaves() -> None:
    running = job(
        state="RUNNING",
        nodes=("n1", "n2", "n3", "n4"),
        required_switches=1,
        switch_wait_s=300,
        admin_comment="[ais-place n=4 s=1 w=300 x=n{5-6}]",
        excluded_nodes=("n5", "n6"),
    )
    found, text = told(running, nodes())
    assert (dict(found.leaves), found.optimum) == ({"leaf1": ("n1", "n2", "n3", "n4")}, 1)
    assert "4 nodes below 1 leaf switch (leaf1: n[1-4])" in text
    assert "that is the fewest" in text
    assert "AIStation asked for at most 1 leaf switch, and to wait for up to 300 s" in text
    assert "AIStation keeps it off n[5-6]" in text
    assert found.sooner == ()


def test_a_job_that_gave_up_waiting() -> None:
    running = job(
        state="RUNNING", nodes=("n1", "n2", "n5", "n6"), required_switches=1, switch_wait_s=60, start_time=NOW + 5
    )
    _, text = told(running, nodes())
    assert "below 2 leaf switches" in text
    assert "the fewest is 1" in text
    assert "the job's owner (or --ais-switch) asked for at most 1" in text
    assert "had waited 65 s, of 60 s" in text
    _, text = told(replace(running, restart_cnt=1), nodes())
    assert "it was restarted" in text


def test_a_limit_that_keeps_it_waiting() -> None:
    there = nodes(n1="ALLOCATED", n5="ALLOCATED")
    limited = job(required_switches=1, switch_wait_s=300, reason="Resources")
    _, text = told(limited, there, busy(1, "n1"), busy(2, "n5"))
    assert "6 that it may use are idle, below 2 leaf switches, 3 below the emptiest" in text
    assert (
        "2 leaf switches instead of 1 would do now (scontrol update JobId=7 Switches=2); it gives up waiting in 240 s"
        in text
    )


def test_too_few_nodes_and_when_there_are_enough() -> None:
    there = nodes(n1="ALLOCATED", n2="ALLOCATED", n3="ALLOCATED", n4="ALLOCATED", n5="ALLOCATED", n8="DRAIN")
    _, text = told(job(reason="Resources"), there, busy(1, "n1 n2", 7200), busy(2, "n3 n4", 600), busy(3, "n5", 60))
    assert "1 node drained, down or reserved in the partition: n8" in text
    assert "2 nodes instead of 4 are idle now" in text
    assert "4 nodes are free in at most 10 min" in text
    _, text = told(job(min_nodes=8), there)
    assert "only 7 nodes in service" in text


def test_degraded_nodes_that_it_is_kept_off() -> None:
    there = nodes(**{f"n{i}": "ALLOCATED" for i in range(1, 5)}, n8="DEGRADED")
    kept = job(admin_comment="[ais-place n=4 x=n8]", excluded_nodes=("n8",))
    _, text = told(kept, there, replace(busy(1, "n1 n2 n3 n4"), time_limit_s=None))
    assert "with the nodes that it is kept off there would be room now (4 are idle)" in text
    assert "when nodes become free is not known" in text


def test_a_job_behind_another() -> None:
    there = nodes(n1="ALLOCATED", n2="ALLOCATED")
    large = job(1, min_nodes=8, priority=900)
    _, text = told(job(min_nodes=2), there, large, busy(2, "n1 n2", 600))
    assert "before it: 1 job of its partition, first job 1 of 8 nodes, which can start in about 10 min" in text
    assert "backfill" in text


def test_a_held_job_and_one_left_alone() -> None:
    found, text = told(job(priority=0, reason="JobHeldUser"), nodes())
    assert found.sooner == ("it is held: scontrol release 7",)
    assert "AIStation did nothing to its placement" in text
    _, text = told(job(admin_comment="[ais-place n=4 s=1 w=60 x=user]", excluded_nodes=("n1",)), nodes())
    assert "its own --exclude stands" in text
    assert "excluded by its owner or by the recovery: n1" in text


def test_without_a_topology_it_says_what_it_can() -> None:
    found = explain(job(), [job()], nodes(n1="ALLOCATED"), Topology("flat"), NOW)
    assert "7 that it may use are idle" in " ".join(found.why)
