"""From cables to topology.conf: rails, pods, storage, strange cables and strange names."""

from __future__ import annotations

from pathlib import Path

import pytest

from aistation_slurm.topology.readers import topology_conf
from tests.unit.cases_health.commands import Answer, aistation
from tests.unit.topology.fabrics import Cables, pods, rails

SHARED = Path(__file__).resolve().parents[4] / "shared/captures/ibnetdiscover/large-fabric.out"


def imported(cables: Cables, *options: object) -> Answer:
    return aistation("topology", "import", "--from", "ibnetdiscover", "-", *options, input=cables.text())


def tree(cables: Cables, *options: object) -> dict[str, str]:
    """Switch -> what is below it, as the generated file says it."""
    answer = imported(cables, *options)
    assert answer.exit_code == 0, answer
    lines = [line for line in answer.output.splitlines() if not line.startswith("#")]
    pairs = [line.split(" ", 1) for line in lines]
    return {name.replace("SwitchName=", ""): below for name, below in pairs}


def test_rails_of_the_same_hosts_are_one_leaf() -> None:
    assert tree(rails()) == {
        "leaf1-1": "Nodes=gpu[001-004]",
        "leaf2-1": "Nodes=gpu[005-008]",
        "spine1": "Switches=leaf1-1,leaf2-1",
    }


def test_the_file_says_which_switches_a_line_stands_for() -> None:
    text = imported(rails()).output
    assert "# leaf1-1 stands for leaf1-[1-4]\n" in text
    assert "# spine1 stands for spine[1-2]\n" in text


def test_one_rail_only() -> None:
    assert tree(rails(), "--rail", "mlx5_2")["leaf1-3"] == "Nodes=gpu[001-004]"


def test_three_levels() -> None:
    assert tree(pods()) == {
        "pod1-leaf1": "Nodes=n[1-3]",
        "pod1-leaf2": "Nodes=n[4-6]",
        "pod2-leaf1": "Nodes=n[7-9]",
        "pod2-leaf2": "Nodes=n[10-12]",
        "pod1-spine1": "Switches=pod1-leaf[1-2]",
        "pod2-spine1": "Switches=pod2-leaf[1-2]",
        "core1": "Switches=pod1-spine1,pod2-spine1",
    }


def test_one_wrong_cable_changes_no_tree() -> None:
    wrong = rails(hosts=6)
    before = tree(wrong)
    leaf, port, hca, hca_port, speed = next(link for link in wrong.links if link[2] == "gpu001|mlx5_3")
    wrong.links.remove((leaf, port, hca, hca_port, speed))
    wrong.links.append(("leaf2-4", wrong.port("leaf2-4"), hca, hca_port, speed))
    assert tree(wrong) == before
    crossed = pods(leaves=4, spines=4)
    before = tree(crossed)
    crossed.trunk("pod1-leaf1", "pod2-spine1")
    assert tree(crossed) == before


def test_separate_fabrics_are_not_joined() -> None:
    both = rails(groups=1)
    for host in ("other1", "other2"):
        both.hca(both.switch("island") if "island" not in both.switches else "island", host, "mlx5_0")
    answer = imported(both)
    assert answer.exit_code == 0
    text = answer.output
    assert "SwitchName=island Nodes=other[1-2]\n" in text
    assert "island" not in text.split("Switches=")[1]


def test_rails_that_are_fabrics_of_their_own() -> None:
    made = Cables()
    for rail in range(2):
        spine = made.switch(f"r{rail}-spine")
        for group in range(2):
            leaf = made.switch(f"r{rail}-leaf{group}")
            for host in range(3):
                made.hca(leaf, f"n{group * 3 + host}", f"mlx5_{rail}")
            made.trunk(leaf, spine)
    assert tree(made) == {
        "r0-leaf0": "Nodes=n[0-2]",
        "r0-leaf1": "Nodes=n[3-5]",
        "r0-spine": "Switches=r0-leaf[0-1]",
    }


def test_a_storage_rail_joins_no_groups() -> None:
    made = rails(groups=3, hosts=4, rails=4)
    store = made.switch("storage-leaf")
    for host in range(12):
        made.hca(store, f"gpu{host + 1:03d}", "mlx5_9", "4xHDR")
    assert tree(made) == tree(rails(groups=3, hosts=4, rails=4))
    notes = imported(made, "--json").json["notes"]
    assert any("storage-leaf serves several groups of nodes" in note for note in notes)


def test_leaves_cabled_to_each_other_get_a_parent() -> None:
    made = Cables()
    for leaf in ("a", "b"):
        made.switch(leaf)
        for host in range(3):
            made.hca(leaf, f"{leaf}{host}", "mlx5_0")
    made.trunk("a", "b", 4)
    assert tree(made) == {"a": "Nodes=a[0-2]", "b": "Nodes=b[0-2]", "fabric1": "Switches=a,b"}


def test_a_single_switch_is_a_tree() -> None:
    made = Cables()
    made.switch("only")
    made.hca("only", "n1", "mlx5_0")
    assert tree(made) == {"only": "Nodes=n1"}


def test_the_managers_host_on_a_spine_gets_a_leaf_of_its_own() -> None:
    made = pods(pods=1, leaves=4, hosts=6)
    made.hca("pod1-spine1", "ufm1", "mlx5_0")
    found = tree(made)
    assert found["pod1-spine1-hosts"] == "Nodes=ufm1"
    assert found["pod1-spine1"] == "Switches=pod1-leaf[1-4],pod1-spine1-hosts"
    known = tree(made, "--nodes", "n[1-24]")
    assert "pod1-spine1-hosts" not in known


def test_hosts_that_slurm_does_not_have_are_left_out() -> None:
    made = rails(groups=1)
    made.hca("leaf1-1", "login1", "mlx5_0")
    assert tree(made, "--nodes", "gpu[001-004]")["leaf1-1"] == "Nodes=gpu[001-004]"
    notes = imported(made, "--json", "--nodes", "gpu[001-004]").json["notes"]
    assert "1 hosts of the fabric are not nodes of this cluster and were left out: login1" in notes


def test_full_host_names_become_slurms_names() -> None:
    made = Cables()
    made.switch("leaf")
    made.hca("leaf", "n1.cluster.example", "mlx5_0")
    made.hca("leaf", "n2.cluster.example", "mlx5_0")
    assert tree(made) == {"leaf": "Nodes=n[1-2]"}
    assert tree(made, "--nodes", "n1.cluster.example,n2")["leaf"] == "Nodes=n1.cluster.example,n2"


@pytest.mark.parametrize(
    ("description", "host"),
    [
        ("gpu1 mlx5_0", "gpu1"),
        ("gpu1 HCA-1", "gpu1"),
        ("gpu1 'mlx5_0'", "gpu1"),
        ("'gpu1' 'mlx5_0'", "gpu1"),
        ('gpu1 "mlx5_0"', "gpu1"),
        ("gpu1 mlx5_bond_0", "gpu1"),
        ("gpu1 hfi1_0", "gpu1"),
        ("gpu1 ibp12s0", "gpu1"),
        ("gpu1", "gpu1"),
        ("mlx5_0 gpu1", "gpu1"),
        ("MT4129 ConnectX7   Mellanox Technologies", ""),
        ("Mellanox Technologies Aggregation Node", ""),
        ("Quantum Mellanox Technologies", ""),
        ("mlx5_0", ""),
        ("localhost mlx5_0", ""),
        ("", ""),
        ("MF0;gateway:SKYWAY/U1", ""),
        ("gpu1 in rack 7", ""),
    ],
)
def test_host_names_out_of_node_descriptions(description: str, host: str) -> None:
    made = Cables()
    made.switch("leaf")
    made.hca("leaf", "other", "mlx5_0")
    made.hca("leaf", "x", "mlx5_1", description=description)
    nodes = tree(made)["leaf"].replace("Nodes=", "")
    assert nodes == ",".join(filter(None, (host, "other")))


def test_switches_with_the_same_name_or_none() -> None:
    made = Cables()
    made.switch("l1", "MF0;director:CS7500/L01/U1")
    made.switch("l2", "MF0;director:CS7500/L02/U1")
    made.switch("s1", "MF0;director:CS7500/S01/U1")
    made.switch("plain", "Quantum Mellanox Technologies")
    for number, leaf in enumerate(("l1", "l2", "plain")):
        made.hca(leaf, f"n{number}", "mlx5_0")
        made.trunk(leaf, "s1")
    found = tree(made)
    assert found["director-L01-U1"] == "Nodes=n0"
    assert found["director-L02-U1"] == "Nodes=n1"
    unmanaged = next(name for name, below in found.items() if below == "Nodes=n2")
    assert unmanaged.startswith("S-")
    assert found["director-S01-U1"].count(",") >= 1


def test_the_same_fabric_always_gives_the_same_text() -> None:
    made = rails(groups=3)
    texts = {
        aistation("topology", "import", "--from", "ibnetdiscover", "-", input=made.text(shuffle=seed)).output
        for seed in range(5)
    }
    assert len(texts) == 1


def test_base_keeps_every_line_that_means_the_same(tmp_path: Path) -> None:
    base = tmp_path / "topology.conf"
    old = (
        "# our tree\n"
        "SwitchName=rack2   Nodes=gpu005,gpu00[6-8]   # by the door\n"
        "switchname=rack1 Nodes=gpu001,\\\ngpu002,gpu004\n"
        "SwitchName=top Switches=rack1,rack2\n"
    )
    base.write_text(old, encoding="utf-8")
    text = imported(rails(), "--base", base).output
    assert text == old.replace(
        "switchname=rack1 Nodes=gpu001,\\\ngpu002,gpu004\n", "SwitchName=rack1 Nodes=gpu[001-004]\n"
    )
    assert imported(rails(groups=3), "--base", base).output.splitlines()[-2:] == [
        "# leaf3-1 stands for leaf3-[1-4]",
        "SwitchName=leaf3-1 Nodes=gpu[009-012]",
    ]


def test_base_of_itself_changes_nothing(tmp_path: Path) -> None:
    base = tmp_path / "topology.conf"
    base.write_text(imported(pods()).output, encoding="utf-8")
    assert imported(pods(), "--base", base).output == base.read_text(encoding="utf-8")


def test_yaml_of_a_fabric() -> None:
    text = imported(rails(), "--format", "yaml").output
    again = aistation("topology", "show", "-", "--from", "yaml", "--json", input=text).json
    assert {s["name"]: s["level"] for s in again["switches"]} == {"leaf1-1": 0, "leaf2-1": 0, "spine1": 1}
    assert again["valid"] is True


@pytest.mark.skipif(not SHARED.exists(), reason="the captures are not in every checkout")
def test_a_real_fabric() -> None:
    answer = aistation("topology", "import", "--from", "ibnetdiscover", SHARED)
    topology = topology_conf.read(answer.output).topology
    assert len(topology.switches) == 9
    assert topology.roots == ("A10-P1-IBSPINE-01",)
    assert "Mellanox" not in answer.output
    found = aistation("topology", "cabling", SHARED, "--json")
    assert found.exit_code == 1
    swapped = {(f["host"], f["rail"]) for f in found.json["findings"] if f["kind"] == "rail"}
    assert swapped == {("b08-p1-gpu-08-c01", "HCA-5"), ("b08-p1-gpu-08-c01", "HCA-6")}
