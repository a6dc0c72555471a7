"""The torture's invariants, each on a made-up history that keeps it and on one that breaks it."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from tests.cluster.torture.history import Attempt, Deed, History, Watched
from tests.cluster.torture.judgement import causes, judge_admin, judge_drain, judge_job
from tests.cluster.torture.workload import Line, Plan, parse_ledger

LOST_3 = Deed(1, 110.0, "GPU lost", "gpu1", gpu=3, check=r"ais:gpu\.\w+ GPU3 ")


def watched(state: str = "COMPLETED", opted_in: bool = True, **row: Any) -> Watched:
    job = Watched(7, Plan(opted_in, nodes=2, gpus=4, steps=5), 1)
    job.see({"job_state": state, **row}, 200.0)
    return job


def attempts(*ends: Optional[float], how: str = "Requeuing JobId=7") -> list[Attempt]:
    """On gpu1 and gpu2, one after the other from second 100 on."""
    found, began = [], 100.0
    for end in ends:
        found.append(Attempt(7, ("gpu1", "gpu2"), began, end, how))
        began = (end or began) + 5
    return found


def kinds(job: Watched, history: History, ledger: list[Line], story: Optional[dict[str, Any]] = None) -> list[str]:
    history.jobs[7] = job
    return [found.kind for found in judge_job(job, history, ledger, story)]


def test_one_restart_for_one_fault() -> None:
    history = History([LOST_3], attempts=attempts(112.0, 140.0))
    assert kinds(watched(), history, []) == []


def test_two_restarts_for_one_fault_are_one_too_many() -> None:
    history = History([LOST_3], attempts=attempts(112.0, 118.0, 140.0))
    assert kinds(watched(), history, []) == ["doubled"]


def test_each_fault_explains_one_restart_whichever_is_looked_at_first() -> None:
    both = [Deed(1, 105.0, "power cut", "gpu2"), Deed(2, 130.0, "power cut", "gpu1")]
    ran = attempts(112.0, 135.0, 160.0)
    pairs, unexplained = causes(watched(), ran, both, [])
    assert [(a.began, d.node) for a, d in pairs] == [(100.0, "gpu2"), (117.0, "gpu1")]
    assert unexplained == []


def test_a_fault_of_a_gpu_that_the_job_does_not_hold_explains_nothing() -> None:
    ledger = parse_ledger(["101.0 0 start gpu[1-2]", "101.1 0 task gpu1 gpus=0,1 from=0"])
    history = History([LOST_3], attempts=attempts(112.0, 140.0))
    assert kinds(watched(), history, ledger) == ["doubled"]


def test_a_line_of_an_earlier_attempt_after_a_later_one_began() -> None:
    ledger = parse_ledger(["101.0 0 start gpu[1-2]", "120.0 1 start gpu[3-4]", "120.5 0 beat gpu1 step=9"])
    history = History([LOST_3], attempts=attempts(112.0, 140.0))
    assert kinds(watched(), history, ledger) == ["overlap"]


@pytest.mark.parametrize(
    ("state", "ledger", "story", "expected"),
    [
        ("FAILED", ["103.0 0 task gpu1 gpus= from=0", "104.0 0 fails step=3"], "no fault was found on gpu1", []),
        ("FAILED", ["103.0 0 task gpu1 gpus= from=0", "104.0 0 fails step=3"], "", ["outcome"]),
        ("FAILED", ["103.0 0 task gpu1 gpus= from=0"], "no fault was found on gpu1", ["lost"]),
        ("FAILED", ["103.0 0 start gpu1", "104.0 0 nostep srun ended with 1"], "", []),
        ("PENDING", [], "held after a failed prolog", ["lost"]),
        ("CANCELLED", [], "", ["outcome"]),
        ("RUNNING", [], "", ["lost"]),
    ],
)
def test_how_an_opted_in_job_may_end(state: str, ledger: list[str], story: str, expected: list[str]) -> None:
    history = History([], attempts=attempts(112.0))
    if state == "PENDING":
        history.deeds.append(Deed(1, 105.0, "power cut", "gpu1"))
    told = {"entries": [{"text": story}]}
    assert kinds(watched(state), history, parse_ledger(ledger), told) == expected


def test_a_job_that_did_not_opt_in_is_left_alone() -> None:
    history = History([], attempts=attempts(112.0))
    assert kinds(watched(opted_in=False, comment=""), history, []) == []
    assert kinds(watched(opted_in=False, comment="[ais: restart 1]"), history, []) == ["meddled"]
    placed = "[ais-place n=2 s=2 w=60 x=-]"
    assert kinds(watched(opted_in=False, comment="", admin_comment=placed), history, []) == []
    assert kinds(watched(opted_in=False, comment="", admin_comment=placed + " [ais: 1]"), history, []) == ["meddled"]
    assert kinds(watched(opted_in=False, comment="", admin_comment=placed, excluded_nodes="gpu1"), history, []) == [
        "meddled"
    ]


def test_drains_need_their_own_fault() -> None:
    node = {"name": "gpu1", "flags": ["DRAIN"], "reason": "ais:gpu.lost GPU3 0000:5d:00 Xid 79 [abc123]"}
    assert judge_drain(node, [LOST_3], 115.0) is None
    assert judge_drain({**node, "reason": node["reason"].replace("GPU3", "GPU1")}, [LOST_3], 115.0) is not None
    assert judge_drain({**node, "name": "gpu2"}, [LOST_3], 115.0) is not None


def test_an_administrators_drain_stays_word_for_word() -> None:
    node = {"name": "gpu1", "flags": ["DRAIN"], "reason": "fan"}
    assert judge_admin(node, "fan") is None
    assert judge_admin({**node, "reason": "ais:gpu.lost GPU3"}, "fan") is not None
    assert judge_admin({**node, "flags": []}, "fan") is not None


def test_slurmctlds_log_gives_the_attempts() -> None:
    history = History()
    lines = [
        "[2026-12-01T04:19:07.668] sched: Allocate JobId=1 NodeList=gpu[1-2] #CPUs=2 Partition=gpu",
        "[2026-12-01T04:19:10.027] Requeuing JobId=1",
        "[2026-12-01T04:19:13.695] sched/backfill: _start_job: Started JobId=1 in gpu on gpu3",
    ]
    for time, line in enumerate(lines, start=100):
        history.read_log([line], float(time))
    assert [(a.nodes, a.began, a.ended) for a in history.attempts] == [
        (("gpu1", "gpu2"), 100.0, 101.0),
        (("gpu3",), 102.0, None),
    ]


def test_a_waiting_job_tells_when_it_begins() -> None:
    assert watched("PENDING", state_reason="BeginTime", start_time=800).begins == 800.0
    assert watched("PENDING", state_reason="Resources", start_time=800).begins == 0.0
    assert watched("RUNNING", state_reason="None", start_time=800).begins == 0.0
