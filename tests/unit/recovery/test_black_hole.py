"""Nodes on which job after job dies: which evidence suffices, and which has another reading."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from aistation_slurm.config import BlackHole
from aistation_slurm.recovery.black_hole import Deaths
from aistation_slurm.slurm.client import Job

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
