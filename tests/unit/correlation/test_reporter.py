from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

import msgspec
import pytest

from aistation_slurm.config import Breaker, CheckRule, Config, Node
from aistation_slurm.correlation.published import shown
from aistation_slurm.correlation.reporter import Reporter, correlated
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.findings import Finding, Scope, Status
from aistation_slurm.slurm.client import Node as SlurmNode
from tests.unit.node.fake_slurm import FakeSlurm

DOWN = Finding(
    "fabric.port_state", Status.FAIL, "mlx5_3/1", "port state 1: DOWN", scope=Scope.SHARED, device="mlx5_3/1"
)
LOST = Finding("gpu.lost", Status.FAIL, "GPU3", "gone")
SLOW = replace(DOWN, check="fabric.rate", status=Status.WARN)
SPREAD_S = 5.0


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Side:
    """One node's reporter and its controller."""

    def __init__(self, folder: Path, slurm: Optional[FakeSlurm] = None, name: str = "gpu1", **settings: object) -> None:
        self.slurm = slurm or FakeSlurm()
        self.time = Time()
        base = Config(node=Node(state_dir=str(folder)), breaker=Breaker(spread_s=SPREAD_S))
        self.config = msgspec.structs.replace(base, **settings)  # type: ignore[arg-type]
        self.name = name
        self.start()

    def start(self) -> None:
        self.reporter = Reporter(self.config, self.slurm, lambda: self.name, self.time, self.time, self.name)

    def look(self, *findings: Finding, looks: int = 1) -> None:
        for _ in range(looks):
            self.reporter.see(findings)
            self.reporter.act()

    def let_pass(self, seconds: float, step_s: float = 0.5) -> None:
        end = self.time.now + seconds
        while self.time.now < end:
            self.time.now += step_s
            self.reporter.act()

    @property
    def checks(self) -> list[str]:
        return [p.check for p in shown(self.slurm.by_name[self.name].comment)]


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path)


def test_only_what_others_may_share_is_reported(side: Side) -> None:
    assert correlated([LOST, SLOW, DOWN, replace(DOWN, check="host.disk")], side.config) == [DOWN]


@pytest.mark.parametrize(("action", "count"), [("report", 0), ("drain", 1), (None, 1)])
def test_the_sites_rule_for_a_check_counts(side: Side, action: Optional[str], count: int) -> None:
    rule = CheckRule(action=action)  # type: ignore[arg-type]
    config = msgspec.structs.replace(side.config, checks={"fabric.*": rule})
    assert len(correlated([DOWN], config)) == count  # one that drains by itself is of scope local, and so left out


def test_a_finding_is_published_within_the_spread_and_stays_beside_the_sites_comment(side: Side) -> None:
    side.slurm.update_node("gpu1", Comment="rack 12")
    side.look(DOWN)
    side.let_pass(SPREAD_S)
    assert side.checks == ["fabric.port_state"]
    assert side.slurm.by_name["gpu1"].comment.startswith("rack 12 [ais-found ")


def test_nothing_is_asked_while_nothing_changes(side: Side) -> None:
    side.look(DOWN)
    side.let_pass(SPREAD_S)
    before = len(side.slurm.calls)
    for _ in range(100):
        side.look(DOWN)
        side.let_pass(30)
    assert len(side.slurm.calls) == before


def test_a_port_that_only_flickers_is_not_reported(side: Side) -> None:
    side.look(looks=3)
    side.let_pass(SPREAD_S)
    side.look(DOWN)
    side.look()
    side.let_pass(60)
    assert (side.checks, side.slurm.made("update_node")) == ([], [])


def test_well_again_is_said_after_three_looks_and_two_minutes(side: Side) -> None:
    side.look(DOWN)
    side.let_pass(SPREAD_S)
    side.look(looks=3)
    side.let_pass(100)
    assert side.checks == ["fabric.port_state"]
    side.look(DOWN)
    side.look(looks=2)
    side.let_pass(120)
    assert side.checks == ["fabric.port_state"]
    side.look()
    side.let_pass(SPREAD_S)
    assert side.checks == []


def test_a_new_fault_does_not_wait_because_all_was_well_a_moment_ago(side: Side) -> None:
    side.look(DOWN)
    side.let_pass(130)
    side.look(looks=3)
    side.let_pass(SPREAD_S)
    assert side.checks == []
    side.look(DOWN)
    side.let_pass(SPREAD_S)
    assert side.checks == ["fabric.port_state"]


def test_at_most_one_update_a_minute_however_it_flaps(side: Side) -> None:
    for _ in range(60):
        side.look(DOWN)
        side.let_pass(5)
        side.look(looks=3)
        side.let_pass(5)
    assert len(side.slurm.made("update_node")) <= 11  # ten minutes


def test_after_a_restart_what_an_earlier_agent_left_is_set_right(side: Side) -> None:
    side.look(DOWN)
    side.let_pass(SPREAD_S)
    since = shown(side.slurm.by_name["gpu1"].comment)[0].since
    side.start()
    side.look(DOWN)
    side.let_pass(SPREAD_S)
    assert shown(side.slurm.by_name["gpu1"].comment)[0].since == since
    side.start()
    side.look(looks=3)
    side.let_pass(SPREAD_S)
    assert side.checks == []


def test_a_silent_controller_is_asked_again_later(side: Side) -> None:
    side.slurm.down = True
    side.look(DOWN)
    side.let_pass(60)
    assert len(side.slurm.calls) <= 6
    side.slurm.down = False
    side.let_pass(20)
    assert side.checks == ["fabric.port_state"]


def test_observe_mode_publishes_nothing(tmp_path: Path) -> None:
    side = Side(tmp_path, mode="observe")
    side.look(DOWN)
    side.let_pass(60)
    assert side.slurm.calls == []


class CountingSlurm(FakeSlurm):
    """Counts requests by second of the time that passes."""

    def __init__(self, names: Sequence[str], time: Time) -> None:
        super().__init__()
        self.by_name = {name: SlurmNode(name=name, state="IDLE") for name in names}
        self.time = time
        self.seconds: Counter[int] = Counter()

    def _call(self, text: str) -> None:
        super()._call(text)
        self.seconds[int(self.time.now)] += 1


@pytest.mark.parametrize("controller", ["answers", "silent for a minute"])
def test_a_thousand_nodes_that_fail_in_one_second_make_two_requests_each_spread(
    tmp_path: Path, controller: str
) -> None:
    names = [f"gpu{i}" for i in range(1000)]
    time = Time()
    slurm = CountingSlurm(names, time)
    slurm.down = controller != "answers"
    config = Config(node=Node(state_dir=str(tmp_path)), breaker=Breaker(spread_s=SPREAD_S))

    def own(name: str) -> Reporter:
        return Reporter(config, slurm, lambda: name, time, time, name)

    reporters = [own(name) for name in names]
    for reporter in reporters:
        reporter.see([DOWN])
    for step in range(400):
        time.now += 0.25
        if step == 240:
            slurm.down = False
        if step % 120 == 0:
            for reporter in reporters:
                reporter.see([DOWN])
        for reporter in reporters:
            reporter.act()
    assert all(shown(node.comment) for node in slurm.by_name.values())
    assert len(slurm.made("update_node")) == 1000
    tries = 1 if controller == "answers" else 7
    assert len(slurm.made("nodes")) <= 1000 * tries
    assert max(slurm.seconds.values()) <= 520, slurm.seconds.most_common(3)


def test_unavailable_names_are_no_reason_to_raise(tmp_path: Path) -> None:
    side = Side(tmp_path)

    def no_name() -> str:
        raise SlurmUnavailable("no answer")

    side.reporter = Reporter(side.config, side.slurm, no_name, side.time, side.time, "gpu1")
    side.look(DOWN)
    side.let_pass(30)
    assert side.slurm.calls == []
