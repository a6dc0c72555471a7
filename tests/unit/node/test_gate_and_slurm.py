"""The gate's failing path and the controller."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aistation_slurm.detectors import gpu as gpu_detector
from aistation_slurm.findings import Status
from aistation_slurm.node import acted, history, refusals, state
from aistation_slurm.probes.nvml import NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu
from aistation_slurm.slurm import tags
from tests.cluster.faults import gpu_lost, xid
from tests.unit.node.prolog_run import drained_with, gate, update
from tests.unit.node.sim import SimNode


def shown(node_state: str, reason: str, comment: str) -> str:
    """``scontrol show node`` of one node, shortened."""
    lines = [f"NodeName=gpu1 Arch=x86_64 \n   State={node_state} ThreadsPerCore=1 ", "   Partitions=gpu "]
    lines += [f"   Reason={reason} [bob@2026-12-01T04:16:07]"] if reason else []
    return "\n".join([*lines, f"   Comment={comment}", "", ""])


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    made = SimNode(tmp_path)
    made.scontrol()
    return made


@pytest.mark.parametrize("node_state", ["MIXED+DRAIN", "ALLOCATED+DRAIN*"])
def test_another_ones_drain_is_not_touched_and_names_the_refused_job(node: SimNode, node_state: str) -> None:
    node.scontrol(shown=shown(node_state, "memory test", "rack 12"))
    node.write_state(node.finding("gpu.xid", 1))
    begin = int(time.time())
    assert gate(node).returncode == 1
    fields = update(node)
    assert set(fields) == {"Comment"}
    ((job_id, at),) = tags.refusals_of(fields["Comment"])
    assert (job_id, fields["Comment"].partition(" [")[0]) == (42, "rack 12")
    assert begin <= at <= time.time()
    assert acted.read(str(node.run)) == frozenset(), "whoever gives it back was told nothing of the GPU"


def test_one_update_drains_and_names_the_job(node: SimNode) -> None:
    comment = "rack 'q' = 2 State=IDLE [ais refused=7@1000] of bob"
    node.scontrol(shown=shown("MIXED", "", comment.replace("'", "'\\''")))
    node.write_state(node.finding("gpu.xid", 1))
    assert gate(node).returncode == 1
    fields = update(node)
    assert fields["Reason"].startswith("ais:gpu.xid GPU1 ")
    (first, second) = tags.refusals_of(fields["Comment"])
    assert (first, second[0]) == ((7, 1000), 42)
    assert fields["Comment"] == comment.replace("7@1000", f"7@1000,42@{second[1]}")
    assert len(node.calls()) == 2


@pytest.mark.parametrize(("byte", "added"), [("12", {"Comment"}), (r"\377", set())])
def test_a_comment_that_could_not_be_written_back_as_it_was_is_left_alone(
    node: SimNode, byte: str, added: set[str]
) -> None:
    """Slurm prints bytes that are no UTF-8; the drain must not wait for them."""
    node.scontrol(shown="", show=rf"printf 'NodeName=gpu1\n   State=MIXED \n   Comment=rack {byte}\n'")
    node.write_state(node.finding("gpu.xid", 1))
    assert gate(node).returncode == 1
    assert set(update(node)) == {"State", "Reason"} | added


def test_a_refusal_leaves_a_closed_record_on_the_node(node: SimNode) -> None:
    finding = node.finding("gpu.xid", 1)
    node.write_state(finding)
    assert gate(node).returncode == 1
    (kept,) = refusals.read_all(str(node.run), state.boot_id())
    assert (kept.job_id, kept.check, kept.subject, kept.progress) == (42, "gpu.xid", finding.subject, refusals.CLOSED)
    assert kept.reason == drained_with(node)
    assert (node.run / "refusals").stat().st_mode & 0o777 == 0o700
    assert (node.run / "refusals/42").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "broken", [{"show": "exit 1"}, {"update": "exit 1"}, {"update": "exec sleep 600"}, {"show": "exec sleep 600"}]
)
def test_what_slurm_was_not_told_stays_open(node: SimNode, broken: dict[str, str]) -> None:
    node.scontrol(**broken)
    node.write_state(node.finding("gpu.xid", 1))
    assert gate(node).returncode == 1
    (kept,) = refusals.read_all(str(node.run), state.boot_id())
    assert (kept.job_id, kept.progress) == (42, refusals.OPEN)
    assert kept.reason.startswith("ais:gpu.xid GPU1 ")
    assert acted.read(str(node.run)) == frozenset()


def test_a_job_that_passes_leaves_no_record(node: SimNode) -> None:
    node.write_state()
    assert gate(node).returncode == 0
    assert not (node.run / "refusals").exists()


def test_a_drain_by_the_gate_is_noted_so_that_nobody_argues_with_who_gives_the_node_back(node: SimNode) -> None:
    finding = node.finding("gpu.xid", 1)
    node.write_state(finding)
    assert gate(node).returncode == 1
    assert acted.read(str(node.run)) == {(finding.check, finding.subject)}
    # given back: the fault that the kernel log still tells of refuses no job any more
    assert gate(node, SLURM_JOB_ID="43").returncode == 0
    assert len([c for c in node.calls() if "<update>" in c]) == 1


def test_records_that_cannot_be_written_let_no_job_start(node: SimNode) -> None:
    node.write_state(node.finding("gpu.lost", 1))
    (node.run / "refusals").write_text("in the way")
    (node.run / "acted").mkdir()
    assert gate(node).returncode == 1
    assert drained_with(node).startswith("ais:gpu.lost GPU1 ")


def test_a_controller_that_does_not_answer_costs_the_budget_at_most(node: SimNode) -> None:
    """Without a look, nothing is written over; Slurm itself drains for the exit code."""
    node.scontrol(show="exec sleep 600")
    node.write_state(node.finding("gpu.xid", 1))
    begin = time.monotonic()
    assert gate(node).returncode == 1
    assert time.monotonic() - begin < 30
    assert not any("<update>" in c for c in node.calls())


@pytest.mark.parametrize("answer", ["exit 1", "exec sleep 600"])
def test_the_job_is_refused_also_when_the_reason_cannot_be_set(node: SimNode, answer: str) -> None:
    node.scontrol(update=answer)
    node.write_state(node.finding("gpu.xid", 1))
    begin = time.monotonic()
    assert gate(node).returncode == 1
    assert time.monotonic() - begin < 30


def test_no_scontrol_at_all(node: SimNode) -> None:
    (node.bin / "scontrol").unlink()
    node.write_state(node.finding("gpu.xid", 1))
    ran = gate(node)
    assert ran.returncode == 1
    assert "cannot start" in ran.stderr


def test_a_node_given_back_after_an_xid_is_not_drained_for_it_again(node: SimNode) -> None:
    """The kernel log keeps the Xid, also after the GPU was reset and an administrator resumed the node."""
    finding = node.finding("gpu.xid", 1)
    node.write_state(finding)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    ran = gate(node)
    assert ran.returncode == 0
    assert "gave it back" in ran.stderr
    assert not any("<update>" in c for c in node.calls())


def test_a_lost_gpu_is_refused_also_after_somebody_gave_the_node_back(node: SimNode) -> None:
    node.inject(gpu_lost(1))
    finding = node.finding("gpu.lost", 1)
    node.write_state(finding)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    assert gate(node).returncode == 1


def test_a_lost_gpu_that_only_the_log_tells_of_is_not_drained_for_again(node: SimNode) -> None:
    """Xid 79 stays in the kernel log after the GPU was reset; the bus and the driver show it well."""
    node.inject(xid(1, 79))
    events = history.events(node.config)
    facts = gpu_detector.GpuFacts(NvmlSnapshot(), [PciGpu(node.hardware.gpu(1).pci, True, 1)], events, whole_node=False)
    finding = next(f for f in gpu_detector.findings(facts) if f.check == "gpu.lost")
    assert finding.status is Status.FAIL
    node.write_state(finding)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    ran = gate(node)
    assert ran.returncode == 0
    assert "gave it back" in ran.stderr


def test_a_fault_that_was_dealt_with_hides_no_other_one(node: SimNode) -> None:
    node.inject(gpu_lost(1))
    old = node.finding("gpu.xid", 0)
    node.write_state(old)
    acted.write(str(node.run), [(old.check, old.subject)])
    assert gate(node).returncode == 1
    assert "<Reason=ais:gpu.lost GPU1 " in node.calls()[-1]


def test_in_doubt_a_fault_that_was_dealt_with_does_not_refuse(node: SimNode) -> None:
    """The controller does not say whether the node was given back: exit 1 would drain it all the same."""
    node.scontrol(show="exit 1")
    finding = node.finding("gpu.xid", 1)
    node.write_state(finding)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    assert gate(node).returncode == 0


def test_the_reason_is_set_also_where_no_lock_can_be_made(node: SimNode) -> None:
    node.write_state(node.finding("gpu.lost", 1))
    (node.run / "drain.lock").mkdir()
    assert gate(node).returncode == 1
    assert "<Reason=ais:gpu.lost GPU1 " in node.calls()[-1]


def test_a_lost_gpu_refuses_also_where_no_state_can_be_written(node: SimNode) -> None:
    """/run is full or read-only and there is no state: the check in place answers the gate itself."""
    node.run.write_text("a file where the folder should be", encoding="ascii")
    assert gate(node).returncode == 0
    node.inject(gpu_lost(1))
    ran = gate(node)
    assert ran.returncode == 1, ran.stderr
    assert drained_with(node).startswith("ais:gpu.lost GPU1 ")
