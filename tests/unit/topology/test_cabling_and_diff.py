"""Wrong cables, and what two topologies differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cases_health.commands import Answer, aistation
from tests.unit.topology.fabrics import Cables, pods, rails


def cabling(cables: Cables) -> list[dict[str, Any]]:
    answer = aistation("topology", "cabling", "-", "--json", input=cables.text())
    found: list[dict[str, Any]] = answer.json["findings"]
    assert answer.exit_code == (1 if found else 0)
    return found


def move(cables: Cables, hca: str, leaf: str) -> None:
    link = next(link for link in cables.links if link[2] == hca)
    cables.links[cables.links.index(link)] = (leaf, cables.port(leaf), *link[2:])


@pytest.mark.parametrize("made", [rails(), rails(groups=4, hosts=8, rails=8), pods()], ids=["rails", "wide", "pods"])
def test_nothing_is_said_of_good_cables(made: Cables) -> None:
    assert cabling(made) == []


def test_rails_swapped_on_one_host() -> None:
    made = rails(hosts=6)
    move(made, "gpu002|mlx5_1", "leaf1-3")
    move(made, "gpu002|mlx5_2", "leaf1-2")
    found = cabling(made)
    assert [(f["kind"], f["host"], f["rail"], f["switch"]) for f in found] == [
        ("rail", "gpu002", "mlx5_2", "leaf1-2"),
        ("rail", "gpu002", "mlx5_1", "leaf1-3"),
    ]
    assert "5 peers have mlx5_1 on leaf1-2" in found[1]["message"]


def test_a_rail_on_the_leaf_of_another_group() -> None:
    made = rails(hosts=6)
    move(made, "gpu002|mlx5_1", "leaf2-2")
    kinds = {(f["kind"], f["host"]) for f in cabling(made)}
    assert ("rail", "gpu002") in kinds


def test_a_missing_rail_and_the_leaf_with_a_port_less() -> None:
    made = rails(hosts=6)
    made.links.remove(next(link for link in made.links if link[2] == "gpu003|mlx5_0"))
    found = {f["kind"]: f for f in cabling(made)}
    assert set(found) == {"missing_rail", "ports"}
    assert found["missing_rail"]["host"] == "gpu003"
    assert found["missing_rail"]["rail"] == "mlx5_0"
    assert found["ports"]["switch"] == "leaf1-1"
    assert "5 ports to hosts" in found["ports"]["message"]


def test_a_missing_uplink() -> None:
    made = rails()
    made.links.remove(next(link for link in made.links if link[0] == "leaf1-1" and link[2] == "spine2"))
    (found,) = cabling(made)
    assert (found["kind"], found["switch"]) == ("uplinks", "leaf1-1")
    assert "1 of the cables to spine2, 7 of its peers have 2" in found["message"]


@pytest.mark.parametrize("slow", ["2xNDR", "1xNDR", "4xHDR", "4xSDR"])
def test_a_slow_host_link(slow: str) -> None:
    made = rails()
    index = next(i for i, link in enumerate(made.links) if link[2] == "gpu002|mlx5_1")
    made.links[index] = (*made.links[index][:4], slow)
    (found,) = cabling(made)
    assert (found["kind"], found["host"], found["rail"]) == ("speed", "gpu002", "mlx5_1")
    assert slow in found["message"]


def test_a_slow_trunk_is_told_once() -> None:
    made = rails(groups=2, rails=2, spines=4)
    index = next(i for i, link in enumerate(made.links) if link[2] == "spine3")
    made.links[index] = (*made.links[index][:4], "4xHDR")
    found = [f for f in cabling(made) if f["kind"] == "speed"]
    assert len(found) == 1
    assert "200 Gb/s" in found[0]["message"]


def diff(old: Path, new: Path, *options: object) -> Answer:
    return aistation("topology", "diff", old, new, *options)


OLD = "SwitchName=leaf1 Nodes=n[1-4]\nSwitchName=leaf2 Nodes=n[5-8]\nSwitchName=spine Switches=leaf[1-2]\n"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.conf"
    path.write_text(OLD, encoding="utf-8")
    return path


def test_order_and_spelling_are_no_difference(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.conf"
    new.write_text("\n".join(reversed(OLD.replace("n[5-8]", "n5,n[6-7],n8 # x").splitlines())), encoding="utf-8")
    answer = diff(old, new)
    assert (answer.exit_code, answer.output) == (0, "no difference\n")


def test_moved_new_gone_and_renamed(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.conf"
    new.write_text(
        "SwitchName=rack2 Nodes=n[5-8]\nSwitchName=leaf1 Nodes=n[1-2],n9\nSwitchName=leaf3 Nodes=n4\n"
        "SwitchName=spine Switches=leaf1,leaf3,rack2\n",
        encoding="utf-8",
    )
    answer = diff(old, new, "--json")
    assert answer.exit_code == 1
    assert answer.json == {
        "same": False,
        "kind": [],
        "added": ["leaf3"],
        "removed": [],
        "renamed": [{"from": "leaf2", "to": "rack2"}],
        "nodes_added": ["n9"],
        "nodes_removed": ["n3"],
        "nodes_moved": [{"node": "n4", "from": "leaf1", "to": "leaf3"}],
        "children": [{"switch": "spine", "gained": ["leaf3"], "lost": []}],
        "block_sizes": [],
    }
    assert "~ nodes n4: leaf1 -> leaf3" in diff(old, new).output


def test_what_is_cabled_against_what_slurm_believes(tmp_path: Path) -> None:
    cables = tmp_path / "fabric.txt"
    cables.write_text(rails().text(), encoding="utf-8")
    conf = tmp_path / "topology.conf"
    conf.write_text("SwitchName=a Nodes=gpu[001-003]\nSwitchName=b Nodes=gpu[004-008]\nSwitchName=t Switches=a,b\n")
    answer = diff(conf, cables, "--json")
    assert answer.json["nodes_moved"] == [{"node": "gpu004", "from": "b", "to": "a"}]
    assert answer.json["renamed"] == []


def test_block_sizes_differ(tmp_path: Path) -> None:
    paths = []
    for number, sizes in enumerate(("4,8", "4,16")):
        paths.append(tmp_path / f"{number}.conf")
        paths[-1].write_text(f"BlockName=b1 Nodes=n[1-4]\nBlockSizes={sizes}\n", encoding="utf-8")
    answer = diff(*paths)
    assert (answer.exit_code, answer.output) == (1, "~ block sizes: 4,8 -> 4,16\n")
