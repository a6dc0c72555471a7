from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.node import acted, lock, refusals, settle
from aistation_slurm.node.own_name import OwnName
from aistation_slurm.node.refusals import Refusal
from aistation_slurm.node.state import boot_id
from aistation_slurm.slurm import tags
from tests.unit.node.fake_slurm import FakeSlurm
from tests.unit.node.sim import SimNode

NOW = 10_000.0
REASON = "ais:gpu.lost GPU3 0000:8f:00 gone from the PCI bus [abcdef]"


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    return SimNode(tmp_path)


def refused(node: SimNode, job_id: int = 42, time: int = 9_000, progress: str = refusals.OPEN, since: int = 0) -> None:
    gone = Refusal(job_id, time, boot_id(), "gpu.lost", "GPU3 0000:8f:00", REASON, progress, since)
    refusals.keep(str(node.run), gone)


def drained(reason: str, at: int = 9_500, comment: str = "rack 12") -> FakeSlurm:
    slurm = FakeSlurm()
    slurm.set_node("gpu1", reason)
    slurm.by_name["gpu1"] = replace(slurm.by_name["gpu1"], reason_time=at, comment=comment)
    return slurm


def run(node: SimNode, slurm: FakeSlurm, now: float = NOW) -> str:
    return settle.settle(node.config, "gpu1", slurm, now)


def progress(node: SimNode) -> list[str]:
    return [r.progress for r in refusals.read_all(str(node.run), boot_id())]


def test_slurms_prolog_error_becomes_our_reason_and_the_comment_names_the_job(node: SimNode) -> None:
    refused(node)
    slurm = drained("Prolog error")
    assert run(node, slurm) == f"gpu1: the gate refused job 42, so Slurm's Prolog error is now {REASON}"
    assert (slurm.by_name["gpu1"].reason, slurm.by_name["gpu1"].drained) == (REASON, True)
    assert slurm.by_name["gpu1"].comment == "rack 12 [ais refused=42@9000]"
    assert slurm.calls == ["nodes gpu1", "update_node gpu1 Comment Reason", "nodes gpu1"]
    assert acted.read(str(node.run)) == {("gpu.lost", "GPU3 0000:8f:00")}
    assert run(node, slurm) == ""
    assert len(slurm.calls) == 3, "a settled refusal costs no request"


@pytest.mark.parametrize(
    "reason",
    [
        "Prolog error, said bob",
        "prolog error",
        "Prolog error ",
        "Prolog/Epilog failure",
        "Epilog error",
        "Job env setup error",
        "Kill task failed",
        "memory test tomorrow",
        "ais:fabric.rate mlx5_1/1 200 Gb/s [123456]",
    ],
)
def test_no_other_reason_is_touched(node: SimNode, reason: str) -> None:
    refused(node)
    slurm = drained(reason)
    assert run(node, slurm) == ""
    assert slurm.by_name["gpu1"].reason == reason
    assert tags.refusals_of(slurm.by_name["gpu1"].comment) == ((42, 9000),)
    assert progress(node) == [refusals.CLOSED]


def test_a_prolog_error_without_a_refusal_of_ours_stays(node: SimNode) -> None:
    slurm = drained("Prolog error")
    assert run(node, slurm) == ""
    assert slurm.calls == []


def test_a_refusal_that_slurm_was_told_of_explains_no_later_prolog_error(node: SimNode) -> None:
    refused(node, progress=refusals.CLOSED)
    slurm = drained("Prolog error")
    assert run(node, slurm) == ""
    assert slurm.calls == []


def test_a_drain_from_before_the_refusal_is_not_explained_by_it(node: SimNode) -> None:
    refused(node, time=9_000)
    slurm = drained("Prolog error", at=8_000)
    assert run(node, slurm) == ""
    assert slurm.by_name["gpu1"].reason == "Prolog error"


def test_a_refusal_of_another_boot_explains_nothing(node: SimNode) -> None:
    gone = Refusal(42, 9_000, "another boot", "gpu.lost", "GPU3", REASON)
    refusals.keep(str(node.run), gone)
    slurm = drained("Prolog error")
    assert run(node, slurm) == ""
    assert slurm.calls == []


def test_the_latest_refusal_before_the_drain_is_its_cause(node: SimNode) -> None:
    refused(node, job_id=42, time=9_000)
    later = Refusal(43, 9_400, boot_id(), "fabric.rate", "mlx5_1/1", "ais:fabric.rate mlx5_1/1 [111111]")
    refusals.keep(str(node.run), later)
    slurm = drained("Prolog error", at=9_401)
    assert "job 43" in run(node, slurm)
    assert slurm.by_name["gpu1"].reason == "ais:fabric.rate mlx5_1/1 [111111]"
    assert tags.refusals_of(slurm.by_name["gpu1"].comment) == ((42, 9_000), (43, 9_400))


def test_the_drain_may_still_come_after_the_first_answer(node: SimNode) -> None:
    """slurmd tells of the failed prolog some seconds after the controller is back."""
    refused(node)
    slurm = FakeSlurm()
    assert run(node, slurm) == ""
    assert tags.refusals_of(slurm.by_name["gpu1"].comment) == ((42, 9_000),)
    assert progress(node) == [refusals.TOLD]
    slurm.by_name["gpu1"] = replace(slurm.by_name["gpu1"], flags=frozenset({"DRAIN"}), reason="Prolog error")
    assert run(node, slurm, NOW + 20).endswith(REASON)


def test_it_is_not_awaited_for_ever(node: SimNode) -> None:
    refused(node)
    slurm = FakeSlurm()
    for later in (0, 200, 301, 302):
        run(node, slurm, NOW + later)
    assert progress(node) == [refusals.CLOSED]
    slurm.set_node("gpu1", "Prolog error")
    assert run(node, slurm, NOW + 400) == ""
    assert slurm.by_name["gpu1"].reason == "Prolog error"


def test_a_controller_that_is_silent_is_asked_again(node: SimNode) -> None:
    refused(node)
    slurm = drained("Prolog error")
    slurm.down = True
    with pytest.raises(SlurmUnavailable):
        run(node, slurm)
    assert progress(node) == [refusals.OPEN]
    slurm.down = False
    assert run(node, slurm).endswith(REASON)


def test_a_node_that_is_resumed_in_the_same_moment_is_not_drained_again(node: SimNode) -> None:
    refused(node)
    slurm = drained("Prolog error")

    def resumed(call: str) -> None:
        if call.startswith("update_node"):
            slurm.set_node("gpu1", "")

    slurm.hook = resumed
    assert run(node, slurm) == ""
    assert not slurm.by_name["gpu1"].drained
    assert acted.read(str(node.run)) == frozenset()


def test_observe_mode_changes_nothing(tmp_path: Path) -> None:
    node = SimNode(tmp_path, agent={"mode": "observe"})
    refused(node)
    slurm = drained("Prolog error")
    assert run(node, slurm) == ""
    assert slurm.calls == []


def test_cron_leaves_it_to_an_agent_that_runs(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu1")
    refused(node)
    slurm = drained("Prolog error")
    own_name = OwnName(str(node.run))
    monkeypatch.setattr(settle, "agent_is_running", lambda _: True)
    assert settle.settle_without_agent(node.config, own_name, slurm, NOW) == ""
    assert slurm.calls == []
    monkeypatch.setattr(settle, "agent_is_running", lock.agent_is_running)
    assert settle.settle_without_agent(node.config, own_name, slurm, NOW).endswith(REASON)
