from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from aistation_slurm.cli import check
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable, StateFileError
from aistation_slurm.findings import Finding, Status
from aistation_slurm.node import drain, history
from aistation_slurm.node.drain import Outcome
from aistation_slurm.node.lock import DrainLock, agent_is_running, take_agent_lock
from tests.cluster.faults import xid
from tests.unit.node.fake_slurm import FakeSlurm
from tests.unit.node.sim import SimNode

OURS = "ais:gpu.lost GPU3 0000:5d:00 Xid 79 [dfef67]"


def test_a_node_in_service_is_drained_and_looked_at_again(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    result = drain.drain_node(slurm, "gpu1", OURS, str(tmp_path))
    assert (result.outcome, result.reason, result.drained) == (Outcome.SET, OURS, True)
    assert slurm.calls == ["nodes gpu1", "drain gpu1", "nodes gpu1"]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("memory test tomorrow", Outcome.LEFT_TO_OTHERS),
        ("Prolog error", Outcome.LEFT_TO_OTHERS),
        ("AIS:gpu.lost", Outcome.LEFT_TO_OTHERS),
        ("ais:fabric.rate mlx5_1/1 200 Gb/s [123456]", Outcome.ALREADY_OURS),
    ],
)
def test_a_drain_that_is_there_keeps_its_reason(tmp_path: Path, reason: str, outcome: Outcome) -> None:
    slurm = FakeSlurm()
    slurm.set_node("gpu1", reason)
    result = drain.drain_node(slurm, "gpu1", OURS, str(tmp_path))
    assert (result.outcome, result.reason, result.drained) == (outcome, reason, True)
    assert slurm.made("drain") == []


def test_a_reason_written_in_the_same_moment_stays(tmp_path: Path) -> None:
    """An administrator's drain lands between our request and our second look."""
    slurm = FakeSlurm()

    def meanwhile(call: str) -> None:
        if slurm.made("drain"):
            slurm.set_node("gpu1", "hands off")

    slurm.hook = meanwhile
    result = drain.drain_node(slurm, "gpu1", OURS, str(tmp_path))
    assert result.outcome is Outcome.SET or result.reason == "hands off"
    assert slurm.by_name["gpu1"].reason in (OURS, "hands off")
    assert len(slurm.made("drain")) == 1, "never written a second time"


def test_an_unknown_node_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match="SLURMD_NODENAME"):
        drain.drain_node(FakeSlurm(), "gpu9", OURS, str(tmp_path))


def test_a_silent_controller_changes_nothing(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.down = True
    with pytest.raises(SlurmUnavailable):
        drain.drain_node(slurm, "gpu1", OURS, str(tmp_path))
    assert slurm.made("drain") == []


@pytest.mark.parametrize("reason", ["", "memory test", OURS.replace("dfef67", "000000"), f"{OURS} and more"])
def test_only_exactly_our_reason_is_given_back(tmp_path: Path, reason: str) -> None:
    slurm = FakeSlurm()
    if reason:
        slurm.set_node("gpu1", reason)
    assert drain.resume_node(slurm, "gpu1", OURS, str(tmp_path)).outcome is Outcome.NOT_OURS
    assert slurm.made("resume") == []


def test_our_own_drain_is_given_back(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.set_node("gpu1", OURS)
    assert drain.resume_node(slurm, "gpu1", OURS, str(tmp_path)).outcome is Outcome.RESUMED
    assert not slurm.by_name["gpu1"].drained


def test_a_foreign_reason_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a reason of AIStation"):
        drain.resume_node(FakeSlurm(), "gpu1", "memory test", str(tmp_path))


def test_two_parts_of_one_node_never_change_the_drain_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "LOCK_WAIT_S", 0.1)
    slurm = FakeSlurm()
    with DrainLock(str(tmp_path), 1.0) as held:
        assert held
        with pytest.raises(SlurmUnavailable, match=r"drain\.lock"):
            drain.drain_node(slurm, "gpu1", OURS, str(tmp_path))
    assert slurm.calls == []
    assert drain.drain_node(slurm, "gpu1", OURS, str(tmp_path)).outcome is Outcome.SET


def test_the_drain_lock_ends_with_its_holder(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        DrainLock(str(tmp_path), 1.0).__enter__()
        os._exit(0)
    os.waitpid(pid, 0)
    with DrainLock(str(tmp_path), 0.0) as held:
        assert held


def test_users_cannot_open_the_locks(tmp_path: Path) -> None:
    """A lock file that others may read could be locked by them, and so stop drains."""
    with DrainLock(str(tmp_path), 1.0):
        pass
    os.close(take_agent_lock(str(tmp_path)))
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o600}


def test_the_agents_lock_is_seen_by_others_and_not_left_to_a_child(tmp_path: Path) -> None:
    """A child in state D outlives the agent; it must not keep the agent's place."""
    told, tell = os.pipe()
    stay, end = os.pipe()
    agent = os.fork()
    if agent == 0:
        take_agent_lock(str(tmp_path))
        if os.fork() == 0:
            os.close(end)
            os.write(tell, b"child")
            os.read(stay, 1)
            os._exit(0)
        os.read(stay, 1)
        os._exit(0)
    os.read(told, 5)
    assert agent_is_running(str(tmp_path))
    with pytest.raises(StateFileError, match="another `aistation agent` runs"):
        take_agent_lock(str(tmp_path))
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    assert not agent_is_running(str(tmp_path))
    os.close(end)  # lets the grandchild go


def test_check_act_drains_for_the_most_telling_fault(tmp_path: Path) -> None:
    node = SimNode(tmp_path)
    report = node.report(node.finding("gpu.xid", 1), node.finding("gpu.lost", 2), node.port_finding("fabric.rate", "x"))
    slurm = FakeSlurm()
    said = drain.drain_for(report, node.config, slurm)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.lost GPU2 ")
    assert said.startswith("gpu1 drained (set): ais:gpu.lost")


def test_check_act_drains_also_where_its_state_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = SimNode(tmp_path)
    slurm = FakeSlurm()

    def full(*_: object) -> str:
        raise StateFileError("/run/aistation/state: No space left on device")

    monkeypatch.setattr("aistation_slurm.node.publish.publish", full)
    monkeypatch.setattr("aistation_slurm.slurm.connect", lambda _: slurm)
    monkeypatch.setenv("SLURMD_NODENAME", "gpu1")
    check._act(node.config, node.report(node.finding("gpu.lost", 2)))
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.lost GPU2 ")
    assert "state not written: /run/aistation/state: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("status", [Status.OK, Status.WARN, Status.UNKNOWN])
def test_check_act_never_drains_on_doubt(tmp_path: Path, status: Status) -> None:
    node = SimNode(tmp_path)
    slurm = FakeSlurm()
    report = node.report(
        node.finding("gpu.xid", 1, status),
        node.port_finding("fabric.port_state", "mlx5_0"),
        Finding("gpu.driver_hang", status, "NVIDIA driver", "nvmlInit did not return"),
    )
    assert drain.drain_for(report, node.config, slurm) == ""
    assert slurm.calls == []


def test_check_act_in_observe_mode(tmp_path: Path) -> None:
    node = SimNode(tmp_path, agent={"mode": "observe"})
    slurm = FakeSlurm()
    said = drain.drain_for(node.report(node.finding("gpu.lost", 2)), node.config, slurm)
    assert said.startswith("observe mode: would drain gpu1: ais:gpu.lost GPU2")
    assert slurm.calls == []


def test_a_refusal_is_passed_on(tmp_path: Path) -> None:
    slurm = FakeSlurm()

    def refuse(call: str) -> None:
        if call.startswith("drain"):
            raise SlurmRefused("scontrol update: Access/permission denied")

    slurm.hook = refuse
    with pytest.raises(SlurmRefused, match="permission denied"):
        drain.drain_node(slurm, "gpu1", OURS, str(tmp_path))


def test_check_act_does_not_argue_with_an_administrator_who_gave_the_node_back(tmp_path: Path) -> None:
    """From cron it finds the same Xid in the kernel log at every run until the next boot."""
    node = SimNode(tmp_path)
    node.inject(xid(1, 95))
    slurm = FakeSlurm()
    report = node.report(node.finding("gpu.xid", 1), node.finding("gpu.lost", 2))
    drain.drain_for(report, node.config, slurm)
    assert drain.drain_for(report, node.config, slurm) == ""
    slurm.set_node("gpu1", "")
    assert "gave it back" in drain.drain_for(report, node.config, slurm)
    assert len(slurm.made("drain")) == 1
    assert history.events(node.config) == []


def test_check_act_drains_again_for_a_fault_that_came_again(tmp_path: Path) -> None:
    node = SimNode(tmp_path)
    node.inject(xid(1, 95))
    slurm = FakeSlurm()
    report = node.report(node.finding("gpu.xid", 1))
    drain.drain_for(report, node.config, slurm)
    slurm.set_node("gpu1", "")
    node.inject(xid(1, 95))
    for _ in range(2):  # the first run only learns that the node is back
        drain.drain_for(report, node.config, slurm)
    assert len(slurm.made("drain")) == 2


def test_check_act_drains_again_for_a_fault_that_had_gone(tmp_path: Path) -> None:
    node = SimNode(tmp_path)
    slurm = FakeSlurm()
    unasked = Finding("gpu.driver_hang", Status.UNKNOWN, "NVIDIA driver", "nvmlInit did not return")
    drain.drain_for(node.report(node.finding("gpu.xid", 1)), node.config, slurm)
    slurm.set_node("gpu1", "")
    drain.drain_for(node.report(unasked), node.config, slurm)  # says nothing of the GPU either way
    drain.drain_for(node.report(node.finding("gpu.xid", 1)), node.config, slurm)
    assert len(slurm.made("drain")) == 1
    node.inject(xid(1, 95))
    drain.drain_for(node.report(), node.config, slurm)
    drain.drain_for(node.report(node.finding("gpu.xid", 1)), node.config, slurm)
    assert len(slurm.made("drain")) == 2


def test_check_act_under_another_ones_drain_remembers_nothing(tmp_path: Path) -> None:
    node = SimNode(tmp_path)
    slurm = FakeSlurm()
    slurm.set_node("gpu1", "swap a cable, bob")
    drain.drain_for(node.report(node.finding("gpu.xid", 1)), node.config, slurm)
    slurm.set_node("gpu1", "")
    drain.drain_for(node.report(node.finding("gpu.xid", 1)), node.config, slurm)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.xid GPU1 ")
