from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.requeue import Reach, RequeuedAttempts, held_gpus, opted_in, requeue_attempt, victims
from tests.unit.node.fake_slurm import FakeSlurm, job


def record(job_id: int = 7, resume: str = "auto", gpus: frozenset[int] = frozenset()) -> JobRecord:
    return JobRecord(job_id, 20001, 0, gpus, resume, 1000.0)


ONE_GPU, ANY_GPU, WHOLE_NODE = Reach(False, frozenset({3})), Reach(False), Reach(True)


@pytest.fixture
def done(tmp_path: Path) -> RequeuedAttempts:
    return RequeuedAttempts(tmp_path / "requeued")


@pytest.mark.parametrize(
    ("admin_comment", "expected"),
    [
        ("[ais resume=auto max=3]", True),
        ("site note [ais max=3 resume=megatron] more", True),
        ("[ais resume=auto attempt=2 act=requeue why=gpu.lost]", True),
        ("", False),
        ("[ais resume=none]", False),
        ("[ais max=3]", False),
        ("[ais]", False),
        ("resume=auto", False),
        ("[ais resume=auto", False),
        ("[ais: resume=auto]", False),
        ("[aisx resume=auto]", False),
    ],
)
def test_only_job_submits_tag_opts_in(admin_comment: str, expected: bool) -> None:
    assert opted_in(job(admin_comment=admin_comment), None) is expected


def test_a_users_own_comment_does_not_opt_in() -> None:
    assert not opted_in(job(admin_comment="", comment="[ais resume=auto]"), None)


@pytest.mark.parametrize(("seen", "expected"), [(record(), True), (record(resume=""), False), (None, False)])
def test_the_gates_record_opts_in_too(seen: Optional[JobRecord], expected: bool) -> None:
    assert opted_in(job(admin_comment=""), seen) is expected


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": "PENDING"}, "not running"),
        ({"state": "COMPLETED"}, "ended"),
        ({"flags": frozenset({"COMPLETING"})}, "already ending"),
        ({"nodes": ("gpu2",)}, "elsewhere"),
        ({"admin_comment": ""}, "did not opt in"),
        ({"requeue": False}, "--no-requeue"),
        ({"admin_comment": "[ais resume=auto max=0]"}, "--ais-max-restarts=0"),
        ({"batch": False}, "an salloc, which cannot be requeued"),
        ({"start_time": None}, "no attempt to speak of"),
    ],
)
def test_jobs_that_are_left_alone(changes: dict[str, object], why: str) -> None:
    assert victims([job(**changes)], "gpu1", {}, WHOLE_NODE) == [], why
    assert len(victims([job()], "gpu1", {}, WHOLE_NODE)) == 1


@pytest.mark.parametrize(
    ("held", "reach", "concerned"),
    [
        (frozenset({0, 1}), ONE_GPU, False),
        (frozenset({0, 3}), ONE_GPU, True),
        (frozenset({0, 1}), ANY_GPU, True),
        (frozenset({0, 1}), WHOLE_NODE, True),
        (frozenset(), ONE_GPU, False),
        (frozenset(), ANY_GPU, False),
        (frozenset(), WHOLE_NODE, True),
    ],
)
def test_a_job_beside_the_fault_goes_on(held: frozenset[int], reach: Reach, concerned: bool) -> None:
    found = victims([job()], "gpu1", {7: record(gpus=held)}, reach)
    assert bool(found) is concerned


def test_a_job_whose_gpus_are_not_known_counts_as_concerned() -> None:
    assert victims([job()], "gpu1", {}, ONE_GPU) == [job()]


@pytest.mark.parametrize(
    ("detail", "held"),
    [
        (("gpu:2(IDX:0-1)", "gpu:2(IDX:0-1)"), {0, 1}),
        (("gpu:h100:3(IDX:0,3,5)",), {0, 3, 5}),
        (("gpu:2(IDX:0-1)", "gpu:2(IDX:2-3)"), None),  # which of them is this node is not certain
        (("", ""), set()),
        (("license:1",), set()),
        (("shard:gpu:4(1/8,3/8)",), None),
        (("mps:100",), None),
        (("gpu:2",), None),
        ((), None),
    ],
)
def test_without_the_gates_record_slurm_says_which_gpus_a_job_holds(
    detail: tuple[str, ...], held: Optional[set[int]]
) -> None:
    assert held_gpus(job(gres_detail=detail), None) == held


def test_the_gates_record_comes_before_slurms_list() -> None:
    assert held_gpus(job(gres_detail=("gpu:2(IDX:0-1)",)), record(gpus=frozenset({2}))) == {2}
    assert held_gpus(job(), record()) == set()
    assert held_gpus(job(gres_detail=("shard:gpu:4",)), record()) is None


def test_the_attempt_is_requeued_after_a_look(done: RequeuedAttempts) -> None:
    slurm = FakeSlurm(job())
    assert requeue_attempt(slurm, job(), "gpu1", done)
    assert slurm.calls == ["job 7", "job 7", "requeue 7"], "the last look is right before it"


def test_an_array_task_is_requeued_and_not_the_array(done: RequeuedAttempts) -> None:
    task = job(80634, array_job_id=80520, array_task_id=114)
    slurm = FakeSlurm(task)
    assert requeue_attempt(slurm, task, "gpu1", done)
    assert slurm.made("requeue") == ["requeue 80520_114"]


def test_a_heterogeneous_job_is_requeued_through_its_first_component(done: RequeuedAttempts) -> None:
    first, second = job(10, het_job_id=10, nodes=("gpu2",)), job(11, het_job_id=10)
    slurm = FakeSlurm(first, second)
    assert requeue_attempt(slurm, second, "gpu1", done)
    assert slurm.made("requeue") == ["requeue 10"]


@pytest.mark.parametrize(
    "asked", [{"requeue": False}, {"admin_comment": "[ais resume=auto max=0]"}], ids=["--no-requeue", "max-restarts=0"]
)
def test_a_job_that_wants_no_restart_is_left_alone_by_every_caller(
    done: RequeuedAttempts, asked: dict[str, Any]
) -> None:
    slurm = FakeSlurm(job(**asked))
    assert not requeue_attempt(slurm, job(), "gpu1", done)
    assert slurm.made("requeue") == []
    assert (7, job().start_time) in done, "and not looked at again"


def test_never_twice_for_one_attempt_also_after_a_restart(done: RequeuedAttempts) -> None:
    slurm = FakeSlurm(job())
    assert requeue_attempt(slurm, job(), "gpu1", done)
    slurm.by_id[7] = job()  # the controller lags and still shows the attempt
    again = RequeuedAttempts(done.path)
    assert not requeue_attempt(slurm, job(), "gpu1", done)
    assert not requeue_attempt(slurm, job(), "gpu1", again)
    assert len(slurm.made("requeue")) == 1


def test_the_next_attempt_on_this_node_is_another_one(done: RequeuedAttempts) -> None:
    slurm = FakeSlurm(job())
    requeue_attempt(slurm, job(), "gpu1", done)
    later = job(start_time=2000)
    slurm.by_id[7] = later
    assert requeue_attempt(slurm, later, "gpu1", done)


@pytest.mark.parametrize(
    "now",
    [
        job(start_time=1100),
        job(state="PENDING"),
        job(flags=frozenset({"COMPLETING"})),
        job(nodes=("gpu2", "gpu3")),
        job(requeue=False),
        None,
    ],
    ids=["next attempt", "pending", "completing", "moved", "no-requeue", "gone"],
)
def test_what_changed_since_is_left_alone(done: RequeuedAttempts, now: object) -> None:
    slurm = FakeSlurm(*([now] if now is not None else []))  # type: ignore[list-item]
    assert not requeue_attempt(slurm, job(), "gpu1", done)
    assert slurm.made("requeue") == []


def test_a_look_that_took_too_long_is_not_acted_on(done: RequeuedAttempts) -> None:
    """Between a slow look and the request the job may have begun its next attempt, which a late requeue would hit."""
    clock = iter([0.0, 5.0, 10.0, 10.5])
    slurm = FakeSlurm(job())
    assert not requeue_attempt(slurm, job(), "gpu1", done, lambda: next(clock))
    assert slurm.made("requeue") == []
    assert requeue_attempt(slurm, job(), "gpu1", done, lambda: next(clock))


def test_what_began_anew_while_the_note_was_left_is_not_hit(done: RequeuedAttempts) -> None:
    slurm = FakeSlurm(job())

    def next_attempt(call: str) -> None:
        if call.startswith("update"):
            slurm.by_id[7] = replace(slurm.by_id[7], start_time=2000)

    slurm.hook = next_attempt
    assert not requeue_attempt(slurm, job(), "gpu1", done, note="gpu.lost")
    assert slurm.made("requeue") == []
    assert (7, 1000) not in done


def test_a_note_that_cannot_be_left_does_not_keep_the_job(done: RequeuedAttempts) -> None:
    slurm = FakeSlurm(job())

    def refuse(call: str) -> None:
        if call.startswith("update"):
            raise SlurmRefused("Access/permission denied")

    slurm.hook = refuse
    assert requeue_attempt(slurm, job(), "gpu1", done, note="gpu.lost")


def test_an_unanswered_request_may_be_made_again_and_looks_first(done: RequeuedAttempts) -> None:
    slurm = FakeSlurm(job())

    def silent(call: str) -> None:
        slurm.down = call.startswith("requeue")

    slurm.hook = silent
    with pytest.raises(SlurmUnavailable):
        requeue_attempt(slurm, job(), "gpu1", done)
    slurm.hook, slurm.down = None, False
    slurm.next_attempt(7)  # it was taken after all, and the job runs again
    assert not requeue_attempt(slurm, job(), "gpu1", done)
    assert len(slurm.made("requeue")) == 1


def test_a_refused_requeue_is_not_repeated(done: RequeuedAttempts) -> None:
    slurm = FakeSlurm(job())

    def refuse(call: str) -> None:
        if call.startswith("requeue"):
            raise SlurmRefused("Requested operation is presently disabled")

    slurm.hook = refuse
    assert not requeue_attempt(slurm, job(), "gpu1", done)
    assert not requeue_attempt(slurm, job(), "gpu1", done)
    assert len(slurm.made("requeue")) == 1


def test_without_a_memory_nothing_is_sent(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file where the folder should be")
    done = RequeuedAttempts(tmp_path / "folder/requeued")
    slurm = FakeSlurm(job())
    with pytest.raises(OSError):
        requeue_attempt(slurm, job(), "gpu1", done)
    assert slurm.made("requeue") == []


def test_a_damaged_memory_keeps_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "requeued"
    path.write_bytes(b"7 1000\n\xff\xfe\n8\n9 x\n10 1100\n11 1")
    done = RequeuedAttempts(path)
    assert [(i, s) in done for i, s in ((7, 1000), (10, 1100), (9, 0))] == [True, True, False]


def test_the_memory_stays_small(tmp_path: Path) -> None:
    done = RequeuedAttempts(tmp_path / "requeued")
    for number in range(600):
        done.add((number, 1000))
    assert len((tmp_path / "requeued").read_text().splitlines()) == 500
    assert (599, 1000) in done
    assert replace(job(), job_id=0).job_id == 0
