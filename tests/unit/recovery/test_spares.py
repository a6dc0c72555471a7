"""Spare nodes: lent one for one, first written where it can be read again, and back when nobody needs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from aistation_slurm.config import Spares
from aistation_slurm.recovery.spares import Lend, apply_lend, apply_standby, configured, plan_lend, plan_standby
from aistation_slurm.slurm.client import Job, Node, Reservation
from tests.unit.recovery.recorder import Recorder

NOW = 20_000.0
CONFIG = Spares(nodes=("gpu[8-9]",), after_s=5)
TAG = "[ais resume=auto attempt=1]"
LENT = "[ais resume=auto attempt=1 spare=gpu8]"
STANDBY = Reservation("ais-spares", ("gpu8", "gpu9"), users=("root",))
OWN = Reservation("ais-7", ("gpu1", "gpu3"), flags=frozenset({"FLEX"}))
DRAIN = frozenset({"DRAIN"})
RESERVED = frozenset({"RESERVED"})


def job(state: str = "PENDING", **fields: Any) -> Job:
    base = Job(
        7, state, priority=9, node_count=2, restart_cnt=1, partition="gpu", admin_comment=TAG, reason="Resources"
    )
    return replace(base, **fields)


def nodes(**changes: dict[str, Any]) -> dict[str, Node]:
    """gpu1, gpu2 were the job's and gpu2 is drained; gpu3 is busy; gpu8 and gpu9 stand by."""
    found = {f"gpu{i}": Node(f"gpu{i}", "IDLE", partitions=("gpu",)) for i in (1, 2, 3, 8, 9)}
    found["gpu2"] = replace(found["gpu2"], flags=DRAIN)
    found["gpu3"] = replace(found["gpu3"], state="ALLOCATED")
    for name in ("gpu8", "gpu9"):
        found[name] = replace(found[name], flags=RESERVED)
    return {name: replace(node, **changes.get(name, {})) for name, node in found.items()}


def lend(
    waiting: Job,
    config: Spares = CONFIG,
    reservations: tuple[Reservation, ...] = (STANDBY,),
    since: float = NOW - 10,
    bad: tuple[str, ...] = ("gpu2",),
    **changes: dict[str, Any],
) -> Optional[Lend]:
    return plan_lend(waiting, ("gpu1", "gpu2"), bad, nodes(**changes), reservations, config, NOW, since)


LENDS: list[tuple[str, Job, dict[str, Any], tuple[str, ...]]] = [
    ("one for the drained one", job(), {}, ("gpu8",)),
    ("not looked at yet", job(reason="None"), {}, ("gpu8",)),
    ("22.05's words", job(reason="ReqNodeNotAvail, UnavailableNodes:gpu2"), {}, ("gpu8",)),
    ("22.05's long words", job(reason="Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved"), {}, ("gpu8",)),
    ("a healthy one", job(), {"gpu8": {"flags": DRAIN}}, ("gpu9",)),
    ("one of the same kind", job(), {"gpu8": {"gres": "gpu:4"}}, ("gpu9",)),
    ("one that stands by", job(), {"reservations": (replace(STANDBY, nodes=("gpu9",)),)}, ("gpu9",)),
    ("the same one as before a crash", job(admin_comment=LENT.replace("gpu8", "gpu9")), {}, ("gpu9",)),
    (
        "one that it was lent is on its way",
        job(admin_comment=LENT),
        {"reservations": (replace(STANDBY, nodes=("gpu9",)),)},
        (),
    ),
    (
        "the lent one broke as well",
        job(admin_comment=LENT),
        {"gpu8": {"flags": DRAIN}, "bad": ("gpu2", "gpu8")},
        ("gpu9",),
    ),
    ("no more than were lost", job(node_count=5), {}, ("gpu8",)),
    ("two for two", job(node_count=2), {"bad": ("gpu1", "gpu2")}, ("gpu8", "gpu9")),
    ("too early", job(), {"since": NOW - 3}, ()),
    ("none configured", job(), {"config": Spares()}, ()),
    ("none stands by", job(), {"reservations": ()}, ()),
    ("nothing was lost", job(), {"bad": ()}, ()),
    ("another node is idle", job(), {"gpu3": {"state": "IDLE"}}, ()),
    (
        "idle, but somebody's",
        job(),
        {"gpu3": {"state": "IDLE"}, "reservations": (STANDBY, Reservation("x", ("gpu3",)))},
        ("gpu8",),
    ),
    ("never restarted", job(restart_cnt=0), {}, ()),
    ("runs", job("RUNNING"), {}, ()),
    ("held", job(priority=0), {}, ()),
    ("waits for something else", job(reason="QOSMaxNodePerUserLimit"), {}, ()),
    ("begins later", job(reason="BeginTime"), {}, ()),
    ("in somebody's reservation", job(reservation="theirs"), {}, ()),
]


@pytest.mark.parametrize(("waiting", "given", "spares"), [case[1:] for case in LENDS], ids=[case[0] for case in LENDS])
def test_lend(waiting: Job, given: dict[str, Any], spares: tuple[str, ...]) -> None:
    found = lend(waiting, **given)
    assert (found.spares if found else ()) == spares


def test_what_stays_and_what_the_jobs_own_reservation_gets() -> None:
    found = lend(job(reservation="ais-7"), reservations=(STANDBY, OWN))
    assert found == Lend(7, ("gpu8",), ("gpu9",), ("gpu1", "gpu3", "gpu8"))
    assert lend(job(), reservations=(STANDBY, OWN)) == Lend(7, ("gpu8",), ("gpu9",), ())


def test_no_more_than_the_jobs_tag_holds() -> None:
    names = tuple(f"gpu-node-with-a-long-name-{i:02}" for i in range(6))
    known = {name: Node(name, "IDLE", partitions=("gpu",)) for name in (*names, "gpu1")}
    found = plan_lend(
        job(node_count=9),
        ("gpu1", "a", "b", "c", "d"),
        ("a", "b", "c", "d"),
        known,
        (Reservation("ais-spares", names),),
        Spares(nodes=names),
        NOW,
        NOW - 10,
    )
    assert found is not None
    assert found.spares == names[:2]


def test_the_tag_comes_first_and_the_whole_list_is_sent() -> None:
    slurm = Recorder(job())
    assert apply_lend(slurm, Lend(7, ("gpu8",), ("gpu9",), ("gpu1", "gpu8")), CONFIG) == "lent spare gpu8"
    assert slurm.done == [
        ("update_job", 7, {"AdminComment": LENT}),
        ("update_reservation", "ais-spares", {"Nodes": "gpu9"}),
        ("update_reservation", "ais-7", {"Nodes": "gpu[1,8]"}),
    ]


def test_the_last_spare_takes_the_reservation_with_it() -> None:
    slurm = Recorder(job(admin_comment=LENT))
    apply_lend(slurm, Lend(7, ("gpu8",), (), ()), CONFIG)
    assert slurm.done == [("delete", "ais-spares")]


def test_a_job_that_has_moved_on_gets_none() -> None:
    slurm = Recorder(job("RUNNING"))
    assert apply_lend(slurm, Lend(7, ("gpu8",), (), ()), CONFIG) == "late: the job has moved on"
    assert slurm.done == []


WITHOUT_8 = (replace(STANDBY, nodes=("gpu9",)),)
FREE = {"gpu8": {"flags": frozenset()}}
TAKEN = {"gpu8": {"state": "ALLOCATED", "flags": frozenset()}}
BACK: list[tuple[str, list[Job], tuple[Reservation, ...], dict[str, Any], Optional[tuple[str, ...]]]] = [
    ("as it should be", [], (STANDBY,), {}, None),
    ("at the first start", [], (), {**FREE, "gpu9": {"flags": frozenset()}}, ("gpu8", "gpu9")),
    ("nobody has it", [], WITHOUT_8, FREE, ("gpu9", "gpu8")),
    ("its borrower waits", [job(admin_comment=LENT)], WITHOUT_8, FREE, None),
    ("its borrower runs on it", [job("RUNNING", admin_comment=LENT, nodes=("gpu1", "gpu8"))], WITHOUT_8, FREE, None),
    ("its borrower runs elsewhere", [job("RUNNING", admin_comment=LENT, nodes=("gpu1",))], WITHOUT_8, FREE, ("gpu9", "gpu8")),
    ("its borrower has ended", [job("COMPLETED", admin_comment=LENT, nodes=("gpu8",))], WITHOUT_8, FREE, ("gpu9", "gpu8")),
    ("its borrower is held", [job(priority=0, admin_comment=LENT)], WITHOUT_8, FREE, ("gpu9", "gpu8")),
    ("backlog is on it: nobody new gets there", [], WITHOUT_8, TAKEN, ("gpu9", "gpu8")),
    ("broken", [], WITHOUT_8, {"gpu8": {"flags": DRAIN}}, None),
    ("in another reservation", [], (*WITHOUT_8, Reservation("x", ("gpu8",))), FREE, None),
    ("reserved since the look", [], WITHOUT_8, {"gpu8": {"flags": RESERVED}}, None),
    ("an administrator's node in it stays", [], (Reservation("ais-spares", ("gpu5",)),), FREE, ("gpu5", "gpu8")),
]  # fmt: skip


@pytest.mark.parametrize(("jobs", "reservations", "changes", "whole"), [c[1:] for c in BACK], ids=[c[0] for c in BACK])
def test_standby(
    jobs: list[Job],
    reservations: tuple[Reservation, ...],
    changes: dict[str, Any],
    whole: Optional[tuple[str, ...]],
) -> None:
    assert plan_standby(nodes(**changes), jobs, reservations, CONFIG) == whole


def test_without_configured_spares_no_reservation_is_touched() -> None:
    assert plan_standby(nodes(), [], [Reservation("ais-spares", ("gpu8",))], Spares()) is None
    assert configured(Spares(nodes=("gpu[7-8]", "gpu8")), nodes()) == ("gpu8",)


def test_making_the_reservation_and_filling_it() -> None:
    slurm = Recorder(None)
    apply_standby(slurm, ("gpu8", "gpu9"), False, CONFIG)
    apply_standby(slurm, ("gpu8", "gpu9"), True, CONFIG)
    fields = {"Nodes": "gpu[8-9]", "Duration": "UNLIMITED", "Users": "root", "Flags": "IGNORE_JOBS"}
    assert slurm.done == [
        ("create", "ais-spares", fields),
        ("update_reservation", "ais-spares", {"Nodes": "gpu[8-9]"}),
    ]
