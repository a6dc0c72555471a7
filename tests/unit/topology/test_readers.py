"""Every source that is not a fabric: lines of topology.conf, topology.yaml, scontrol's output, LLDP, a site's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aistation_slurm.topology.model import Problem
from aistation_slurm.topology.readers.conf_lines import join_lines, pair, read_lines
from tests.unit.cases_health.commands import Answer, aistation


def show(text: str, *options: object) -> Any:
    answer = aistation("topology", "show", "-", "--json", *options, input=text)
    assert answer.exit_code == 0, answer
    return answer.json


def validate(text: str, *options: object) -> Answer:
    return aistation("topology", "validate", "-", "--json", *options, input=text)


def fatal(text: str, *options: object) -> list[tuple[int, str]]:
    return [(p["line"], p["message"]) for p in validate(text, *options).json["problems"] if p["slurm"] == "fatal"]


def warnings(text: str, *options: object) -> list[str]:
    return [p["message"] for p in validate(text, *options).json["problems"] if p["severity"] == "warning"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a=1\nb=2\n", [(1, "a=1"), (2, "b=2"), (3, "")]),
        ("a=1 \\\nb=2\nc", [(1, "a=1 b=2"), (3, "c")]),
        ("a=1,\\  \t\n2", [(1, "a=1,2")]),
        ("a\\ # told\nb", [(1, "ab")]),
        ("a # b \\\nc", [(1, "a "), (2, "c")]),
        ("a,\\\n#b,\\\nc", [(1, "a,"), (3, "c")]),
        ("a\\\\\nb", [(1, "a\\"), (2, "b")]),
        ("a\\\\\\\nb", [(1, "a\\b")]),
        ("a\\#b # c", [(1, "a#b ")]),
        ("a\\\\#b", [(1, "a\\")]),
        ("a\\", [(1, "a")]),
        ("a\0b\nc", [(1, "a"), (2, "c")]),
        ("a\r\nb", [(1, "a\r"), (2, "b")]),
    ],
)
def test_lines_as_slurm_joins_them(text: str, lines: list[tuple[int, str]]) -> None:
    assert [(line.number, line.text) for line in join_lines(text, "x")] == lines


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Nodes=a b", ("Nodes", "a", " b")),
        (" nodes = a", ("nodes", "a", "")),
        ('Nodes="a b" x', ("Nodes", "a b", " x")),
        ('Nodes=""', ("Nodes", "", "")),
        ('Nodes="a b"c', ("Nodes", '"a', ' b"c')),
        ('Nodes="a', ("Nodes", '"a', "")),
        ("Nodes= Switches=a", ("Nodes", "Switches=a", "")),
        ("Nodes+=a", ("Nodes", "a", "")),
        ("Nodes=", None),
        ("no-des=a", None),
        ("nodes", None),
        ("=a", None),
    ],
)
def test_pairs_as_slurm_finds_them(text: str, found: tuple[str, str, str]) -> None:
    answer = pair(text)
    assert (answer and (answer.key, answer.value, answer.rest)) == found


def test_included_files_and_loops(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("SwitchName=b Nodes=n2\nInclude more.conf\n", encoding="utf-8")
    problems: list[Problem] = []
    text = "SwitchName=a Nodes=n1\ninclude  more.conf\nInclude none.conf\nInclude *.conf\n"
    lines = list(read_lines(text, "topology.conf", problems, folder=tmp_path))
    assert lines[0].text == "SwitchName=a Nodes=n1"
    assert {line.text for line in lines[1:]} == {"SwitchName=b Nodes=n2"}
    found = [problem.message for problem in problems]
    assert any("files deep" in message for message in found)
    assert any("none.conf" in message for message in found)
    assert any("does not support glob" in message for message in found)


@pytest.mark.parametrize(
    ("sizes", "good"),
    [("30,120", 1), ("4", 1), ("4,8,16", 1), ("18,36", 1), ("0", 0), ("x", 0), ("4,6", 0), ("4,12", 0), ("1,65536", 0)],
)
def test_block_sizes(sizes: str, good: int) -> None:
    assert bool(fatal(f"BlockName=b Nodes=n[1-30]\nBlockSizes={sizes}\n")) is not bool(good)


def test_old_releases_refuse_more() -> None:
    text = "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-6]\nBlockSizes=4\n"
    assert fatal(text) == []
    assert any("fewer than the base block size 4" in message for message in warnings(text))
    assert fatal(text, "--slurm-version", "24.11") == [(2, "block b2 has 2 nodes, fewer than the base block size 4")]
    bare = "SwitchName=a Nodes=n1\nSwitchName=b\n"
    assert fatal(bare) == []
    assert [line for line, _ in fatal(bare, "--slurm-version", "24.11.5")] == [2]
    assert fatal("BlockName=b Nodes=n1\nBlockLevels=0,1\n") == [(2, "unknown key BlockLevels at the start of the line")]
    assert aistation("topology", "validate", "-", "--slurm-version", "new", input=bare).exit_code == 2


def test_all_undefined_children_are_told_with_their_lines() -> None:
    text = "SwitchName=a Nodes=n1\n\nSwitchName=t Switches=a,b,c\n"
    assert fatal(text) == [
        (3, "Switch configuration t has invalid child (b)"),
        (3, "Switch configuration t has invalid child (c)"),
    ]


def test_rank_order_advice(tmp_path: Path) -> None:
    text = "SwitchName=a Nodes=n[1,3]\nSwitchName=b Nodes=n[2,4]\nSwitchName=t Switches=a,b\n"
    (message,) = warnings(text)
    assert "cross 3 times" in message
    conf = tmp_path / "slurm.conf"
    conf.write_text("TopologyPlugin=topology/tree\nTopologyParam=SwitchAsNodeRank\nNodeName=n[1-4]\n", encoding="utf-8")
    assert warnings(text, "--slurm-conf", conf) == []
    assert warnings(text.replace("[1,3]", "[1-2]").replace("[2,4]", "[3-4]")) == []
    assert warnings("SwitchName=a Nodes=n[9-10]\nSwitchName=b Nodes=n[1-8]\nSwitchName=t Switches=a,b\n") == []


def test_slurm_conf_says_which_plugin_and_names_hosts(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("NodeName=DEFAULT CPUs=2\nInclude nodes.conf\nTopologyParam=RouteTree\n", encoding="utf-8")
    (tmp_path / "nodes.conf").write_text("NodeName=n[1-2] NodeHostname=h[1-2]\nNodeName=n3\n", encoding="utf-8")
    text = "SwitchName=a Nodes=h1,n2\nSwitchName=b Nodes=n3\n"
    found = warnings(text, "--slurm-conf", conf)
    assert any("TopologyPlugin=(not set) does not read this file" in message for message in found)
    assert any("RouteTree needs one connected tree" in message for message in found)
    assert not any("Invalid hostnames" in message or "lack access" in message for message in found)


def test_strict_makes_warnings_problems() -> None:
    text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\n"
    assert validate(text).exit_code == 0
    assert validate(text, "--strict").exit_code == 1


YAML = """\
# two of them
- topology: topo1
  cluster_default: true
  tree:
    switches:
      - switch: sw_root
        children: s[1-2]
      - switch: s1
        nodes: node[01-02]
      - switch: s2
        nodes: node[03-04]
- topology: topo2
  block:
    block_sizes: [4, 16]
    blocks:
      - block: b1
        nodes: node[01-04]
- topology: topo3
  flat: true
- topology: topo4
  ring:
    rings: [{ring: ring0, nodes: "node[01-08]"}]
- topology: topo5
  torus3d:
    toruses:
      - name: pod1
        dims: {x: 2, y: 2, z: 1}
        nodes: node[01-04]
        placements: [{dims: {x: 1, y: 1, z: 1}}]
"""


def test_topology_yaml() -> None:
    shown = show(YAML)
    assert [t["kind"] for t in shown["topologies"]] == ["tree", "block", "flat", "ring", "torus3d"]
    assert shown["name"] == "topo1"
    assert shown["problems"] == []
    assert shown["switches"][0] == {
        "name": "sw_root",
        "level": 1,
        "nodes": [],
        "children": ["s1", "s2"],
        "link_speed": 1,
        "line": 6,
        "note": "",
    }
    assert shown["topologies"][1]["block_sizes"] == [4, 16]
    assert shown["topologies"][4]["blocks"][0]["nodes"] == ["node01", "node02", "node03", "node04"]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("s[1-2]", "s[1-3]", 6, "Switch configuration sw_root has invalid child (s3)"),
        ("nodes: node[03-04]", "nodes: [node03]", 11, "expected a text"),
        ("- switch: s2", "- nodes: x", 10, "Can't create a switch without a name"),
        ("  flat: true", "  flat: true\n  block: {blocks: []}", 18, "mutually exclusive"),
        ("block_sizes: [4, 16]", "block_sizes: [4, 12]", 14, "Invalid BlockSizes value: 12"),
        ("- topology: topo1", "- cluster_default: true\n  x: [", 5, "not YAML"),
    ],
)
def test_faults_of_topology_yaml(old: str, new: str, line: int, message: str) -> None:
    answer = validate(YAML.replace(old, new, 1), "--from", "yaml")
    assert answer.exit_code == 1
    errors = [(p["line"], p["message"]) for p in answer.json["problems"] if p["severity"] == "error"]
    assert any(message in text for _, text in errors), errors
    assert line in {number for number, _ in errors}


def test_scontrol_of_blocks_rings_and_toruses() -> None:
    rings = show("RingName=r0 Nodes=n[1-4] RingSize=4\n")
    assert (rings["kind"], rings["blocks"][0]["size"]) == ("ring", 4)
    torus = show(
        "TorusName=p Dims=2x2x1 Nodes=n[1-4]\n  TorusName=p PlacementDims=1x1x1(1) Anchors=4\n", "--from", "scontrol"
    )
    assert (torus["kind"], len(torus["blocks"])) == ("torus3d", 1)
    old = show(
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-3] \nSwitchName=s2 Level=1 LinkSpeed=1 Nodes=tux[0-3] Switches=s0 \n"
    )
    assert [(s["name"], s["level"], s["nodes"]) for s in old["switches"]] == [
        ("s0", 0, ["tux0", "tux1", "tux2", "tux3"]),
        ("s2", 1, []),
    ]
    empty = aistation("topology", "show", "-", "--from", "scontrol", input="")
    assert (empty.exit_code, "no topology in it" in empty.error) == (3, True)


def neighbour(switch: str, port: str, *, bridge: bool = True, speed: str = "") -> dict[str, Any]:
    capability = [{"type": "Bridge", "enabled": bridge}, {"type": "Router", "enabled": bridge}]
    shown: dict[str, Any] = {
        "via": "LLDP",
        "chassis": {switch: {"id": {"type": "mac", "value": "aa:bb"}, "capability": capability}},
        "port": {"id": {"type": "ifname", "value": port}, "descr": port},
    }
    if speed:
        shown["port"]["auto-negotiation"] = {"current": speed}
    return shown


def lldp(**interfaces: dict[str, Any]) -> dict[str, Any]:
    return {"lldp": {"interface": [{name: value} for name, value in interfaces.items()]}}


def test_lldp_of_hosts(tmp_path: Path) -> None:
    paths = []
    for number in range(1, 5):
        leaf = f"leaf{(number + 1) // 2}"
        paths.append(tmp_path / f"gpu{number}.json")
        both = lldp(eth0=neighbour(f"{leaf}-a.fabric", "swp1"), eth1=neighbour(f"{leaf}-b.fabric", "swp1"))
        paths[-1].write_text(json.dumps(both), encoding="utf-8")
    text = aistation("topology", "import", "--from", "lldp", *paths).output
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "SwitchName=leaf1-a Nodes=gpu[1-2]",
        "SwitchName=leaf2-a Nodes=gpu[3-4]",
    ]


def test_lldp_of_hosts_and_switches_in_one_object() -> None:
    every = {
        "gpu1": lldp(eth0=neighbour("leaf1", "swp1")),
        "gpu2": {"lldp": {"interface": {"eth0": neighbour("leaf2", "swp1")}}},
        "leaf1": lldp(swp1=neighbour("gpu1", "eth0", bridge=False), swp49=neighbour("spine1", "swp1")),
        "leaf2": lldp(swp1=neighbour("gpu2", "eth0", bridge=False), swp49=neighbour("spine1", "swp2")),
        "spine1": lldp(swp1=neighbour("leaf1", "swp49"), swp2=neighbour("leaf2", "swp49")),
    }
    answer = aistation("topology", "import", "--from", "lldp", "-", input=json.dumps(every))
    assert answer.output.splitlines()[1:] == [
        "SwitchName=leaf1 Nodes=gpu1",
        "SwitchName=leaf2 Nodes=gpu2",
        "SwitchName=spine1 Switches=leaf[1-2]",
    ]


def test_lldp_in_the_other_json_dialect(tmp_path: Path) -> None:
    path = tmp_path / "gpu1.json"
    interface = {
        "name": "eth0",
        "chassis": [{"id": [{"type": "mac", "value": "aa:bb"}], "name": [{"value": "leaf1"}]}],
        "port": [{"id": [{"type": "ifname", "value": "swp7"}]}],
    }
    path.write_text(json.dumps({"lldp": [{"interface": [interface]}]}), encoding="utf-8")
    assert aistation("topology", "import", "--from", "lldp", path).output.endswith("SwitchName=leaf1 Nodes=gpu1\n")


def test_lldp_without_a_neighbour(tmp_path: Path) -> None:
    path = tmp_path / "gpu1.json"
    path.write_text('{"lldp": {}}', encoding="utf-8")
    answer = aistation("topology", "import", "--from", "lldp", path)
    assert (answer.exit_code, "no LLDP neighbour" in answer.error) == (3, True)


def table(text: str, *options: object) -> Answer:
    return aistation("topology", "import", "--from", "table", "-", *options, input=text)


def test_a_table_of_the_site() -> None:
    text = "Node Name,x\n1,2\n"
    assert "no column for node" in table(text).error
    text = '\ufeffHost,Leaf Switch,Rack,Spine,Core\n"n[1-2]",l1,r1,s1,c\n# no\nn3,l2,r1,s1,c\nn4,l3,r2,s2,c\n'
    answer = table(text)
    assert answer.output.splitlines()[1:] == [
        "SwitchName=l1 Nodes=n[1-2]",
        "SwitchName=l2 Nodes=n3",
        "SwitchName=l3 Nodes=n4",
        "SwitchName=s1 Switches=l[1-2]",
        "SwitchName=s2 Switches=l3",
        "SwitchName=c Switches=s[1-2]",
    ]
    again = show(json.dumps(show(answer.output)), "--from", "table")
    assert again["node_count"] == 4


def test_blocks_of_a_table() -> None:
    text = "node,nvl_domain\nn1,b1\nn2,b1\nn3,b2\n"
    assert table(text).output.splitlines()[1:] == ["BlockName=b1 Nodes=n[1-2]", "BlockName=b2 Nodes=n3"]
    both = "node,leaf,block\nn1,l1,b1\nn2,l2,b1\n"
    kinds = show(table(both, "--format", "yaml").output, "--from", "yaml")["topologies"]
    assert [(t["kind"], t["cluster_default"]) for t in kinds] == [("tree", True), ("block", False)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node,leaf\nn1,l1\nn1,l2\n", "stdin:3: leaf of n1 is l2 here and l1 in line 2"),
        ("node,leaf,spine\nn1,l1,s1\nn2,l1,s2\n", "switch above of l1 is s2 here and s1"),
        ("node,leaf\nn[1,2],l1\n", "more cells than the header has"),
        ('[{"node": ["n1"], "leaf": "l1"}]', "expected a name, found list"),
        ('{"hosts": []}', 'neither "switches" nor "blocks"'),
        ("{", "not JSON"),
        ("node,leaf\n", "no row with a node"),
        ("node,leaf,spine\nn1,a,b\nn2,b,c\n", "b is a leaf here and a spine before"),
    ],
)
def test_faults_of_a_table(text: str, message: str) -> None:
    answer = table(text)
    assert answer.exit_code == 3
    assert message in answer.error


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SwitchName=a Nodes=n1\n", "tree"),
        ("# node, leaf\nBlockName=a Nodes=n1\n", "block"),
        ("SwitchName=a Level=0 LinkSpeed=1 Nodes=n1\n", "tree"),
        ("---\n- topology: a\n  flat: true\n", "flat"),
        ("node,leaf\nn1,l1\n", "tree"),
        ('[{"node": "n1", "leaf": "l1"}]', "tree"),
        ('{"n1": {"lldp": {"interface": {"e": {"chassis": {"l": {}}, "port": {}}}}}}', "tree"),
    ],
)
def test_the_text_tells_what_it_is(text: str, kind: str) -> None:
    shown = show(text)
    assert shown["kind"] == kind
    assert shown["valid"] is True


def test_files_that_are_not_there(tmp_path: Path) -> None:
    answer = aistation("topology", "validate", tmp_path / "none.conf")
    assert (answer.exit_code, "cannot be read: No such file" in answer.error) == (3, True)
    answer = aistation("topology", "validate", tmp_path)
    assert answer.exit_code == 3
