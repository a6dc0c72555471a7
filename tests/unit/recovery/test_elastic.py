"""A range of nodes: smaller after a long wait, the old size at the next restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from aistation_slurm.config import Elastic
from aistation_slurm.recovery.elastic import Size, apply_size, asked_range, plan_growth, plan_shrink
from aistation_slurm.slurm.client import Job, Node
from tests.unit.recovery.recorder import Recorder

NOW = 20_000.0
CONFIG = Elastic(resize=True, after_s=600)
RAN_ON = ("gpu1", "gpu2", "gpu3", "gpu4")
TAG = "[ais resume=auto nodes=2-4]"
SMALLER = "[ais resume=auto nodes=2-4 size=4]"
BUSY = {"state": "ALLOCATED"}


def job(**fields: Any) -> Job:
    base = Job(7, "PENDING", priority=9, node_count=4, restart_cnt=1, partition="gpu", admin_comment=TAG)
    return replace(base, **{"tasks": 8, "tasks_per_node": 2, "cpus_per_task": 3, **fields})


def nodes(**changes: dict[str, Any]) -> dict[str, Node]:
    """gpu4 is drained, the others are idle."""
    found = {f"gpu{i}": Node(f"gpu{i}", "IDLE", partitions=("gpu",)) for i in range(1, 5)}
    found["gpu4"] = replace(found["gpu4"], flags=frozenset({"DRAIN"}))
    return {name: replace(node, **changes.get(name, {})) for name, node in found.items()}


@pytest.mark.parametrize(
    ("tag", "asked"),
    [
        (TAG, (2, 4)),
        ("[ais resume=auto]", None),
        ("[ais nodes=4-4]", None),
        ("[ais nodes=4-2]", None),
        ("[ais nodes=0-2]", None),
        ("[ais nodes=2-x]", None),
        ("nodes=2-4", None),
    ],
)
def test_asked_range(tag: str, asked: Optional[tuple[int, int]]) -> None:
    assert asked_range(job(admin_comment=tag)) == asked


THREE = Size(7, 3, 6, 18, 4)
SHRINK: list[tuple[str, Job, dict[str, Any], Optional[Size]]] = [
    ("to what is idle", job(), {}, THREE),
    ("further, the first size is kept", job(tasks=6, admin_comment=SMALLER), {"gpu1": BUSY}, Size(7, 2, 4, 12, 4)),
    ("not below the fewest", job(), {"gpu1": BUSY, "gpu2": BUSY}, None),
    ("not where there are enough", job(tasks=6), {}, None),
    ("not early", job(), {"since": NOW - 500}, None),
    ("not unless the site says so", job(), {"config": Elastic(after_s=600)}, None),
    ("Slurm does it by itself", job(tasks_per_node=0), {}, None),
    ("one number was asked", job(admin_comment="[ais resume=auto]"), {}, None),
    ("never restarted", job(restart_cnt=0), {}, None),
    ("held", job(priority=0), {}, None),
    ("runs", job(state="RUNNING"), {}, None),
    ("ends still", job(flags=frozenset({"COMPLETING"})), {}, None),
    ("heterogeneous", job(het_job_id=7), {}, None),
    ("somebody's reserved node", job(), {"gpu1": {"flags": frozenset({"RESERVED"})}}, Size(7, 2, 4, 12, 4)),
    ("kept for it", job(reservation="ais-7"), {"gpu1": {"flags": frozenset({"RESERVED"})}}, THREE),
]


@pytest.mark.parametrize(("waiting", "given", "size"), [case[1:] for case in SHRINK], ids=[case[0] for case in SHRINK])
def test_shrink(waiting: Job, given: dict[str, Any], size: Optional[Size]) -> None:
    since, config = given.pop("since", NOW - 700), given.pop("config", CONFIG)
    assert plan_shrink(waiting, RAN_ON, ["gpu4"], nodes(**given), config, NOW, since) == size


BACK = {"gpu4": {"flags": frozenset()}}
SHRUNK = job(tasks=4, admin_comment=SMALLER)
GROWTH: list[tuple[str, Job, dict[str, Any], Optional[Size]]] = [
    ("the old size", SHRUNK, BACK, Size(7, 4, 8, 24, None)),
    ("part of it", SHRUNK, {}, Size(7, 3, 6, 18, 4)),
    ("busy nodes count", SHRUNK, {**BACK, "gpu1": BUSY}, Size(7, 4, 8, 24, None)),
    ("never made smaller", job(tasks=4), BACK, None),
    ("as large already", job(admin_comment=SMALLER), BACK, None),
    ("never past what was asked", job(tasks=4, admin_comment="[ais nodes=2-3 size=9]"), BACK, Size(7, 3, 6, 18, 9)),
]


@pytest.mark.parametrize(
    ("waiting", "changes", "size"), [case[1:] for case in GROWTH], ids=[case[0] for case in GROWTH]
)
def test_growth(waiting: Job, changes: dict[str, Any], size: Optional[Size]) -> None:
    assert plan_growth(waiting, RAN_ON, [], nodes(**changes), CONFIG) == size


def test_one_request() -> None:
    slurm = Recorder(job())
    assert apply_size(slurm, THREE) == "starts with 3 nodes and 6 tasks"
    fields = {"NumNodes": "3", "NumTasks": "6", "NumCPUs": "18", "AdminComment": SMALLER}
    assert slurm.done == [("update_job", 7, fields)]


def test_the_old_size_leaves_no_note() -> None:
    slurm = Recorder(job(admin_comment=SMALLER))
    apply_size(slurm, Size(7, 4, 8, 24, None))
    assert slurm.done[0][2]["AdminComment"] == TAG


def test_late() -> None:
    slurm = Recorder(job(state="RUNNING"))
    assert apply_size(slurm, THREE) == "late: the job has moved on"
    assert slurm.done == []
