"""Whose fault: tables of what Slurm shows -> cause and bad nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from aistation_slurm.recovery.attribution import Attempt, Cause, attribute
from aistation_slurm.slurm.client import Job, Node

START, END = 10_000, 20_000
OURS = "ais:gpu.lost GPU3 0000:8f:00 fell off the bus [abc123]"
RUN = Attempt(7, START, ("gpu1", "gpu2"))
OVER = replace(RUN, ended=float(END), settled=float(END))
LINGERS = replace(OVER, settled=None)


def job(state: str, **fields: Any) -> Job:
    return replace(Job(job_id=7, state=state, priority=100), **fields)


def drained(reason: str = OURS, at: Optional[int] = START + 50, **fields: Any) -> Node:
    return Node("gpu2", "IDLE", frozenset({"DRAIN"}), reason=reason, reason_time=at, boot_time=1, **fields)


def down(at: Optional[int]) -> Node:
    return Node("gpu2", "DOWN", frozenset({"NOT_RESPONDING"}), reason="Not responding", reason_time=at, boot_time=1)


FINE = Node("gpu2", "IDLE", boot_time=1)
COMPLETING = frozenset({"COMPLETING"})
FAILED = {"state": "FAILED"}
FAILING = {"state": "FAILED", "flags": COMPLETING}
REQUEUED = {"state": "PENDING", "reason": "BeginTime"}
ENDING = {"state": "UNKNOWN", "flags": frozenset({"COMPLETING"})}
HELD = {"state": "PENDING", "priority": 0, "reason": "launch failed requeued held"}

CASES: list[tuple[str, dict[str, Any], Attempt, Node, Cause]] = [
    ("our drain in the attempt", REQUEUED, OVER, drained(), Cause.INFRASTRUCTURE),
    ("our drain right before the start, by the gate", REQUEUED, OVER, drained(at=START - 8), Cause.INFRASTRUCTURE),
    ("our drain long before the start", REQUEUED, OVER, drained(at=START - 60), Cause.REQUEUED),
    ("our drain right after the end", REQUEUED, OVER, drained(at=END + 45), Cause.INFRASTRUCTURE),
    ("our drain long after the end", REQUEUED, OVER, drained(at=END + 100), Cause.REQUEUED),
    ("our drain, no time printed", REQUEUED, OVER, drained(at=None), Cause.INFRASTRUCTURE),
    ("our reason on a node that was given back", REQUEUED, OVER, replace(drained(), flags=frozenset()), Cause.REQUEUED),
    ("someone's drain", REQUEUED, OVER, drained("memory test"), Cause.REQUEUED),
    ("someone's drain that quotes ours", REQUEUED, OVER, drained(f"see {OURS}"), Cause.REQUEUED),
    ("Slurm's own drain", REQUEUED, OVER, drained("Kill task failed"), Cause.REQUEUED),
    ("node down in the attempt", REQUEUED, OVER, down(END - 1), Cause.INFRASTRUCTURE),
    ("node down long after the end", REQUEUED, OVER, down(END + 900), Cause.REQUEUED),
    ("node down, no time, attempt over", REQUEUED, OVER, down(None), Cause.REQUEUED),
    ("node silent but not yet down", {"state": "RUNNING"}, RUN, replace(FINE, flags=frozenset({"NOT_RESPONDING"})), Cause.NONE),
    ("node rebooted in the attempt", REQUEUED, OVER, replace(FINE, boot_time=START + 100), Cause.INFRASTRUCTURE),
    ("node rebooted after the end", REQUEUED, OVER, replace(FINE, boot_time=END + 100), Cause.REQUEUED),
    ("rebooted, Slurm still waits for it", FAILING, LINGERS, replace(FINE, boot_time=END + 100), Cause.INFRASTRUCTURE),
    ("the same, settled", FAILED, replace(OVER, settled=END + 120.0), replace(FINE, boot_time=END + 100), Cause.INFRASTRUCTURE),
    ("down after Slurm waited for long", FAILED, replace(OVER, settled=END + 301.0), down(END + 300), Cause.INFRASTRUCTURE),
    ("node booted right before the start", REQUEUED, OVER, replace(FINE, boot_time=START + 5), Cause.REQUEUED),
    ("nothing wrong", {"state": "RUNNING"}, RUN, FINE, Cause.NONE),
    ("ending, base state hidden as in 22.05", ENDING, OVER, drained(), Cause.INFRASTRUCTURE),
    ("held after a failed prolog, our drain", HELD, OVER, drained(), Cause.INFRASTRUCTURE),
    ("held after a failed prolog, someone's drain", HELD, OVER, drained("Prolog error"), Cause.LAUNCH_FAILED),
    ("failed, nothing found", {"state": "FAILED", "exit_code": 1}, OVER, FINE, Cause.USER),
    ("failed by a signal, nothing found", {"state": "FAILED", "exit_signal": 11}, OVER, FINE, Cause.USER),
    ("failed, our drain", {"state": "FAILED", "exit_code": 1}, OVER, drained(), Cause.INFRASTRUCTURE),
    ("NODE_FAIL and the node is back", {"state": "NODE_FAIL"}, OVER, FINE, Cause.INFRASTRUCTURE),
    ("completed on a node that is drained", {"state": "COMPLETED"}, OVER, drained(), Cause.FINISHED),
    ("cancelled on a node that is drained", {"state": "CANCELLED"}, OVER, drained(), Cause.CANCELLED),
    ("time limit", {"state": "TIMEOUT"}, OVER, drained(), Cause.TIMEOUT),
    ("preempted", {"state": "PREEMPTED"}, OVER, FINE, Cause.PREEMPTED),
    ("out of memory", {"state": "OUT_OF_MEMORY"}, OVER, drained(), Cause.OUT_OF_MEMORY),
    ("text that could be forged", {"state": "UNKNOWN"}, OVER, drained(), Cause.UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "attempt", "node", "cause"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_cause(fields: dict[str, Any], attempt: Attempt, node: Node, cause: Cause) -> None:
    verdict = attribute(job(**fields), attempt, {"gpu1": Node("gpu1", "IDLE", boot_time=1), "gpu2": node})
    assert verdict.cause is cause
    named = bool(verdict.bad)
    assert named == (cause is Cause.INFRASTRUCTURE and fields["state"] != "NODE_FAIL")
    assert set(verdict.bad) <= {"gpu2"}
    assert verdict.text


def test_a_node_that_slurm_no_longer_has_is_not_bad() -> None:
    assert attribute(job("RUNNING"), RUN, {}).cause is Cause.NONE


def test_a_running_jobs_neighbour() -> None:
    nodes = {"gpu2": drained()}
    shares = replace(RUN, gres=("gpu:8(IDX:0-7)", "gpu:2(IDX:0-1)"))
    assert attribute(job("RUNNING"), shares, nodes).cause is Cause.NONE
    owns = replace(RUN, gres=("gpu:8(IDX:0-7)", "gpu:2(IDX:2-3)"))
    assert attribute(job("RUNNING"), owns, nodes).cause is Cause.INFRASTRUCTURE
    not_known = replace(RUN, gres=())
    assert attribute(job("RUNNING"), not_known, nodes).cause is Cause.INFRASTRUCTURE
    whole_node = {"gpu2": drained("ais:gpu.driver_hang node nvmlInit blocked for 31 s [abc123]")}
    assert attribute(job("RUNNING"), shares, whole_node).cause is Cause.INFRASTRUCTURE
    assert attribute(job("PENDING"), replace(shares, ended=float(END)), nodes).cause is Cause.INFRASTRUCTURE


def test_an_attempt_known_by_its_end_alone() -> None:
    """Its start is not known, so the drain may be older than the usual slack."""
    unseen = Attempt(7, END, ("gpu2",), ended=float(END), seen=False)
    assert attribute(job("PENDING"), unseen, {"gpu2": drained(at=END - 40)}).cause is Cause.INFRASTRUCTURE
    assert attribute(job("PENDING"), unseen, {"gpu2": replace(FINE, boot_time=END - 5)}).cause is Cause.REQUEUED


def test_what_the_agent_noted_counts_for_that_attempt_only() -> None:
    nodes = {"gpu2": drained("memory test")}
    noted = job("PENDING", admin_comment=f"[ais resume=auto fault=gpu.lost@gpu2@{START}]")
    verdict = attribute(noted, OVER, nodes)
    assert (verdict.cause, list(verdict.bad)) == (Cause.INFRASTRUCTURE, ["gpu2"])
    assert attribute(noted, replace(OVER, start_time=START + 1), nodes).cause is Cause.REQUEUED
    elsewhere = job("PENDING", admin_comment=f"[ais resume=auto fault=gpu.lost@gpu9@{START}]")
    assert attribute(elsewhere, OVER, nodes).cause is Cause.REQUEUED
    unseen = Attempt(7, END, ("gpu2",), ended=float(END), seen=False)
    assert attribute(noted, unseen, nodes).cause is Cause.INFRASTRUCTURE
    later = job("PENDING", admin_comment=f"[ais resume=auto fault=gpu.lost@gpu2@{END + 9}]")
    assert attribute(later, unseen, nodes).cause is Cause.REQUEUED


def test_the_text_is_for_people() -> None:
    nodes = {"gpu2": drained()}
    assert attribute(job("PENDING"), OVER, nodes).text == f"gpu2: {OURS}"
    many = replace(OVER, nodes=tuple(f"gpu{i}" for i in range(9)))
    assert attribute(job("FAILED", exit_code=3), many, {}).text == (
        "the job failed with exit code 3, and no fault was found on gpu0, gpu1, gpu2, gpu3 ..."
    )
