"""Nodes on which job after job dies: which evidence suffices, and which has another reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from aistation_slurm.config import BlackHole, Slurm, Watchdog
from aistation_slurm.recovery.black_hole import Deaths
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.recovery.suspects import BlackHoles
from aistation_slurm.slurm.cli_backend import CliBackend
from aistation_slurm.slurm.client import Job, Node

NOW = 10_000.0


def ended(job_id: int, nodes: str, user: int, ran: int = 5, state: str = "FAILED", ago: int = 60, **fields: Any) -> Job:
    end = int(NOW) - ago
    return Job(job_id, state, nodes=tuple(nodes.split()), user_id=user, start_time=end - ran, end_time=end, **fields)


def deaths(node: str, users: list[int], first: int = 1, **fields: Any) -> list[Job]:
    return [ended(first + i, node, user, **fields) for i, user in enumerate(users)]


FINE = [ended(91, "gpu1", 1, 600, "COMPLETED"), ended(92, "gpu2", 2, 600, "COMPLETED")]

CASES: list[tuple[str, list[Job], Optional[str]]] = [
    ("four quick deaths of two users who run elsewhere", deaths("gpu3", [1, 1, 2, 2]) + FINE, "gpu3"),
    ("three are too few", deaths("gpu3", [1, 1, 2]) + FINE, None),
    ("one user's jobs may be one broken script", deaths("gpu3", [1, 1, 1, 1]) + FINE, None),
    ("their jobs run nowhere", deaths("gpu3", [3, 3, 4, 4]) + FINE, None),
    ("something ran longer there", [*deaths("gpu3", [1, 1, 2, 2]), *FINE, ended(93, "gpu3", 5, 400, "COMPLETED")], None),
    (
        "something runs there now",
        [*deaths("gpu3", [1, 1, 2, 2]), *FINE, Job(93, "RUNNING", nodes=("gpu3",), user_id=5, start_time=int(NOW) - 200)],
        None,
    ),
    ("a failure after an hour is no quick death", deaths("gpu3", [1, 1, 2, 2], ran=3600) + FINE, None),
    ("long ago", deaths("gpu3", [1, 1, 2, 2], ago=2000) + FINE, None),
    ("cancelled jobs say nothing", deaths("gpu3", [1, 1, 2, 2], state="CANCELLED") + FINE, None),
    ("two-node jobs count half against each", deaths("gpu3 gpu4", [1, 1, 2, 2]) + FINE, None),
    ("a short job that completed there", [*deaths("gpu3", [1, 1, 2, 2]), *FINE, ended(93, "gpu3", 5, 2, "COMPLETED")], None),
]  # fmt: skip


@pytest.mark.parametrize(("jobs", "node"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_suspects(jobs: list[Job], node: Optional[str]) -> None:
    seen = Deaths(BlackHole())
    seen.see(jobs, NOW)
    assert [s.node for s in seen.suspects()] == ([node] if node else [])


def test_what_slurm_has_forgotten_still_counts_within_the_window() -> None:
    seen = Deaths(BlackHole())
    for at, jobs in ((NOW - 300, deaths("gpu3", [1, 2], ago=310)), (NOW, deaths("gpu3", [1, 2], first=5) + FINE)):
        seen.see(jobs, at)
    (suspect,) = seen.suspects()
    assert suspect.evidence == "4 jobs of 2 users failed within 60 s each and none ran longer here in 15 min"
    seen.see([], NOW + 2000)
    assert seen.suspects() == []


def test_a_notebook_in_another_partition_proves_nothing_of_broken_jobs() -> None:
    seen = Deaths(BlackHole())
    notebooks = [
        Job(90 + user, "RUNNING", nodes=("cpu1",), user_id=user, start_time=100, partition="cpu") for user in (1, 2)
    ]
    seen.see([*deaths("gpu3", [1, 1, 2, 2], partition="gpu"), *notebooks], NOW)
    assert seen.suspects() == []


class Cluster(CliBackend):
    def __init__(self, *names: str) -> None:
        super().__init__(Slurm())
        self.known = {name: Node(name, "IDLE") for name in names}

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        return [self.known[name] for name in names or self.known]

    def drain(self, node: str, reason: str) -> None:
        self.known[node] = replace(self.known[node], flags=frozenset({"DRAIN"}), reason=reason)

    @property
    def drained(self) -> list[str]:
        return [node.name for node in self.known.values() if node.drained]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(*(f"gpu{i}" for i in range(1, 9)))


def look(cluster: Cluster, folder: Path, ends: Sequence[str], times: int = 5) -> str:
    """Looks at quick deaths of two users on each of these nodes, one node more each time; the journal's words."""
    journal = Journal(folder / "journal.db", "c")
    watch = BlackHoles(cluster, journal, Watchdog(), str(folder), act=True)
    for i in range(len(ends) + times):
        jobs = [job for n, name in enumerate(ends[: i + 1]) for job in deaths(name, [1, 1, 2, 2], first=10 * n)]
        watch.look([*jobs, ended(91, "ok1", 1, 600), ended(92, "ok1", 2, 600)], dict(cluster.known), NOW + i)
    told = "\n".join(row["text"] for row in journal.incidents())
    journal.close()
    return told


def test_one_is_drained_once(cluster: Cluster, tmp_path: Path) -> None:
    assert look(cluster, tmp_path, ["gpu3"]).count("drained (set)") == 1
    assert cluster.drained == ["gpu3"]


def test_one_after_the_other_is_something_that_they_share(cluster: Cluster, tmp_path: Path) -> None:
    told = look(cluster, tmp_path, list(cluster.known))
    assert cluster.drained == ["gpu1", "gpu2"]
    assert "not drained, since gpu1, gpu2 are for this already" in told
    look(cluster, tmp_path, list(cluster.known))  # a new process knows it from Slurm
    assert cluster.drained == ["gpu1", "gpu2"]


def test_many_at_once_are_only_reported(cluster: Cluster, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", "c")
    jobs = [job for n, name in enumerate(cluster.known) for job in deaths(name, [1, 1, 2, 2], first=10 * n)]
    watch = BlackHoles(cluster, journal, Watchdog(), str(tmp_path), act=True)
    for i in range(20):
        watch.look([*jobs, ended(91, "ok1", 1, 600), ended(92, "ok1", 2, 600)], {}, NOW + i)
    assert cluster.drained == []
    assert [row["text"].count("8 nodes do") for row in journal.incidents()] == [1] * 8
