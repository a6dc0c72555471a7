"""The public bug reports of area topology, through ``aistation topology``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aistation_slurm.topology.readers import topology_conf
from tests.unit.cases_health.commands import Answer, aistation
from tests.unit.public_cases import case


def validate(text: str, *options: object) -> Answer:
    return aistation("topology", "validate", "-", "--json", *options, input=text)


def show(text: str) -> Any:
    return aistation("topology", "show", "-", "--json", input=text).json


def messages(answer: Answer, severity: str) -> list[str]:
    return [problem["message"] for problem in answer.json["problems"] if problem["severity"] == severity]


def switches(shown: Any) -> dict[str, Any]:
    return {switch["name"]: switch for switch in shown["switches"]}


def test_043_a_roce_port_is_no_broken_fabric(tmp_path: Path) -> None:
    known = case("043")["topology"]
    old = tmp_path / "topology.conf"
    old.write_text("SwitchName=leaf1 Nodes=gpu[1-2]\n", encoding="utf-8")
    answer = aistation("topology", "import", "--from", "ibnetdiscover", "-", "--output", old, input=known["input"])
    assert answer.exit_code == 3
    assert known["refused_naming"] in answer.error
    assert old.read_text(encoding="utf-8") == "SwitchName=leaf1 Nodes=gpu[1-2]\n"
    assert [path.name for path in tmp_path.iterdir()] == ["topology.conf"]


def test_060_aggregation_nodes_and_nameless_hcas() -> None:
    known = case("060")
    expected = known["expected"]
    answer = aistation("topology", "import", "--from", "ibnetdiscover", "-", "--json", input=known["input"])
    assert answer.exit_code == 0
    leaf = switches(answer.json)[expected["leaf"]]
    assert leaf["nodes"] == expected["leaf_nodes"]
    assert answer.json["leaves"][0]["uplinks"] == expected["uplinks"]
    assert set(expected["warnings"]) <= set(answer.json["notes"])
    text = aistation("topology", "import", "--from", "ibnetdiscover", "-", input=known["input"]).output
    assert not any(name in text for name in expected["never_a_node"])
    assert "SwitchName=ibleaf-01 Nodes=gpu-node-[01,04]\n" in text
    assert "SwitchName=ibspine-02 Switches=ibleaf-01\n" in text


def test_062_a_header_and_one_hca_are_no_topology(tmp_path: Path) -> None:
    known = case("062")
    target = tmp_path / "topology.conf"
    answer = aistation("topology", "import", "--from", "ibnetdiscover", "-", "--output", target, input=known["input"])
    assert answer.exit_code == 3
    assert known["expected"]["result"] in answer.error
    assert f"{known['expected']['hosts']} host" in answer.error
    assert target.exists() is known["expected"]["writes_topology_conf"]
    assert answer.output == ""


def test_064_undefined_child() -> None:
    known = case("064")
    answer = validate(known["input"])
    assert answer.exit_code == 1
    assert answer.json["valid"] is known["expected"]["valid"]
    (problem,) = answer.json["problems"]
    assert (problem["message"], problem["slurm"]) == (known["expected"]["error"], known["expected"]["severity"])
    assert problem["line"] == 1


def test_065_nodes_and_switches_in_one_line() -> None:
    known = case("065")
    answer = validate(known["input"])
    assert answer.json["valid"] is known["expected"]["valid"]
    found = messages(answer, "error")
    for wanted in known["expected"]["errors"]:
        assert any(all(part in message for part in wanted.split(": ")) for message in found), (wanted, found)
    assert switches(answer.json)["switch1"]["nodes"] == known["expected"]["nodes_of_switch1"]
    assert "rack1" not in switches(answer.json)


def test_067_a_comment_ends_a_continued_list() -> None:
    known = case("067")
    answer = validate(known["input"])
    assert answer.exit_code == 1
    (problem,) = answer.json["problems"]
    assert problem["line"] == 3
    assert "gpu-node-03" in problem["message"]
    assert switches(answer.json)["leaf1"]["nodes"] == known["expected"]["leaf1_nodes"]


def test_068_lists_are_split_outside_of_brackets_only() -> None:
    known = case("068")
    expected = known["expected"]
    shown = show(known["input"])
    found = switches(shown)
    assert found["swibfstl1"]["nodes"] == expected["swibfstl1"]
    assert found["swibcore01"]["children"] == expected["swibcore01_children"]
    assert found["swibcore01"]["nodes"] == []
    leaves = {node: name for name, switch in found.items() for node in switch["nodes"]}
    assert {node: leaves[node] for node in expected["leaf_of"]} == expected["leaf_of"]
    assert shown["node_count"] == 3
    assert shown["valid"] is True


def test_069_separate_fabrics_stay_apart() -> None:
    known = case("069")
    expected = known["expected"]
    answer = validate(known["input"])
    assert answer.exit_code == 0
    assert answer.json["valid"] is expected["valid"]
    assert answer.json["roots"] == expected["roots"]
    assert any(expected["warning"] in message for message in messages(answer, "warning"))
    assert max(fabric["nodes"] for fabric in answer.json["fabrics"]) == 16
    topology = topology_conf.read(known["input"]).topology
    assert topology.distance("node1", "node33") is expected["distance_node1_node33"]
    assert topology.distance("node1", "node9") == 2


def test_071_block_sizes_are_not_node_counts() -> None:
    known = case("071")
    expected = known["expected"]
    answer = validate(known["input"])
    assert answer.exit_code == 0
    assert answer.json["valid"] is expected["valid"]
    assert answer.json["kind"] == expected["kind"]
    assert len(answer.json["blocks"]) == expected["blocks"]
    assert len(answer.json["blocks"][0]["nodes"]) == expected["nodes_in_block1"]
    assert answer.json["block_sizes"] == expected["levels"]
    assert answer.json["problems"] == []


def test_072_aggregated_rows_are_no_blocks() -> None:
    known = case("072")
    shown = show(known["input"])
    assert [block["name"] for block in shown["blocks"]] == known["expected"]["blocks"]
    homes = {node: block["name"] for block in shown["blocks"] for node in block["nodes"]}
    assert homes["node05"] == known["expected"]["block_of"]["node05"]
    assert shown["node_count"] == 8


def test_074_unknown_and_missing_nodes_are_both_told(tmp_path: Path) -> None:
    known = case("074")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nTopologyPlugin=topology/tree\nNodeName=node-[1-3]\n", encoding="utf-8")
    (ignored,) = known["expected"]["placement_ignores"]
    answer = validate(f"SwitchName=leaf1 Nodes=node-[1-2],{ignored}\n", "--slurm-conf", conf)
    assert answer.exit_code == 0
    found = messages(answer, known["expected"]["severity"])
    assert any(ignored in message and "Invalid hostnames" in message for message in found)
    assert any("node-3" in message and "lack access" in message for message in found)


def test_076_empty_values_swallow_the_next_key() -> None:
    known = case("076")
    answer = validate("SwitchName=leaf1 Nodes= Switches=leaf2\nSwitchName=leaf2 Nodes=n1\n")
    assert answer.exit_code == 1
    assert any("Nodes= is empty and takes 'Switches=leaf2'" in message for message in messages(answer, "error"))
    table = '[{"node": "n1", "leaf": "leaf1", "spine": ""}, {"node": "n2", "leaf": "leaf2", "spine": ""}]'
    text = aistation("topology", "import", "--from", "table", "-", input=table).output
    assert known["expected"]["generator_omits_empty_keys"] is True
    assert text.splitlines()[1:] == ["SwitchName=leaf1 Nodes=n1", "SwitchName=leaf2 Nodes=n2"]
