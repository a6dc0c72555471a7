"""A restarted job in front of a full queue: when, with which nodes and Nice, and how it is undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from aistation_slurm.config import Front
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.recovery import front
from aistation_slurm.recovery.front import FrontPlan, leftovers, plan_front, undo_due
from aistation_slurm.slurm.client import Job, Node, Reservation
from tests.unit.recovery.recorder import Recorder

NOW = 20_000.0
CONFIG = Front(keep_nodes_s=300, most=2)
TAG = "[ais resume=auto max=3]"
IN_FRONT = "[ais resume=auto max=3 nice=0:-1100@20300]"
RESERVED = frozenset({"RESERVED"})
FLAGS = frozenset({"FLEX", "PURGE_COMP=00:01:00"})


def job(job_id: int = 7, state: str = "PENDING", **fields: Any) -> Job:
    base = Job(job_id, state, priority=900, node_count=2, partition="gpu", admin_comment=TAG, user_name="alice")
    return replace(base, **fields)


def nodes(**changes: dict[str, Any]) -> dict[str, Node]:
    """gpu1 and gpu2 were the job's, gpu2 is drained; gpu3 to gpu5 are busy."""
    found = {f"gpu{i}": Node(f"gpu{i}", "IDLE" if i < 3 else "ALLOCATED", partitions=("gpu",)) for i in range(1, 6)}
    found["gpu2"] = replace(found["gpu2"], flags=frozenset({"DRAIN"}))
    return {name: replace(node, **changes.get(name, {})) for name, node in found.items()}


RIVAL = job(20, priority=1000, admin_comment="")
ALL = Front(keep_nodes_s=300, most=2, share=1.0)
BUSY3, BUSY4, BUSY5 = (
    job(40 + i, state="RUNNING", nodes=(f"gpu{i}",), end_time=int(NOW) + 100 - 10 * i, admin_comment="")
    for i in (3, 4, 5)
)
ANOTHER = job(30, admin_comment=IN_FRONT)
NEIGHBOUR = job(31, state="RUNNING", nodes=("gpu1",), start_time=int(NOW) - 500, admin_comment="")


def plan(
    waiting: Job,
    rivals: tuple[Job, ...] = (RIVAL,),
    config: Front = CONFIG,
    spares: int = 0,
    gres: tuple[str, ...] = (),
    ended: Optional[float] = None,
    **changes: dict[str, Any],
) -> Optional[FrontPlan]:
    everyone = [waiting, *rivals]
    return plan_front(waiting, ("gpu1", "gpu2"), ["gpu2"], nodes(**changes), everyone, config, NOW, spares, gres, ended)


# ---- whether

NOT: list[tuple[str, Job, dict[str, Any]]] = [
    ("turned off", job(), {"config": Front(keep_nodes_s=0)}),
    ("held", job(priority=0), {}),
    ("runs", job(state="RUNNING"), {}),
    ("in somebody's reservation", job(reservation="maintenance"), {}),
    ("heterogeneous", job(het_job_id=7), {}),
    ("not a batch job", job(batch=False), {}),
    ("in front already", job(admin_comment=IN_FRONT), {}),
    ("its time was up in this wait", job(restart_cnt=2, admin_comment="[ais front=off@2]"), {}),
    ("nobody else waits", job(), {"rivals": ()}),
    ("others wait elsewhere", job(), {"rivals": (replace(RIVAL, partition="cpu"),)}),
    ("others are held", job(), {"rivals": (replace(RIVAL, priority=0),)}),
    ("others begin later", job(), {"rivals": (replace(RIVAL, eligible_time=int(NOW) + 600),)}),
    ("others depend", job(), {"rivals": (replace(RIVAL, reason="Dependency"),)}),
    (
        "enough are in front",
        job(),
        {"rivals": (RIVAL, job(30, admin_comment=IN_FRONT), job(31, reservation="ais-31"))},
    ),
]


@pytest.mark.parametrize(("waiting", "given"), [case[1:] for case in NOT], ids=[case[0] for case in NOT])
def test_not_in_front(waiting: Job, given: dict[str, Any]) -> None:
    assert plan(waiting, **given) is None


def test_in_front_again_after_the_next_restart() -> None:
    assert plan(job(restart_cnt=3, admin_comment="[ais front=off@2]")) is not None


def test_what_ended_in_front_does_not_count() -> None:
    ended = (job(30, "COMPLETED", reservation="ais-30"), job(31, "FAILED", admin_comment=IN_FRONT))
    assert plan(job(), rivals=(RIVAL, *ended)) is not None


def test_nodes_kept_before_the_requeue_are_used_also_where_nobody_waits() -> None:
    found = plan(job(), rivals=(), gpu1={"flags": RESERVED})
    assert found is not None
    assert "gpu1" in found.kept


# ---- which nodes

CHOICES: list[tuple[str, Job, dict[str, Any], tuple[str, ...]]] = [
    ("all that can serve, where the site lets it", job(), {"config": ALL}, ("gpu1", "gpu3", "gpu4", "gpu5")),
    ("half of the partition", job(), {}, ("gpu1", "gpu3")),
    ("those that are free soonest", job(), {"rivals": (RIVAL, BUSY3, BUSY4, BUSY5)}, ("gpu1", "gpu5")),
    ("as many as it needs alone", job(node_count=3), {}, ("gpu1", "gpu3", "gpu4")),
    ("not so beside others in front", job(node_count=3), {"rivals": (RIVAL, ANOTHER)}, ()),
    ("within the half also beside others", job(), {"rivals": (RIVAL, ANOTHER)}, ("gpu1", "gpu3")),
    ("others have the half", job(), {"rivals": (RIVAL, ANOTHER), "gpu5": {"flags": RESERVED}}, ()),
    ("held two GPUs of eight", job(), {"gres": ("gpu:2(IDX:0-1)",) * 2, "gpu1": {"gres": "gpu:8"}}, ()),
    ("another job runs beside it", job(), {"rivals": (RIVAL, NEIGHBOUR), "ended": NOW}, ()),
    (
        "backlog came after it",
        job(),
        {"rivals": (RIVAL, replace(NEIGHBOUR, start_time=int(NOW))), "ended": NOW},
        ("gpu1", "gpu3"),
    ),
    ("no more than it needs, where they are idle", job(), {"gpu4": {"state": "IDLE"}}, ("gpu1", "gpu4")),
    ("not somebody's reserved node", job(), {"config": ALL, "gpu3": {"flags": RESERVED}}, ("gpu1", "gpu4", "gpu5")),
    (
        "its own kept one, reserved",
        job(),
        {"config": ALL, "gpu1": {"flags": RESERVED}},
        ("gpu1", "gpu3", "gpu4", "gpu5"),
    ),
    ("not another kind", job(), {"config": ALL, "gpu3": {"gres": "gpu:4"}}, ("gpu1", "gpu4", "gpu5")),
    # Slurm counts the nodes that it still waits for: one more and the reservation would hold gpu1 alone
    (
        "while its last nodes are COMPLETING",
        job(node_count=1, flags=("COMPLETING",)),
        {"gpu4": {"state": "IDLE"}},
        ("gpu1", "gpu4"),
    ),
    ("not an excluded one", job(excluded_nodes=("gpu5",)), {"config": ALL}, ("gpu1", "gpu3", "gpu4")),
    ("none idles for a job that cannot start", job(node_count=5), {}, ()),
    ("but with a spare it can", job(node_count=5), {"spares": 1}, ("gpu1", "gpu3", "gpu4", "gpu5")),
    ("or with fewer nodes", job(node_count=5, min_nodes=3), {}, ("gpu1", "gpu3", "gpu4", "gpu5")),
]


@pytest.mark.parametrize(("waiting", "given", "chosen"), [c[1:] for c in CHOICES], ids=[c[0] for c in CHOICES])
def test_the_nodes(waiting: Job, given: dict[str, Any], chosen: tuple[str, ...]) -> None:
    found = plan(waiting, **given)
    assert found is not None
    assert found.nodes == chosen
    assert found.kept == (("gpu1",) if chosen else ())


# ---- which Nice

NICES: list[tuple[str, Job, tuple[Job, ...], int]] = [
    ("past the best", job(), (RIVAL,), -1100),
    ("from its own", job(nice=200), (RIVAL,), -900),
    ("ahead already", job(priority=1001), (RIVAL,), 0),
    ("level is not ahead", job(priority=1000), (RIVAL,), -1000),
    ("not past another one in front", job(), (RIVAL, job(30, priority=9000, admin_comment=IN_FRONT)), -1100),
    ("priority not told", job(priority=-1), (RIVAL,), 0),
    # priority/basic begins near the end of 32 bits: an overflow put the job last on 22.05.8
    ("below the top", job(priority=2**32 - 100), (replace(RIVAL, priority=2**32 - 50),), -98),
]


@pytest.mark.parametrize(("waiting", "rivals", "nice"), [c[1:] for c in NICES], ids=[c[0] for c in NICES])
def test_the_nice(waiting: Job, rivals: tuple[Job, ...], nice: int) -> None:
    found = plan(waiting, rivals=rivals)
    assert found is not None
    assert (found.old_nice, found.new_nice, found.until) == (waiting.nice, nice, 20_300)


# ---- undoing

UNDO: list[tuple[str, Job, str]] = [
    ("not in front", job(state="RUNNING"), ""),
    ("waits", job(admin_comment=IN_FRONT, reservation="ais-7"), ""),
    ("ends still", job(state="UNKNOWN", flags=frozenset({"COMPLETING"}), admin_comment=IN_FRONT), ""),
    ("runs", job(state="RUNNING", admin_comment=IN_FRONT), "the job runs"),
    ("runs, its note lost", job(state="RUNNING", reservation="ais-7"), "the job runs"),
    ("time up", job(admin_comment=IN_FRONT.replace("20300", "20000")), "its time is up"),
    ("note lost", job(reservation="ais-7"), "its time is up"),
    ("held", job(priority=0, admin_comment=IN_FRONT, reservation="ais-7"), "the job is held"),
    # nothing can be done to its Nice until it is released
    ("held, nodes given up", job(priority=0, admin_comment=IN_FRONT), ""),
    ("ended", job(state="COMPLETED", admin_comment=IN_FRONT, reservation="ais-7"), "the job has ended"),
    ("ended, nodes given up", job(state="COMPLETED", admin_comment=IN_FRONT), ""),
    ("somebody's reservation", job(state="RUNNING", reservation="maintenance"), ""),
    ("another job's", job(state="RUNNING", reservation="ais-8"), ""),
]


@pytest.mark.parametrize(("seen", "why"), [case[1:] for case in UNDO], ids=[case[0] for case in UNDO])
def test_undo_due(seen: Job, why: str) -> None:
    assert undo_due(seen, NOW) == why


UPDATES: list[tuple[str, Job, dict[str, str]]] = [
    (
        "running",
        job(state="RUNNING", nice=-1100, admin_comment=IN_FRONT, reservation="ais-7"),
        {"ReservationName": "", "Nice": "0", "AdminComment": TAG},
    ),
    (
        "somebody changed its Nice: it is theirs",
        job(state="RUNNING", nice=50, admin_comment=IN_FRONT, reservation="ais-7"),
        {"ReservationName": "", "AdminComment": TAG},
    ),
    (
        "time up: not again in this wait",
        job(nice=-1100, restart_cnt=2, admin_comment=IN_FRONT.replace("20300", "1")),
        {"Nice": "0", "AdminComment": "[ais resume=auto max=3 front=off@2]"},
    ),
    # 22.05: a Nice for a held job releases it
    (
        "held",
        job(priority=0, nice=-1100, admin_comment=IN_FRONT, reservation="ais-7"),
        {"ReservationName": ""},
    ),
]


@pytest.mark.parametrize(("seen", "fields"), [case[1:] for case in UPDATES], ids=[case[0] for case in UPDATES])
def test_undo_in_one_update(seen: Job, fields: dict[str, str]) -> None:
    slurm = Recorder(seen)
    assert front.undo_front(slurm, seen, NOW).startswith("no longer in front")
    assert slurm.done == [("update_job", 7, fields), ("delete", "ais-7")]


def test_undo_looks_first() -> None:
    slurm = Recorder(job(admin_comment=IN_FRONT, reservation="ais-7"))
    assert front.undo_front(slurm, job(state="RUNNING", admin_comment=IN_FRONT), NOW) == ""
    assert slurm.done == []


def test_an_ended_job_is_not_updated() -> None:
    seen = job(state="COMPLETED", admin_comment=IN_FRONT, reservation="ais-7")
    slurm = Recorder(seen)
    front.undo_front(slurm, seen, NOW)
    assert slurm.done == [("delete", "ais-7")]


@pytest.mark.parametrize(
    ("seen", "now", "seconds"),
    [
        (job(), NOW, None),
        (job(state="RUNNING", admin_comment=IN_FRONT), NOW, None),
        (job(admin_comment=IN_FRONT), NOW, 1.0),
        (job(admin_comment=IN_FRONT), NOW + 60, 2.0),
        (job(admin_comment=IN_FRONT), NOW + 290, 5.0),
        (job(admin_comment=IN_FRONT), NOW - 9999, 1.0),
    ],
)
def test_how_often_it_is_looked_at(seen: Job, now: float, seconds: Optional[float]) -> None:
    assert front.look_s(seen, now, CONFIG) == seconds


# ---- doing


def made(**fields: Any) -> FrontPlan:
    return replace(FrontPlan(7, ("gpu1", "gpu3"), ("gpu1",), 0, -1100, 20_300, 5), **fields)


def created(names: str) -> tuple[Any, ...]:
    return ("create", "ais-7", {"Nodes": names, "Duration": "5", "Users": "alice", "Flags": front.FLAGS})


ATTACH = {"AdminComment": IN_FRONT, "Nice": "-1100", "ReservationName": "ais-7"}


def test_the_reservation_comes_before_the_job_is_put_in() -> None:
    slurm = Recorder(job())
    assert front.apply_front(slurm, made(), CONFIG) == "in front: keeps gpu[1,3], Nice 0 -> -1100"
    assert slurm.done == [created("gpu[1,3]"), ("update_job", 7, ATTACH)]


def test_the_one_made_before_the_requeue_is_widened() -> None:
    slurm = Recorder(job(), refuse={"create": "overlaps with another reservation"})
    assert front.apply_front(slurm, made(), CONFIG).startswith("in front: keeps gpu[1,3]")
    assert slurm.done == [
        ("update_reservation", "ais-7", {"Nodes": "gpu[1,3]", "Duration": "6"}),
        ("update_job", 7, ATTACH),
    ]


def test_without_a_reservation_it_still_goes_to_the_front() -> None:
    slurm = Recorder(job(), refuse={"create": "overlaps", "update_reservation": "invalid"})
    assert front.apply_front(slurm, made(), CONFIG) == "in front: Nice 0 -> -1100, no nodes kept: overlaps"
    assert slurm.done == [("update_job", 7, {"AdminComment": IN_FRONT, "Nice": "-1100"})]


def test_a_reservation_that_the_job_may_not_use_is_taken_back() -> None:
    slurm = Recorder(job(), refuse={"update_job": "access denied"})
    assert front.apply_front(slurm, made(), CONFIG).startswith("refused: ")
    assert slurm.done == [created("gpu[1,3]"), ("delete", "ais-7")]


@pytest.mark.parametrize(
    "seen",
    [job(state="RUNNING"), job(priority=0), job(reservation="theirs"), job(nice=50), job(admin_comment=IN_FRONT)],
)
def test_late(seen: Job) -> None:
    slurm = Recorder(seen)
    assert front.apply_front(slurm, made(), CONFIG).startswith("late: ")
    assert slurm.done == []


# ---- before the requeue

RUNNING = job(state="RUNNING", nodes=("gpu1", "gpu2", "gpu3"))
HELD = [Node(f"gpu{i}", "MIXED", gres="gpu:8") for i in (1, 2, 3)]
KEEPS: list[tuple[str, Job, Front, list[Job], bool]] = [
    ("healthy nodes", RUNNING, CONFIG, [], True),
    ("somebody waits for them", RUNNING, CONFIG, [RUNNING, RIVAL], True),
    ("nobody does", RUNNING, CONFIG, [RUNNING], False),
    ("turned off", RUNNING, Front(keep_nodes_s=0), [], False),
    ("none is healthy", replace(RUNNING, nodes=("gpu2",)), CONFIG, [], False),
    ("ends already", replace(RUNNING, flags=frozenset({"COMPLETING"})), CONFIG, [], False),
    ("in somebody's reservation", replace(RUNNING, reservation="theirs"), CONFIG, [], False),
    ("--no-requeue", replace(RUNNING, requeue=False), CONFIG, [], False),
    ("enough are in front", RUNNING, CONFIG, [RUNNING, RIVAL, ANOTHER, job(33, reservation="ais-33")], False),
    ("a share of the GPUs", replace(RUNNING, gres_detail=("gpu:4(IDX:0-3)",) * 3), CONFIG, [], False),
    ("all GPUs", replace(RUNNING, gres_detail=("gpu:8(IDX:0-7)",) * 3), CONFIG, [], True),
    ("beside another job", RUNNING, CONFIG, [RUNNING, RIVAL, NEIGHBOUR], False),
]


@pytest.mark.parametrize(
    ("seen", "config", "jobs", "keeps"), [case[1:] for case in KEEPS], ids=[case[0] for case in KEEPS]
)
def test_keep_nodes(seen: Job, config: Front, jobs: list[Job], keeps: bool) -> None:
    slurm = Recorder(seen, nodes=HELD)
    said = front.keep_nodes(slurm, seen, ["gpu2"], config, jobs)
    assert said == ("kept gpu[1,3] for it" if keeps else "")
    assert slurm.done == ([created("gpu[1,3]")] if keeps else [])


def test_no_more_are_kept_than_may_be_in_front_also_before_they_are() -> None:
    """A leaf switch dies: forty agents requeue at once, and no job is in front yet."""
    kept = [Reservation(f"ais-{number}", ("gpu9",), flags=FLAGS) for number in (101, 102)]
    slurm = Recorder(RUNNING, reservations=kept, nodes=HELD)
    assert (front.keep_nodes(slurm, RUNNING, ["gpu2"], CONFIG, [RUNNING, RIVAL]), slurm.done) == ("", [])


def test_a_part_of_a_node_without_gpus_is_not_kept() -> None:
    slurm = Recorder(RUNNING, nodes=[replace(node, gres="", state="MIXED") for node in HELD])
    assert (front.keep_nodes(slurm, RUNNING, ["gpu2"], CONFIG), slurm.done) == ("", [])


def test_a_refusal_does_not_keep_the_requeue_back() -> None:
    slurm = Recorder(RUNNING, refuse={"create": "overlaps"}, nodes=HELD)
    assert front.keep_nodes(slurm, RUNNING, ["gpu2"], CONFIG) == "its healthy nodes could not be kept: overlaps"


# ---- leftovers


def left(name: str = "ais-7", start: int = int(NOW) - 100, flags: frozenset[str] = FLAGS) -> Reservation:
    return Reservation(name, ("gpu1",), start, int(NOW) + 100, flags)


LEFT: list[tuple[str, Reservation, Optional[Job], bool]] = [
    ("its job is gone", left(), None, True),
    ("its job has ended", left(), job(state="FAILED"), True),
    ("its job waits in it", left(), job(reservation="ais-7"), False),
    ("its job waits outside", left(), job(), True),
    ("its job ends still", left(), job(state="UNKNOWN", flags=frozenset({"COMPLETING"})), False),
    ("young, requeue to come", left(start=int(NOW) - 5), job(state="RUNNING", start_time=100), False),
    ("the requeue never came", left(), job(state="RUNNING", start_time=100), True),
    ("used", left(start=int(NOW) - 5), job(state="RUNNING", start_time=int(NOW) - 2), True),
    ("runs in it: undone with its Nice", left(), job(state="RUNNING", start_time=100, reservation="ais-7"), False),
    ("spares", left("ais-spares"), None, False),
    ("somebody's name", left("maintenance"), None, False),
    ("like ours, but not made by us", left(flags=frozenset({"SPEC_NODES"})), None, False),
    ("not quite our name", left("ais-7b"), None, False),
    ("leading zero", left("ais-07"), None, False),
]


@pytest.mark.parametrize(("reservation", "seen", "found"), [case[1:] for case in LEFT], ids=[case[0] for case in LEFT])
def test_leftovers(reservation: Reservation, seen: Optional[Job], found: bool) -> None:
    assert leftovers([reservation], [seen] if seen else [], NOW) == ([reservation.name] if found else [])


def test_a_leftover_in_use_is_left_to_its_own_end() -> None:
    slurm = Recorder(None, reservations=[left()], refuse={"delete": "Requested reservation is in use"})
    assert front.clear_leftovers(slurm, [], NOW) == ["ais-7"]
    assert slurm.done == []


def test_slurm_away_is_told() -> None:
    class Away(Recorder):
        def job(self, job_id: int) -> Optional[Job]:
            raise SlurmRefused("away")

    with pytest.raises(SlurmRefused):
        front.apply_front(Away(None), made(), CONFIG)
