"""Nodes that were given back, and drains that somebody else set: gate, cron, administrators, Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from aistation_slurm.errors import SlurmRefused
from aistation_slurm.findings import drain_reason
from aistation_slurm.node import acted, history
from aistation_slurm.node.drain import drain_for
from tests.cluster.faults import xid
from tests.unit.node.fake_slurm import FakeSlurm, job
from tests.unit.node.reaction_run import Clock, reaction
from tests.unit.node.sim import SimNode


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    return SimNode(tmp_path)


def test_a_node_given_back_starts_with_a_clean_kernel_log(node: SimNode, clock: Clock) -> None:
    node.inject(xid(2, 64))
    slurm = FakeSlurm()
    react = reaction(node, slurm, clock)
    react.see([node.finding("gpu.xid", 2)], complete=True)
    assert [e.xid for e in history.events(node.config)] == [64]
    clock.now += 60
    react.watch_for_return()
    assert [e.xid for e in history.events(node.config)] == [64], "it is still drained"
    slurm.set_node("gpu1", "")
    clock.now += 60
    react.watch_for_return()
    assert history.events(node.config) == []
    node.inject(xid(2, 95))
    assert [e.xid for e in history.events(node.config)] == [95]
    react.see([node.finding("gpu.xid", 2)], complete=True)
    assert len(slurm.made("drain")) == 2


def test_the_same_fault_again_after_a_node_came_back_is_a_new_one(node: SimNode, clock: Clock) -> None:
    """Given back without a repair, the GPU fails again before anyone has looked whether the node is back."""
    slurm = FakeSlurm(job())
    react = reaction(node, slurm, clock)
    node.inject(xid(2, 95))
    react.see([node.finding("gpu.xid", 2)], complete=True)
    slurm.set_node("gpu1", "")
    clock.now += 1
    node.inject(xid(2, 95))
    react.see([node.finding("gpu.xid", 2)], complete=False)
    clock.now += 5
    react.watch_for_return()
    assert len(history.events(node.config)) == 1
    react.see([node.finding("gpu.xid", 2)], complete=True)
    assert len(slurm.made("drain")) == 2


def test_a_lost_gpu_that_only_the_log_tells_of_can_be_lost_again(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm()
    react = reaction(node, slurm, clock)
    node.inject(xid(2, 79))
    react.see([node.finding("gpu.lost", 2)], complete=True)
    slurm.set_node("gpu1", "")
    node.inject(xid(2, 79))
    clock.now += 60
    react.watch_for_return()
    react.see([node.finding("gpu.lost", 2)], complete=True)
    assert len(slurm.made("drain")) == 2


@pytest.mark.parametrize("reason", ["swap a cable, bob", "ais:fabric.rate mlx5_1/1 200 Gb/s [123456]"])
def test_a_fault_under_another_drain_is_drained_for_when_the_node_comes_back(
    node: SimNode, clock: Clock, reason: str
) -> None:
    """Whoever gives it back knows of the cable and not of the GPU."""
    slurm = FakeSlurm()
    slurm.set_node("gpu1", reason)
    react = reaction(node, slurm, clock)
    node.inject(xid(2, 95))
    for _ in range(3):
        react.see([node.finding("gpu.xid", 2)], complete=True)
    assert slurm.made("drain") == []
    slurm.set_node("gpu1", "")
    clock.now += 60
    react.watch_for_return()
    assert [e.xid for e in history.events(node.config)] == [95]
    react.see([node.finding("gpu.xid", 2)], complete=True)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.xid GPU2 ")
    slurm.set_node("gpu1", "")
    react.see([node.finding("gpu.xid", 2)], complete=True)
    assert len(slurm.made("drain")) == 1  # once told, an administrator is not argued with


def test_what_was_only_observed_is_not_taken_for_told(tmp_path: Path, clock: Clock) -> None:
    """The gate may enforce where the agent observes; a node that was never drained was never given back."""
    node = SimNode(tmp_path, agent={"mode": "observe"})
    reaction(node, FakeSlurm(), clock).see([node.finding("gpu.xid", 2)], complete=True)
    assert acted.read(str(node.run)) == frozenset()


def test_a_state_directory_that_cannot_be_written_keeps_no_sick_node_in_service(node: SimNode, clock: Clock) -> None:
    """The drain comes without its lock, the requeue as soon as it can be remembered."""
    node.run.write_text("a file where the folder should be", encoding="ascii")
    slurm = FakeSlurm(job())
    react = reaction(node, slurm, clock)
    react.see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.lost GPU3 ")
    assert slurm.made("requeue") == []
    node.run.unlink()
    clock.now += 60
    react.act()
    assert slurm.made("requeue") == ["requeue 7"]


def test_jobs_get_away_from_a_node_that_cron_drained_before_the_agent_began(node: SimNode, clock: Clock) -> None:
    """`aistation check --act` pushes nobody; once only, and not where the node was given back."""
    slurm = FakeSlurm(job())
    drain_for(node.report(node.finding("gpu.lost", 3)), node.config, slurm)
    react = reaction(node, slurm, clock)
    for _ in range(2):
        react.see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.made("requeue") == ["requeue 7"]
    slurm.set_node("gpu1", "")
    slurm.by_id[8] = job(8)
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=True)
    assert (len(slurm.made("drain")), slurm.made("requeue")) == (1, ["requeue 7"])


def test_a_drain_by_the_gate_is_not_repeated_after_an_administrator_gave_the_node_back(
    node: SimNode, clock: Clock
) -> None:
    """The gate notes it beside a running agent; the jobs of the fault get away all the same, once."""
    slurm = FakeSlurm(job())
    react = reaction(node, slurm, clock)
    react.see([], complete=True)
    finding = node.finding("gpu.lost", 3)
    slurm.set_node("gpu1", drain_reason(finding, node="gpu1", boot_id="boot"))
    acted.write(str(node.run), [(finding.check, finding.subject)])
    for _ in range(2):
        react.see([finding], complete=True)
    assert slurm.made("requeue") == ["requeue 7"]
    assert slurm.made("update") == ["update 7 [ais resume=auto max=3 fault=gpu.lost@gpu1@1000]"]
    slurm.set_node("gpu1", "")
    react.see([finding], complete=True)
    assert slurm.made("drain") == []
    react.see([], complete=True)
    react.see([finding], complete=True)
    assert slurm.made("drain") == ["drain gpu1"], "a fault that comes again is new"


def test_a_node_given_back_before_the_agent_looked_is_left_in_service(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())
    react = reaction(node, slurm, clock)
    react.see([], complete=True)
    finding = node.finding("gpu.lost", 3)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    react.see([finding], complete=True)
    assert slurm.made("drain") + slurm.made("requeue") == []


def test_a_drain_that_became_ours_later_tells_of_the_fault(node: SimNode, clock: Clock) -> None:
    """Found under Slurm's own Prolog error first; node/settle.py then put the gate's reason there."""
    slurm = FakeSlurm()
    slurm.set_node("gpu1", "Prolog error")
    react = reaction(node, slurm, clock)
    finding = node.finding("gpu.lost", 3)
    react.see([finding], complete=True)
    slurm.set_node("gpu1", drain_reason(finding, node="gpu1", boot_id="boot"))
    acted.write(str(node.run), [(finding.check, finding.subject)])
    react.see([finding], complete=True)
    slurm.set_node("gpu1", "")
    clock.now += 60
    react.watch_for_return()
    react.see([finding], complete=True)
    assert slurm.made("drain") == []


def test_nothing_is_drained_while_the_own_name_is_not_certain(
    node: SimNode, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that is only called like this host is another machine."""
    slurm = FakeSlurm(job(nodes=("gpu2",)))
    names: list[str] = []

    def own_name() -> str:
        if not names:
            raise SlurmRefused("no node of Slurm has NodeHostName=gpu1; set SLURMD_NODENAME to this node's NodeName")
        return names[0]

    react = reaction(node, slurm, clock, own_name)
    for _ in range(4):
        react.see([node.finding("gpu.lost", 3)], complete=True)
        clock.now += 60
    assert slurm.calls == []
    assert len([r for r in caplog.records if "SLURMD_NODENAME" in r.message]) == 1
    names.append("gpu2")
    react.act()
    assert (slurm.made("drain"), slurm.made("requeue")) == (["drain gpu2"], ["requeue 7"])
    wanted = drain_reason(node.finding("gpu.lost", 3), node="gpu2", boot_id="boot")
    assert slurm.by_name["gpu2"].reason == wanted
