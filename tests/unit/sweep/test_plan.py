from __future__ import annotations

from dataclasses import replace

import pytest

from aistation_slurm.config import Sweep
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.findings import Finding, Scope, Status
from aistation_slurm.slurm.client import Node
from aistation_slurm.slurm.hostlist import HostlistError
from aistation_slurm.sweep.answers import NodeAnswer
from aistation_slurm.sweep.plan import limit_of, not_passed, not_returnable, plan_drains
from aistation_slurm.sweep.published import health_check_runs, published
from aistation_slurm.sweep.targets import Target, UnknownNodes, choose

FAIL = Finding("gpu.lost", Status.FAIL, "GPU3", "Xid 79")
OURS = "ais:gpu.lost GPU3 0000:5d:00 Xid 79 [7cad30]"
WELL = Finding("gpu.lost", Status.OK)


def cluster(count: int, *drained: str, reason: str = OURS) -> list[Node]:
    def node(name: str) -> Node:
        return Node(name, "IDLE", frozenset({"DRAIN"}), reason, partitions=("p",))

    names = [f"gpu{i}" for i in range(1, count + 1)]
    return [node(n) if n in drained else Node(n, "IDLE", partitions=("p",)) for n in names]


def failed(*names: str, finding: Finding = FAIL) -> list[NodeAnswer]:
    return [NodeAnswer(name, (finding,)) for name in names]


def test_the_limit_is_a_share_and_never_nothing() -> None:
    assert [limit_of(n, Sweep()) for n in (1, 40, 41, 100, 1000)] == [4, 4, 4, 10, 100]


def test_up_to_the_limit_nodes_go_and_beyond_it_none_does() -> None:
    names = [f"gpu{i}" for i in range(1, 5)]
    assert set(plan_drains(failed(*names), cluster(20), set(), Sweep()).drains) == set(names)
    plan = plan_drains(failed(*names), cluster(20, "gpu9"), set(), Sweep())
    assert plan.drains == {}
    assert set(plan.held) == set(names)
    assert "more than the 4 allowed" in plan.held["gpu1"]
    others = cluster(20, "gpu9", reason="memory test, bob")
    assert len(plan_drains(failed(*names), others, set(), Sweep()).drains) == 4


def test_nodes_of_no_partition_have_a_limit_too() -> None:
    nodes = [replace(node, partitions=()) for node in cluster(9)]
    assert plan_drains(failed(*(n.name for n in nodes)), nodes, set(), Sweep()).drains == {}


@pytest.mark.parametrize(
    "finding",
    [replace(FAIL, status=Status.UNKNOWN), replace(FAIL, status=Status.WARN), replace(FAIL, scope=Scope.SHARED)],
)
def test_only_a_local_fail_drains(finding: Finding) -> None:
    plan = plan_drains(failed("gpu1", finding=finding), cluster(9), set(), Sweep())
    assert (plan.drains, plan.held) == ({}, {})


def test_drained_nodes_maintenance_and_an_open_breaker() -> None:
    nodes = cluster(9, "gpu1", reason="bob")
    nodes[1] = replace(nodes[1], flags=frozenset({"MAINTENANCE"}))
    plan = plan_drains(failed("gpu1", "gpu2", "gpu3"), nodes, set(), Sweep())
    assert (set(plan.drains), set(plan.held)) == ({"gpu3"}, {"gpu2"})
    plan = plan_drains(failed("gpu3"), nodes, {"p"}, Sweep())
    assert plan.held == {"gpu3": "the mass-drain breaker is open for p"}


DRAINED = Node("gpu1", "IDLE", frozenset({"DRAIN"}), OURS, reason_time=100, boot_time=200, partitions=("p",))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (DRAINED, ""),
        (replace(DRAINED, state="DOWN"), ""),
        (replace(DRAINED, state="DOWN", flags=frozenset({"DRAIN", "NOT_RESPONDING"})), "NOT_RESPONDING"),
        (replace(DRAINED, reason="memory test"), "is not ours: memory test"),
        (replace(DRAINED, reason=OURS + " ordered"), "was changed since"),
        (replace(DRAINED, reason=OURS.replace("GPU3 0", "inspect: 0")), "asks a person"),
        (replace(DRAINED, state="MIXED"), "not empty"),
        (replace(DRAINED, flags=frozenset({"DRAIN", "COMPLETING"})), "not empty"),
        (replace(DRAINED, boot_time=100), "has not booted since"),
        (replace(DRAINED, boot_time=None), "does not tell when"),
        (replace(DRAINED, boot_time=50, reason="ais:gpu.xid GPU3 Xid 79: fell off [7cad30]"), "waits for a reboot"),
        (replace(DRAINED, boot_time=50, reason="ais:gpu.ecc_uncorrectable GPU3 5 errors [7cad30]"), ""),
    ],
)
def test_which_drains_are_taken_back(node: Node, words: str) -> None:
    found = not_returnable(node, Sweep())
    assert words in found
    assert bool(words) == bool(found)


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ((WELL, Finding("host.swap", Status.WARN)), ""),
        ((WELL, Finding("host.swap", Status.UNKNOWN)), ""),
        ((WELL, Finding("host.mounts", Status.FAIL, scope=Scope.SHARED)), "fails: host.mounts"),
        ((WELL, Finding("gpu.driver_hang", Status.UNKNOWN)), "not known: gpu.driver_hang"),
        ((Finding("gpu.lost", Status.WARN), Finding("gpu.count", Status.OK)), "still a warning: gpu.lost"),
        ((Finding("sweep.unreachable", Status.UNKNOWN),), "not known"),
        ((Finding("host.swap", Status.WARN),), "nothing was found to be in order"),
    ],
)
def test_what_a_pass_is(findings: tuple[Finding, ...], words: str) -> None:
    found = not_passed(NodeAnswer("gpu1", findings), OURS)
    assert words in found
    assert bool(words) == bool(found)


def test_nodes_without_power_are_never_asked() -> None:
    nodes = cluster(4)
    nodes[0] = replace(nodes[0], flags=frozenset({"CLOUD", "POWERED_DOWN"}))
    nodes[1] = replace(nodes[1], flags=frozenset({"POWERING_UP"}))
    nodes[2] = replace(nodes[2], state="FUTURE")
    targets, skipped = choose([], nodes)
    assert [target.name for target in targets] == ["gpu4"]
    assert set(skipped) == {"gpu1", "gpu2", "gpu3"}
    assert "POWERED_DOWN" in skipped["gpu1"]
    assert choose(["gpu[1-2]"], nodes)[0] == []


def test_names_partitions_and_no_slurm() -> None:
    nodes = cluster(3)
    assert [t.name for t in choose(["gpu3", "gpu[1,3]"], nodes)[0]] == ["gpu1", "gpu3"]
    assert len(choose(["@p"], nodes)[0]) == 3
    assert [t.host for t in choose(["gpu[7-8]"], None)[0]] == ["gpu7", "gpu8"]
    for words in ([], ["@p"]):
        with pytest.raises(SlurmUnavailable, match="name them"):
            choose(words, None)
    for word in ("@q", "gpu9"):
        with pytest.raises(UnknownNodes, match=word):
            choose([word], nodes)
    with pytest.raises(HostlistError):
        choose(["gpu[1"], nodes)


def test_silence_over_slurm_is_health_only_where_something_looks() -> None:
    targets = [Target(node.name, node.name, node) for node in cluster(2, "gpu2")]
    assert [a.status for a in published(targets, watched=True)] == [Status.OK, Status.FAIL]
    assert [a.status for a in published(targets, watched=False)] == [Status.UNKNOWN, Status.FAIL]
    down = replace(targets[0].node, state="DOWN")  # type: ignore[type-var]
    assert published([Target("gpu1", "gpu1", down)], watched=True)[0].status is Status.UNKNOWN
    reported = Node("gpu1", "IDLE", comment="note [ais-found 1796091300 host.mounts@/home=not mounted]")
    (answer,) = published([Target("gpu1", "gpu1", reported)], watched=False)
    assert (answer.findings[0].check, answer.findings[0].subject, answer.drains) == ("host.mounts", "/home", ())
    text = "HealthCheckInterval     = {} sec\nHealthCheckProgram      = {}\n"
    assert health_check_runs(text.format(300, "/usr/bin/aistation"))
    assert not health_check_runs(text.format(0, "/usr/bin/aistation"))
    assert not health_check_runs(text.format(300, "/usr/sbin/nhc"))
