"""The agent publishes transitions of its node's fabric grade: rarely, and never over a person's."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from aistation_slurm.config import Agent, Config, Placement
from aistation_slurm.config import Node as NodeSettings
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.findings import Finding, Status
from aistation_slurm.placement.node_grade import EVERY_S, JITTER_S, NodeGrade, grade_of_findings
from aistation_slurm.slurm.client import Node

RATE = Finding("fabric.errors", Status.WARN, "mlx5_3/1", "4000 symbol errors an hour, at most 100")
DOWN = Finding("fabric.port_state", Status.FAIL, "mlx5_3/1", "Down")
FIRMWARE = Finding("fabric.firmware", Status.WARN, "HCAs", "two versions")
FLAP = Finding("fabric.flap", Status.WARN, "mlx5_0/1", "4 lost links in 12 h")
GPU = Finding("gpu.lost", Status.FAIL, "GPU3", "gone")


@pytest.mark.parametrize(
    ("findings", "why"),
    [
        ([], None),
        ([GPU], None),
        ([FLAP], "fabric.flap@mlx5_0/1"),
        ([FIRMWARE], None),
        ([FLAP, DOWN], "fabric.port_state@mlx5_3/1 and 1 more"),
        ([DOWN, GPU], "fabric.port_state@mlx5_3/1"),
        ([Finding("fabric.rate", Status.UNKNOWN)], None),
    ],
)
def test_what_counts_as_degraded(findings: list[Finding], why: Optional[str]) -> None:
    assert grade_of_findings(findings, Placement().degraded) == why


class Slurm:
    """One node's Comment, and the requests that were made."""

    def __init__(self) -> None:
        self.comment = "rack 3"
        self.requests: list[str] = []
        self.away = False

    def nodes(self, names: list[str]) -> list[Node]:
        self.requests.append("nodes")
        if self.away:
            raise SlurmUnavailable("no answer")
        return [Node(names[0], "IDLE", comment=self.comment)]

    def update_node(self, node: str, **fields: str) -> None:
        self.requests.append("update")
        self.comment = fields["Comment"]


class World:
    def __init__(self, folder: Path, mode: str = "enforce") -> None:
        self.slurm, self.now = Slurm(), 1000.0
        config = Config(
            node=NodeSettings(state_dir=str(folder)),
            agent=Agent(mode=mode),
            placement=Placement(),  # type: ignore[arg-type]
        )
        self.grade = NodeGrade(config, self.slurm, lambda: "gpu1", lambda: self.now)  # type: ignore[arg-type]

    def looks(self, count: int, *findings: Finding, every_s: float = 30.0) -> None:
        for _ in range(count):
            self.grade.see(findings)
            self.now += every_s


def test_a_transition_is_published_once_and_taken_back_after_three_good_looks(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.looks(10, RATE)
    assert world.slurm.comment == "rack 3 [ais-fabric degraded fabric.errors@mlx5_3/1]"
    assert world.slurm.requests == ["nodes", "update"]
    world.looks(2)
    assert "degraded" in world.slurm.comment
    world.looks(10)
    assert world.slurm.comment == "rack 3"
    assert world.slurm.requests == ["nodes", "update"] * 2


def test_a_healthy_node_asks_once_and_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.looks(200, FIRMWARE)
    assert world.slurm.requests == ["nodes"]


def test_a_link_that_comes_and_goes_makes_at_most_one_update_a_minute(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(100):
        world.looks(1, RATE, every_s=5)
        world.looks(3, every_s=5)
    assert world.slurm.requests.count("update") <= 100 * 20 / EVERY_S + 1
    assert EVERY_S + JITTER_S <= 90


def test_an_agent_that_starts_anew_takes_its_old_grade_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.slurm.comment = "[ais-fabric degraded fabric.errors@mlx5_3/1] rack 3"
    world.looks(3)
    assert world.slurm.comment == "rack 3"


def test_a_persons_grade_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.slurm.comment = "[ais-fabric degraded admin: cable on order]"
    world.looks(9)
    assert world.slurm.comment == "[ais-fabric degraded admin: cable on order]"


def test_a_silent_controller_is_asked_again_later(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.slurm.away = True
    world.looks(2, RATE)
    assert world.slurm.requests == ["nodes"]
    world.slurm.away = False
    world.looks(4, RATE)
    assert "degraded" in world.slurm.comment


def test_observe_only_makes_no_request(tmp_path: Path) -> None:
    world = World(tmp_path, mode="observe")
    world.looks(9, RATE)
    assert world.slurm.requests == []


def test_many_nodes_with_one_cause_publish_at_moments_of_their_own(tmp_path: Path) -> None:
    config = Config(node=NodeSettings(state_dir=str(tmp_path)))
    now = [1000.0]
    slurms = [Slurm() for _ in range(50)]
    grades = [
        NodeGrade(config, slurm, lambda: "gpu1", lambda: now[0], f"gpu{i}")  # type: ignore[arg-type]
        for i, slurm in enumerate(slurms)
    ]
    for grade in grades:
        grade.see([DOWN])
    assert sum(len(slurm.requests) for slurm in slurms) <= 4
    now[0] += config.breaker.spread_s
    for grade in grades * 2:
        grade.act()
    assert [slurm.requests for slurm in slurms] == [["nodes", "update"]] * 50
