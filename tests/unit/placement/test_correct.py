"""Pending jobs follow the health of nodes, and only what is ours is ever changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from aistation_slurm.placement.correct import correction_of, corrections
from aistation_slurm.placement.grade import comment_with_grade, degraded
from aistation_slurm.placement.note import Note, admin_comment_with, read_note
from aistation_slurm.placement.table import PartitionRow, Row
from aistation_slurm.slurm.client import Job

NOW = 1_800_000_000
GPU = PartitionRow("gpu", 8, 6, 8, ("gpu1", "gpu2"))
NONE = PartitionRow("gpu", 8, 8, 8)
KEPT = replace(GPU, rows=(Row(1, 1, 8, 0, 0, ("gpu5",)), Row(2, 4, 8, 0, 60, ("gpu5", "gpu6")), Row(5, 8, 8, 0, 60)))


def job(note: str, excluded: str = "", **fields: Any) -> Job:
    values = {"job_id": 7, "state": "PENDING", "partition": "gpu", "min_nodes": 4, "node_count": 4, **fields}
    return Job(admin_comment=note, excluded_nodes=tuple(excluded.split()), **values)


CASES: dict[str, tuple[Job, PartitionRow, Optional[tuple[str, str]]]] = {
    "became degraded": (job("[ais-place n=4 x=-]"), GPU, ("gpu[1-2]", "[ais-place n=4 x=gpu{1-2}]")),
    "well again": (job("[ais-place n=4 x=gpu{1-2}]", "gpu1 gpu2"), NONE, ("", "[ais-place n=4 x=-]")),
    "one of two well again": (
        job("[ais-place n=4 x=gpu{1-2}]", "gpu1 gpu2"),
        replace(NONE, avoid=("gpu2",)),
        ("gpu2", "[ais-place n=4 x=gpu2]"),
    ),
    "as it should be": (job("[ais-place n=4 x=gpu{1-2}]", "gpu1 gpu2"), GPU, None),
    "not noted": (job(""), GPU, None),
    "not noted, excludes what is degraded": (job("", "gpu1"), NONE, None),
    "the user's own --exclude": (job("[ais-place n=4 x=user]", "gpu7"), GPU, None),
    "no word on exclusions": (job("[ais-place n=4 s=1 w=60]"), GPU, None),
    "others' exclusions stay": (
        job("[ais-place x=gpu{1-2}] [ais resume=hf]", "gpu1 gpu2 gpu7"),
        NONE,
        ("gpu7", "[ais-place x=-] [ais resume=hf]"),
    ),
    "others' are joined": (job("rack [ais-place x=-]", "gpu7"), GPU, ("gpu[1-2,7]", "rack [ais-place x=gpu{1-2}]")),
    "lifted by somebody": (job("[ais-place x=gpu{1-2}]"), NONE, ("as it was", "[ais-place x=-]")),
    "too large to do without": (job("[ais-place x=-]", min_nodes=7), GPU, None),
    "grown too large": (job("[ais-place x=gpu{1-2}]", "gpu1 gpu2", min_nodes=7), GPU, ("", "[ais-place x=-]")),
    "moved to a reservation": (job("[ais-place x=gpu1]", "gpu1", reservation="r"), GPU, ("", "[ais-place x=-]")),
    "given a node list": (job("[ais-place x=gpu1]", "gpu1", required_nodes=("gpu3",)), GPU, ("", "[ais-place x=-]")),
    "running": (job("[ais-place x=-]", state="RUNNING"), GPU, None),
    "completing": (job("[ais-place x=-]", flags=frozenset({"COMPLETING"})), GPU, None),
    "just requeued": (job("[ais-place x=-]", restart_cnt=1, submit_time=NOW - 5), GPU, None),
    "requeued a while ago": (
        job("[ais-place x=-]", restart_cnt=1, submit_time=NOW - 100),
        GPU,
        ("gpu[1-2]", "[ais-place x=gpu{1-2}]"),
    ),
    "kept for larger jobs": (job("[ais-place n=4 x=-]"), KEPT, ("gpu[1-2,5-6]", "[ais-place n=4 x=gpu{1-2,5-6}]")),
    "of one node": (
        job("[ais-place n=1 x=gpu6]", "gpu6", min_nodes=1, node_count=1),
        KEPT,
        ("gpu5", "[ais-place n=1 x=gpu5]"),
    ),
    "large itself": (
        job("[ais-place n=6 x=gpu{1-2,5}]", "gpu1 gpu2 gpu5", min_nodes=6),
        KEPT,
        ("gpu[1-2]", "[ais-place n=6 x=gpu{1-2}]"),
    ),
    "a partition that the table has not": (job("[ais-place x=gpu1]", "gpu1", partition="gpu,new"), NONE, None),
    "a note that cannot be read": (job("[ais-place x=gpu{1-]", "gpu1"), NONE, None),
}


@pytest.mark.parametrize(("case", "row", "wanted"), CASES.values(), ids=CASES.keys())
def test_what_is_corrected(case: Job, row: PartitionRow, wanted: Optional[tuple[str, str]]) -> None:
    found = correction_of(case, {"gpu": row}, NOW)
    fields = found and (found.fields.get("ExcNodeList", "as it was"), found.fields["AdminComment"])
    assert fields == wanted
    if found:  # and then it stays so
        after = replace(
            case,
            excluded_nodes=tuple(_names(found.fields.get("ExcNodeList", ",".join(case.excluded_nodes)))),
            admin_comment=found.fields["AdminComment"],
        )
        assert correction_of(after, {"gpu": row}, NOW) is None


def _names(text: str) -> list[str]:
    from aistation_slurm.slurm import hostlist

    return hostlist.expand(text)


def test_what_the_recovery_excluded_is_kept_also_where_it_was_ours() -> None:
    found = correction_of(job("[ais-place x=gpu{1-2}]", "gpu1 gpu2"), {"gpu": NONE}, NOW, kept={"gpu2"})
    assert found is not None
    assert found.fields["ExcNodeList"] == "gpu2"
    assert found.text == "may use gpu1 again"


def test_those_next_to_start_come_first() -> None:
    jobs = [job("[ais-place x=-]", job_id=n, priority=p) for n, p in ((1, 10), (2, 30), (3, 30), (4, 20))]
    found = corrections(
        [*jobs, job("", job_id=5), job("[ais-place x=-]", job_id=6, state="RUNNING")], {"gpu": GPU}, NOW
    )
    assert [one.job.job_id for one in found] == [2, 3, 4, 1]


def test_the_note_is_read_as_lua_writes_it() -> None:
    assert read_note("x [ais-place n=16 s=2 w=600 x=gpu{1-3},r7n04] y") == Note(
        16, 2, 600, ("gpu1", "gpu2", "gpu3", "r7n04"), ours=True
    )
    assert read_note("[ais-place n=16 x=user]") == Note(16, users_own=True)
    assert read_note("[ais resume=hf]") is None
    assert admin_comment_with("a [ais-place n=2 x=-] b", ["gpu2", "gpu1"]) == "a [ais-place n=2 x=gpu{1-2}] b"


def test_a_grade_stands_beside_other_text_in_a_nodes_comment() -> None:
    graded = comment_with_grade("rack 3 [ais refused=7@1]", "fabric.errors@mlx5_3/1 ]; rm")
    assert graded == "rack 3 [ais refused=7@1] [ais-fabric degraded fabric.errors@mlx5_3/1 _; rm]"
    assert degraded(graded) == "fabric.errors@mlx5_3/1 _; rm"
    assert comment_with_grade(graded, None) == "rack 3 [ais refused=7@1]"
    assert degraded("rack 3") is None
    assert degraded("[ais-fabric degraded]") == ""


LIMITED = replace(NONE, rows=(Row(2, 8, 4, 1, 60),))
OTHERS = replace(NONE, rows=(Row(5, 8, 4, 1, 60),))


@pytest.mark.parametrize(
    ("case", "row", "wanted"),
    [
        (
            job("[ais-place n=4 s=1 w=300 x=-]", eligible_time=NOW - 90),
            LIMITED,
            ("2@0:03:00", "[ais-place n=4 s=2 w=180 x=-]"),
        ),
        (
            job("[ais-place n=4 s=1 w=60]", eligible_time=NOW - 7201),
            LIMITED,
            ("2@2:02:00", "[ais-place n=4 s=2 w=7320]"),
        ),
        (job("[ais-place n=4 s=2 w=300 x=-]", eligible_time=NOW - 60), LIMITED, None),
        (job("[ais-place n=4 s=1 w=300 x=-]", eligible_time=NOW), OTHERS, ("0@0:00:00", "[ais-place n=4 s=0 w=0 x=-]")),
        (job("[ais-place n=4 s=1 w=300 x=-]", eligible_time=NOW), NONE, None),
        (job("[ais-place n=4 s=0 w=0 x=-]", eligible_time=NOW), OTHERS, None),
        (job("[ais-place n=4 s=0 w=0 x=-]", eligible_time=NOW), LIMITED, ("2@0:01:00", "[ais-place n=4 s=2 w=60 x=-]")),
        (job("[ais-place n=4 s=1 w=300 x=-]", eligible_time=NOW, partition="gpu,new"), LIMITED, None),
        (job("[ais-place n=4 x=-]", eligible_time=NOW), LIMITED, None),
        (
            job("[ais-place n=4 s=1 w=9 x=user]", "gpu7", eligible_time=NOW),
            LIMITED,
            ("2@0:01:00", "[ais-place n=4 s=2 w=60 x=user]"),
        ),
        (job("[ais-place n=4 s=1 w=300 x=-]", required_nodes=("gpu1",)), LIMITED, None),
    ],
    ids=[
        "changed",
        "after a long wait",
        "as it is",
        "no limit any more",
        "no topology",
        "still none",
        "one again",
        "unknown partition",
        "not ours",
        "own --exclude",
        "given a node list",
    ],
)
def test_a_limit_of_ours_follows_the_table(case: Job, row: PartitionRow, wanted: Optional[tuple[str, str]]) -> None:
    found = correction_of(case, {"gpu": row}, NOW)
    assert (found and (found.fields["Switches"], found.fields["AdminComment"])) == wanted
    assert found is None or "ExcNodeList" not in found.fields
