"""What to do: tables of job, verdict and limits -> one step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from aistation_slurm.recovery.attribution import Attempt, Cause, Verdict
from aistation_slurm.recovery.past import Past
from aistation_slurm.recovery.policy import Limits, StepKind, decide, excluded
from aistation_slurm.slurm.client import Job, Node
from tests.unit.public_cases import case

NOW = 20_000.0
OURS = "ais:gpu.lost GPU3 0000:8f:00 fell off the bus [abc123]"
ATTEMPT = Attempt(7, 10_000, ("gpu1", "gpu2"), ended=NOW - 10)
LIMITS = Limits(max_own=3, start_gap_s=2.0)
FULL = replace(LIMITS, past=Past(restarts=100, by_cause={"infrastructure": 100}))
FAULT = Verdict(Cause.INFRASTRUCTURE, {"gpu2": OURS}, f"gpu2: {OURS}")
DEAD = Verdict(Cause.INFRASTRUCTURE, {"gpu2": "node is DOWN: Not responding"}, "gpu2: node is DOWN: Not responding")
NODES = {f"gpu{i}": Node(f"gpu{i}", "IDLE", partitions=("gpu",)) for i in range(1, 5)}
NODES["gpu2"] = Node("gpu2", "IDLE", frozenset({"DRAIN"}), reason=OURS, reason_time=int(NOW) - 60, partitions=("gpu",))
COMPLETING = frozenset({"COMPLETING"})


def job(state: str = "PENDING", **fields: Any) -> Job:
    base = Job(job_id=7, state=state, priority=100, node_count=2, partition="gpu", eligible_time=int(NOW) + 111)
    return replace(base, **fields)


EXCEEDED = "launch failure limit exceeded requeued held"
HELD = {"priority": 0, "reason": "launch_failed_requeued_held"}

CASES: list[tuple[str, Job, Verdict, Limits, Optional[float], StepKind]] = [
    ("start after the gap", job(), FAULT, LIMITS, NOW - 2, StepKind.START),
    ("not before the gap", job(), FAULT, LIMITS, NOW - 1.5, StepKind.WAIT),
    ("not before it was seen calm", job(), FAULT, LIMITS, None, StepKind.WAIT),
    ("not while it completes", job(flags=COMPLETING), FAULT, LIMITS, NOW - 9, StepKind.WAIT),
    ("not while it completes, 22.05", job("UNKNOWN", flags=COMPLETING), FAULT, LIMITS, None, StepKind.WAIT),
    ("no fault", job(), Verdict(Cause.REQUEUED, {}, "x"), LIMITS, NOW - 9, StepKind.NOTHING),
    ("release a failed launch of ours", job(**HELD), FAULT, LIMITS, NOW - 2, StepKind.RELEASE),
    ("with blanks in the reason", job(priority=0, reason="launch failed requeued held"), FAULT, LIMITS, NOW - 2, StepKind.RELEASE),
    ("a failed launch and a dead node is no proof", job(**HELD), DEAD, LIMITS, NOW - 9, StepKind.NOTHING),
    ("the user's hold", job(priority=0, reason="JobHeldUser"), FAULT, LIMITS, NOW - 9, StepKind.NOTHING),
    ("an administrator's hold", job(priority=0, reason="JobHeldAdmin"), FAULT, LIMITS, NOW - 9, StepKind.NOTHING),
    ("122: held for max requeue", job(priority=0, reason="JobHoldMaxRequeue"), FAULT, LIMITS, NOW - 9, StepKind.NOTHING),
    ("launch failure limit", job(priority=0, reason=EXCEEDED), FAULT, LIMITS, NOW - 9, StepKind.NOTHING),
    ("at the limit", job(), FAULT, FULL, NOW - 9, StepKind.HOLD),
    ("held launch at the limit", job(**HELD), FAULT, FULL, NOW - 9, StepKind.ANNOTATE),
    ("dead node, back in the queue", job(), DEAD, LIMITS, NOW - 9, StepKind.START),
    ("running on our drain", job("RUNNING"), FAULT, LIMITS, None, StepKind.REQUEUE),
    ("running on a dead node is Slurm's", job("RUNNING"), DEAD, LIMITS, None, StepKind.NOTHING),
    ("running at the limit", job("RUNNING"), FAULT, FULL, None, StepKind.NOTHING),
    ("running, the agent first", job("RUNNING"), FAULT, replace(LIMITS, agent_grace_s=100), None, StepKind.WAIT),
    ("suspended on our drain", job("SUSPENDED"), FAULT, LIMITS, None, StepKind.REQUEUE),
    ("failed with a fault", job("FAILED"), FAULT, LIMITS, None, StepKind.REQUEUE),
    ("failed with a fault, epilog runs", job("FAILED", flags=COMPLETING), FAULT, LIMITS, None, StepKind.WAIT),
    ("failed with a fault at the limit", job("FAILED"), FAULT, FULL, None, StepKind.ANNOTATE),
    ("NODE_FAIL", job("NODE_FAIL"), DEAD, LIMITS, None, StepKind.REQUEUE),
    ("--no-requeue", job("FAILED", requeue=False), FAULT, LIMITS, None, StepKind.NOTHING),
    ("srun or salloc", job("FAILED", batch=False), FAULT, LIMITS, None, StepKind.NOTHING),
    ("completed", job("COMPLETED"), Verdict(Cause.FINISHED, {}, "x"), LIMITS, None, StepKind.NOTHING),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "verdict", "limits", "calm", "kind"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_step(seen: Job, verdict: Verdict, limits: Limits, calm: Optional[float], kind: StepKind) -> None:
    step = decide(seen, ATTEMPT, verdict, limits, NOW, NODES, calm)
    assert step.kind is kind
    assert step.why
    assert (step.exclude == ("gpu2",)) == (kind in (StepKind.START, StepKind.RELEASE))
    assert kind is not StepKind.WAIT or (step.again_s is not None and step.again_s > 0)


def test_a_drain_with_which_the_job_can_go_on_does_not_push() -> None:
    slow = "ais:gpu.pcie GPU3 0000:8f:00 PCIe x8, the slot can x16 [abc123]"
    nodes = {**NODES, "gpu2": replace(NODES["gpu2"], reason=slow)}
    step = decide(
        job("RUNNING"), ATTEMPT, Verdict(Cause.INFRASTRUCTURE, {"gpu2": slow}, slow), LIMITS, NOW, nodes, None
    )
    assert (step.kind, "left to Slurm" in step.why) == (StepKind.NOTHING, True)


def test_a_silent_nodes_gpu_drain_does_not_push() -> None:
    """slurmd may be dead while the processes live: an early restart would give two writers in one directory."""
    silent = {**NODES, "gpu2": replace(NODES["gpu2"], flags=frozenset({"DRAIN", "NOT_RESPONDING"}))}
    step = decide(job("RUNNING"), ATTEMPT, FAULT, LIMITS, NOW, silent, None)
    assert (step.kind, "Slurm decides" in step.why) == (StepKind.NOTHING, True)


@pytest.mark.parametrize(
    ("verdict", "state", "ended", "final"),
    [
        (Verdict(Cause.FINISHED, {}, "x"), "COMPLETED", NOW, True),
        (Verdict(Cause.CANCELLED, {}, "x"), "CANCELLED", NOW, True),
        (Verdict(Cause.USER, {}, "x"), "FAILED", NOW - 30, False),
        (Verdict(Cause.USER, {}, "x"), "FAILED", NOW - 61, True),
        (Verdict(Cause.REQUEUED, {}, "x"), "PENDING", NOW - 900, False),
    ],
)
def test_when_an_attempt_is_settled(verdict: Verdict, state: str, ended: float, final: bool) -> None:
    step = decide(job(state), replace(ATTEMPT, ended=ended), verdict, LIMITS, NOW, NODES, None)
    assert (step.kind, step.final) == (StepKind.NOTHING, final)


def test_a_failure_without_a_known_fault_is_looked_at_again_soon_then_seldom() -> None:
    """The rank died first, and the node's agent judges only now."""
    verdict = Verdict(Cause.USER, {}, "x")
    waits = []
    for waited in (0, 10, 40):
        step = decide(job("FAILED"), replace(ATTEMPT, ended=NOW - waited), verdict, LIMITS, NOW, NODES, None)
        assert (step.kind, step.final) == (StepKind.NOTHING, False)
        waits.append(step.again_s)
    assert waits == [0.5, 5.0, 20.0]
    over = decide(job("FAILED"), replace(ATTEMPT, ended=NOW - 61), verdict, LIMITS, NOW, NODES, None)
    assert (over.final, over.again_s) == (True, None)


@pytest.mark.parametrize(("ahead_s", "start_now"), [(121, True), (600, True), (901, False), (86400, False)])
def test_someones_begin_time_is_kept(ahead_s: int, start_now: bool) -> None:
    step = decide(job(eligible_time=int(NOW) - 10 + ahead_s), ATTEMPT, FAULT, LIMITS, NOW, NODES, NOW - 9)
    assert (step.kind, step.start_now) == (StepKind.START, start_now)


def test_a_node_that_does_not_let_go_is_looked_at_seldom() -> None:
    ending = job(flags=COMPLETING)
    waits = []
    for waited in (0, 30, 120, 600, 86400):
        step = decide(ending, replace(ATTEMPT, ended=NOW - waited), FAULT, LIMITS, NOW, NODES, None)
        waits.append(step.again_s)
    assert waits == [0.3, 0.5, 2.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("fields", "bad", "expected", "said"),
    [
        ({}, ["gpu2"], ("gpu2",), ""),
        ({"excluded_nodes": ("gpu4",)}, ["gpu2"], ("gpu2", "gpu4"), ""),
        ({"excluded_nodes": ("gone",)}, ["gpu2"], ("gpu2",), ""),
        ({}, ["gone"], (), ""),
        ({"node_count": 3}, ["gpu2"], ("gpu2",), ""),
        ({"node_count": 4}, ["gpu2"], (), "needs 4 nodes and 3 would be left"),
        (
            {"node_count": 2, "excluded_nodes": ("gpu1", "gpu3")},
            ["gpu2"],
            ("gpu1", "gpu3"),
            "needs 2 nodes and 1 would",
        ),
        ({"required_nodes": ("gpu1", "gpu2")}, ["gpu2"], (), "asked for it by name"),
        ({"partition": "other"}, ["gpu2"], (), "0 would be left"),
        ({"partition": "other,gpu"}, ["gpu2"], ("gpu2",), ""),
    ],
)
def test_exclusions(fields: dict[str, Any], bad: list[str], expected: tuple[str, ...], said: str) -> None:
    verdict = Verdict(Cause.INFRASTRUCTURE, dict.fromkeys(bad, OURS), "x")
    names, notes = excluded(job(**fields), verdict, NODES)
    assert names == expected
    assert said in " ".join(notes)
    assert bool(notes) == bool(said)


def test_122_a_broken_node_that_takes_the_job_again_and_again() -> None:
    known = case("122")["expected"]["watchdog"]
    blamed = Verdict(Cause.INFRASTRUCTURE, {known["blames"]: OURS}, f"{known['blames']}: {OURS}")
    held = job(priority=0, reason="JobHoldMaxRequeue", restart_cnt=5)
    step = decide(held, ATTEMPT, blamed, LIMITS, NOW, NODES, NOW - 9)
    assert (step.kind is StepKind.RELEASE) is known["releases"]
    assert step.kind is StepKind.NOTHING
    # back-off: a restart is never sooner than the start gap, and at most max_restarts of them
    soon = decide(job(), ATTEMPT, blamed, LIMITS, NOW, NODES, NOW - 0.3)
    assert (soon.kind is StepKind.WAIT) is known["requires_backoff"]
    full = decide(job(), ATTEMPT, blamed, FULL, NOW, NODES, NOW - 9)
    assert (full.kind is StepKind.HOLD) is known["max_restarts_respected"]
