from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from aistation_slurm.findings import Finding
from aistation_slurm.node import acted, jobs
from aistation_slurm.node.jobs import JobRecord
from tests.unit.node.fake_slurm import FakeSlurm, job
from tests.unit.node.reaction_run import Clock, reaction
from tests.unit.node.sim import SimNode


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    return SimNode(tmp_path)


def test_drain_first_then_requeue(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=False)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.lost GPU3 ")
    changes = [c for c in slurm.calls if c.split()[0] in ("drain", "requeue")]
    assert changes == ["drain gpu1", "requeue 7"]


def test_each_finding_is_acted_on_once(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())
    react = reaction(node, slurm, clock)
    for _ in range(5):
        react.see([node.finding("gpu.lost", 3)], complete=True)
    assert (len(slurm.made("drain")), len(slurm.made("requeue"))) == (1, 1)


def test_an_administrator_who_gives_the_node_back_is_not_argued_with(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=True)
    slurm.set_node("gpu1", "")
    for react in (reaction(node, slurm, clock), reaction(node, slurm, clock)):  # also after restarts of the agent
        react.see([node.finding("gpu.lost", 3)], complete=True)
    assert len(slurm.made("drain")) == 1


def test_a_fault_that_comes_again_is_new(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm()
    react = reaction(node, slurm, clock)
    react.see([node.finding("gpu.lost", 3)], complete=True)
    react.see([], complete=True)
    slurm.set_node("gpu1", "")
    react.see([node.finding("gpu.lost", 3)], complete=True)
    assert len(slurm.made("drain")) == 2


def test_an_urgent_look_does_not_forget_what_it_did_not_cover(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm()
    react = reaction(node, slurm, clock)
    react.see([node.finding("gpu.ecc_uncorrectable", 3)], complete=True)
    react.see([], complete=False)
    react.see([node.finding("gpu.ecc_uncorrectable", 3)], complete=True)
    assert len(slurm.made("drain")) == 1


def test_another_ones_drain_stays_and_the_jobs_get_away(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())
    slurm.set_node("gpu1", "memory test tomorrow")
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.by_name["gpu1"].reason == "memory test tomorrow"
    assert slurm.made("requeue") == ["requeue 7"]
    # the node's reason does not tell the watchdog what happened, so the job's own record does
    assert slurm.made("update") == ["update 7 [ais resume=auto max=3 fault=gpu.lost@gpu1@1000]"]


def test_nothing_is_requeued_to_a_node_that_could_not_be_drained(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())

    def no_drain(call: str) -> None:
        slurm.down = call.startswith("drain")

    slurm.hook = no_drain
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.made("requeue") == []


def test_a_controller_that_is_down_is_tried_again_and_said_once(
    node: SimNode, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = FakeSlurm(job())
    slurm.down = True
    react = reaction(node, slurm, clock)
    with caplog.at_level(logging.WARNING):
        react.see([node.finding("gpu.lost", 3)], complete=True)
        asked = len(slurm.calls)
        react.act()
        assert len(slurm.calls) == asked, "not before it is time"
        for _ in range(20):
            clock.now += 31
            react.act()
    assert len([r for r in caplog.records if "did not answer" in r.message]) == 1
    assert 10 <= len(slurm.calls) - asked <= 21
    slurm.down = False
    clock.now += 31
    react.act()
    assert slurm.by_name["gpu1"].drained
    assert slurm.made("requeue") == ["requeue 7"]


def test_the_requeue_alone_is_retried_when_the_drain_is_done(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())

    def no_requeue(call: str) -> None:
        slurm.down = call.startswith("requeue")

    slurm.hook = no_requeue
    react = reaction(node, slurm, clock)
    react.see([node.finding("gpu.lost", 3)], complete=True)
    slurm.hook, slurm.down = None, False
    clock.now += 31
    react.act()
    assert len(slurm.made("drain")) == 1
    assert slurm.by_id[7].state == "PENDING"


def test_a_job_beside_the_lost_gpu_goes_on(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job(7), job(8))
    jobs.write(str(node.run), JobRecord(7, 20001, 0, frozenset({0, 1}), "auto", 1.0))
    jobs.write(str(node.run), JobRecord(8, 20001, 0, frozenset({2, 3}), "auto", 1.0))
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.made("requeue") == ["requeue 8"]


def test_each_job_carries_its_own_fault(node: SimNode, clock: Clock) -> None:
    """The node's reason names GPU 3 only; and a watchdog elsewhere knows of the fault even where the event was lost."""
    slurm = FakeSlurm(job(7), job(8))
    jobs.write(str(node.run), JobRecord(7, 20001, 0, frozenset({0, 1}), "auto", 1.0))
    jobs.write(str(node.run), JobRecord(8, 20001, 0, frozenset({2, 3}), "auto", 1.0))
    both = [node.finding("gpu.lost", 3), node.finding("gpu.xid", 0, evidence="Xid 48: Double Bit ECC Error")]
    reaction(node, slurm, clock).see(both, complete=True)
    assert sorted(slurm.made("requeue")) == ["requeue 7", "requeue 8"]
    assert sorted(slurm.made("update")) == [
        "update 7 [ais resume=auto max=3 fault=gpu.xid@gpu1@1000]",
        "update 8 [ais resume=auto max=3 fault=gpu.lost@gpu1@1000]",
    ]


def test_an_older_drain_of_ours_does_not_tell_of_a_new_fault(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())
    slurm.set_node("gpu1", "ais:fabric.rate mlx5_1/1 200 Gb/s [123456]")
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.by_name["gpu1"].reason.startswith("ais:fabric.rate")
    assert slurm.made("update") == ["update 7 [ais resume=auto max=3 fault=gpu.lost@gpu1@1000]"]


def test_a_job_without_gpus_goes_on_when_a_gpu_is_lost(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job(7), job(8), job(9, gres_detail=("",)))
    jobs.write(str(node.run), JobRecord(7, 20001, 0, frozenset(), "auto", 1.0))
    jobs.write(str(node.run), JobRecord(8, 20001, 0, frozenset({3}), "auto", 1.0))
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.made("requeue") == ["requeue 8"]


def test_a_lost_gpu_of_unknown_index_concerns_every_job_with_gpus(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job(7), job(8))
    jobs.write(str(node.run), JobRecord(7, 20001, 0, frozenset(), "auto", 1.0))
    jobs.write(str(node.run), JobRecord(8, 20001, 0, frozenset({0}), "auto", 1.0))
    unknown = Finding("gpu.lost", node.finding("x", 0).status, "GPU 0000:ff:00", "gone", device="0000:ff:00.0")
    reaction(node, slurm, clock).see([unknown], complete=True)
    assert slurm.made("requeue") == ["requeue 8"]


@pytest.mark.parametrize(
    ("check", "evidence"),
    [
        ("gpu.pcie", "PCIe x8, the slot can x16"),
        ("gpu.retired_pages", "64 pages retired (3 for double bit errors), and the card can retire 64"),
        ("gpu.row_remap", "row remapping failed"),
        ("gpu.ecc_uncorrectable", "2 uncorrectable errors since the driver was loaded, limit 0"),
        ("gpu.xid", "Xid 64: GPU memory remapping failure"),
        ("host.memory", "1 uncorrected error"),
    ],
)
def test_a_running_job_may_finish_where_it_can_go_on(node: SimNode, clock: Clock, check: str, evidence: str) -> None:
    """The node takes no new job, and nobody loses the steps since the last checkpoint."""
    slurm = FakeSlurm(job(7))
    react = reaction(node, slurm, clock)
    react.see([node.finding(check, 3, evidence=evidence)], complete=True)
    assert (len(slurm.made("drain")), slurm.made("requeue")) == (1, [])
    assert react.pending is None
    react.see([node.finding(check, 3, evidence=evidence), node.finding("gpu.lost", 3)], complete=True)
    assert slurm.made("requeue") == ["requeue 7"], "until its GPU is lost"


def test_a_hung_driver_concerns_every_job_with_gpus(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job(7), job(8), job(9))
    jobs.write(str(node.run), JobRecord(7, 20001, 0, frozenset({0, 1}), "auto", 1.0))
    jobs.write(str(node.run), JobRecord(9, 20001, 0, frozenset(), "auto", 1.0))
    hang = Finding("gpu.driver_hang", node.finding("x", 0).status, "NVIDIA driver", "blocked for 40 s")
    reaction(node, slurm, clock).see([hang], complete=True)
    assert sorted(slurm.made("requeue")) == ["requeue 7", "requeue 8"]


def test_requeue_can_be_switched_off(tmp_path: Path, clock: Clock) -> None:
    node = SimNode(tmp_path, agent={"requeue": False})
    slurm = FakeSlurm(job())
    reaction(node, slurm, clock).see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.by_name["gpu1"].drained
    assert slurm.made("requeue") == []


def test_observe_mode_changes_nothing_and_says_all(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    node = SimNode(tmp_path, agent={"mode": "observe"})
    slurm = FakeSlurm(job())
    react = reaction(node, slurm, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            react.see([node.finding("gpu.lost", 3)], complete=True)
            clock.now += 60
            react.watch_for_return()
    assert slurm.calls == ["jobs"]
    said = [r.message for r in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("observe mode: would drain gpu1: ais:gpu.lost GPU3")
    assert said[1] == "observe mode: would requeue 7"


def test_an_open_breaker_holds_everything_until_it_expires(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm(job())
    node.run.mkdir()
    (node.run / "breaker").write_text(f"open {time.time() + 600:.0f} 40 of 64 nodes")
    react = reaction(node, slurm, clock)
    react.see([node.finding("gpu.lost", 3)], complete=True)
    assert slurm.calls == []
    (node.run / "breaker").write_text(f"open {time.time() - 1:.0f} 40 of 64 nodes")
    clock.now += 60
    react.act()
    assert slurm.by_name["gpu1"].drained


def test_more_findings_while_waiting_do_not_change_the_reason(node: SimNode, clock: Clock) -> None:
    slurm = FakeSlurm()
    slurm.down = True
    react = reaction(node, slurm, clock)
    react.see([node.finding("gpu.xid", 2)], complete=False)
    slurm.down = False
    react.see([node.finding("gpu.lost", 1), node.finding("gpu.xid", 2)], complete=True)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.xid GPU2 ")
    assert acted.read(str(node.run)) == {
        (f.check, f.subject) for f in (node.finding("gpu.xid", 2), node.finding("gpu.lost", 1))
    }
