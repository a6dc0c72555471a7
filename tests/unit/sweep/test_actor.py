"""What a sweep does, over a made-up Slurm and made-up answers: order, rate, and what changes in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aistation_slurm.config import Config, Sweep, parse
from aistation_slurm.errors import StateFileError
from aistation_slurm.findings import Finding, Status
from aistation_slurm.slurm.client import Node, Reservation
from aistation_slurm.sweep.actor import Actor
from aistation_slurm.sweep.answers import NodeAnswer
from aistation_slurm.sweep.fanout import Answer
from aistation_slurm.sweep.lock import only_sweep
from aistation_slurm.sweep.targets import Target

OURS = "ais:gpu.ecc_uncorrectable GPU3 5 errors [7cad30]"
DRAIN = frozenset({"DRAIN"})
WELL = {"check": "gpu.ecc_uncorrectable", "status": "ok"}
SICK = {"check": "gpu.ecc_uncorrectable", "status": "fail"}


class Slurm:
    """Nodes that a test changes at will."""

    def __init__(self, *nodes: Node) -> None:
        self.at = {node.name: node for node in nodes}
        self.resumed: list[str] = []
        self.marked: list[Reservation] = []

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        return [node for node in self.at.values() if not names or node.name in names]

    def reservations(self) -> list[Reservation]:
        return self.marked

    def resume(self, name: str) -> None:
        self.resumed.append(name)
        self.at[name] = replace(self.at[name], flags=frozenset(), reason="")


class Site:
    """Every command asked of nodes, and what they answer."""

    def __init__(
        self, tmp_path: Path, slurm: Slurm, answer: Callable[[str, int], dict[str, Any]], **sweep: Any
    ) -> None:
        config = parse(f'node = {{ state_dir = "{tmp_path}" }}', "test")
        self.slurm, self.answer = slurm, answer
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.time = 0.0
        self.slept: list[float] = []
        self.config: Config = replace_sweep(config, Sweep(**sweep))
        self.targets = [Target(name, name, node) for name, node in slurm.at.items()]

    def ask(self, targets: Sequence[Target], words: Sequence[str]) -> dict[str, Answer]:
        found = {}
        for target in targets:
            self.asked.append((target.name, tuple(words)))
            if "--act" in words and self.answer(target.name, len(self.asked))["status"] == "fail":
                node = self.slurm.at[target.name]
                if not node.drained:
                    self.slurm.at[target.name] = replace(node, flags=DRAIN, reason=OURS)
            report = {"node": target.name, "findings": [self.answer(target.name, len(self.asked))]}
            found[target.name] = Answer(0, json.dumps(report).encode())
        return found

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def actor(self, dry: bool = False) -> Actor:
        return Actor(self.config, self.slurm, self, dry, sleep=self.sleep, monotonic=lambda: self.time)  # type: ignore[arg-type]


def replace_sweep(config: Config, sweep: Sweep) -> Config:
    import msgspec

    return msgspec.structs.replace(config, sweep=sweep)


def idle(*names: str) -> list[Node]:
    return [Node(name, "IDLE", partitions=("p",)) for name in names]


def drained(*names: str) -> list[Node]:
    return [Node(name, "IDLE", DRAIN, OURS, partitions=("p",)) for name in names]


def failed(*names: str) -> list[NodeAnswer]:
    return [NodeAnswer(name, (Finding("gpu.ecc_uncorrectable", Status.FAIL),)) for name in names]


NAMES = ("gpu1", "gpu2", "gpu3")


def test_drains_wait_for_the_rate(tmp_path: Path) -> None:
    site = Site(tmp_path, Slurm(*idle(*NAMES)), lambda name, n: SICK, drains_per_min=2)
    deeds = site.actor().drain(failed(*NAMES), site.targets)
    assert [deed.kind for deed in deeds] == ["drained"] * 3
    assert site.slept == [60.0]
    assert [words for _, words in site.asked] == [("check", "--act", "--json")] * 3


def test_a_dry_run_asks_and_changes_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, Slurm(*idle(*NAMES)), lambda name, n: SICK)
    assert {deed.kind for deed in site.actor(dry=True).drain(failed(*NAMES), site.targets)} == {"would drain"}
    assert site.asked == []


def test_slurm_is_read_again_before_each_drain(tmp_path: Path) -> None:
    slurm = Slurm(*idle(*NAMES))

    def answer(name: str, n: int) -> dict[str, Any]:
        slurm.at["gpu2"] = replace(slurm.at["gpu2"], flags=DRAIN, reason="bob")  # while gpu1 is asked
        return SICK

    deeds = Site(tmp_path, slurm, answer).actor().drain(failed("gpu1", "gpu2"), [Target(n, n) for n in NAMES])
    assert [(deed.kind, deed.node) for deed in deeds] == [("drained", "gpu1"), ("not drained", "gpu2")]
    assert slurm.at["gpu2"].reason == "bob"


def test_a_node_that_is_well_by_now_stays(tmp_path: Path) -> None:
    site = Site(tmp_path, Slurm(*idle("gpu1")), lambda name, n: WELL)
    (deed,) = site.actor().drain(failed("gpu1"), site.targets)
    assert (deed.kind, deed.text) == ("not drained", "the node did not: it is ok by now")


def test_passes_in_a_row_with_a_pause_and_the_last_one_publishes(tmp_path: Path) -> None:
    site = Site(tmp_path, Slurm(*drained("gpu1"), *idle("gpu2")), lambda name, n: WELL, passes=3, pass_every_s=7.0)
    (deed,) = site.actor().give_back(site.targets)
    assert (deed.kind, site.slurm.resumed, site.slept) == ("returned", ["gpu1"], [7.0, 7.0])
    full = ("check", "--profile", "full")
    assert [words for _, words in site.asked] == [(*full, "--json")] * 2 + [(*full, "--act", "--json")]


def test_one_bad_look_ends_it(tmp_path: Path) -> None:
    site = Site(tmp_path, Slurm(*drained("gpu1", "gpu2")), lambda name, n: SICK if n == 3 else WELL)
    deeds = {deed.node: deed for deed in site.actor().give_back(site.targets)}
    assert site.slurm.resumed == ["gpu2"]
    assert "pass 2 of 3: fails: gpu.ecc_uncorrectable" in deeds["gpu1"].text
    assert ("gpu1", "full") not in [(name, words[2]) for name, words in site.asked[4:]]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"reason": OURS + " JIRA-5"}, "reason was changed"),
        ({"reason": "bob"}, "reason was changed"),
        ({"flags": frozenset[str](), "reason": ""}, "somebody gave it back"),
        ({"state": "MIXED"}, "not empty"),
    ],
)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_whoever_changes_the_drain_meanwhile_has_the_node(
    tmp_path: Path, changed: dict[str, Any], words: str, at: int
) -> None:
    slurm = Slurm(*drained("gpu1"))

    def answer(name: str, n: int) -> dict[str, Any]:
        if n == at:
            slurm.at["gpu1"] = replace(slurm.at["gpu1"], **changed)
        return WELL

    site = Site(tmp_path, slurm, answer)
    (deed,) = site.actor().give_back(site.targets)
    assert (deed.kind, slurm.resumed) == ("not returned", [])
    assert words in deed.text
    assert len(site.asked) == at


def test_others_drains_are_not_even_looked_at(tmp_path: Path) -> None:
    slurm = Slurm(replace(drained("gpu1")[0], reason="memory test, bob"), replace(drained("gpu2")[0], reason=""))
    site = Site(tmp_path, slurm, lambda name, n: WELL)
    assert site.actor().give_back(site.targets) == []
    assert (site.asked, slurm.resumed) == ([], [])


def test_only_one_sweep_acts(tmp_path: Path) -> None:
    with (
        only_sweep(str(tmp_path)),
        pytest.raises(StateFileError, match="another sweep acts"),
        only_sweep(str(tmp_path)),
    ):
        pass
    with only_sweep(str(tmp_path)):
        pass
