from __future__ import annotations

from typing import Optional

from aistation_slurm.healing.story import DrainStory
from aistation_slurm.slurm.client import Node

OURS = "ais:gpu.lost GPU3 0000:5d:00 Xid 79 [a1b2c3]"


def nodes(reason: str = "", state: str = "IDLE", drain: Optional[bool] = None) -> dict[str, Node]:
    flags = frozenset({"DRAIN"}) if (bool(reason) if drain is None else drain) else frozenset()
    return {"gpu1": Node("gpu1", state, flags, reason), "gpu2": Node("gpu2", "IDLE")}


def test_the_whole_story_of_a_node_that_is_healed_and_one_that_is_not() -> None:
    story = DrainStory("/var/lib/aistation/healing")
    told = []
    for look in (
        nodes(),
        nodes(OURS),
        nodes(OURS),
        nodes(f"{OURS} : reboot issued", "DOWN"),
        nodes(f"{OURS} : reboot issued : reboot timed out", "DOWN", drain=False),
        nodes(OURS),
        nodes(),
        nodes(OURS),
        nodes("ais:gpu.lost GPU3 0000:5d:00 inspect: 2 x reboot did not help; Xid 79 [a1b2c3]"),
        nodes("card is ordered"),
        nodes(),
    ):
        told += [(line.kind, line.text.partition(":")[0]) for line in story.look(look)]
    assert told == [
        ("drain", "drained"),
        ("heal", "reboot, the drain stays"),
        ("heal", "reboot, the drain stays"),
        ("heal", "the drain stands as before the reboot"),
        ("return", "back in service (was"),
        ("drain", "drained"),
        ("heal", "healing has given up"),
        ("drain", "somebody took our drain over"),
    ]


def test_what_changes_between_two_looks_is_told_together() -> None:
    story = DrainStory("/d")
    story.look(nodes())
    told = story.look(nodes(f"{OURS} : reboot issued", "DOWN"))
    assert [line.kind for line in told] == ["drain", "heal"]
    other = "ais:gpu.xid GPU1 x [ffffff]"
    assert [line.text for line in story.look(nodes(other))] == [f"drained: {other}"]


def test_what_stood_before_the_watchdog_began_is_no_news() -> None:
    story = DrainStory("/d")
    assert story.look(nodes(OURS)) == []
    assert story.look(nodes(OURS)) == []
    assert [line.kind for line in story.look(nodes())] == ["return"]


def test_the_inspection_names_the_evidence() -> None:
    story = DrainStory("/d")
    story.look(nodes(OURS))
    (line,) = story.look(nodes("ais:gpu.lost GPU3 0000:5d:00 inspect: x [a1b2c3]"))
    assert line.text.endswith("evidence in gpu1:/d/gpu1-a1b2c3.tar.gz")


def test_a_node_that_slurm_no_longer_has_says_nothing() -> None:
    story = DrainStory("/d")
    story.look(nodes(OURS))
    assert story.look({}) == []
