"""Readers never crash: for any text they answer or raise TopologyError. And 16,384 nodes are no work."""

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aistation_slurm.errors import TopologyError
from aistation_slurm.topology import svg
from aistation_slurm.topology.model import Reading, Switch, Topology, resolve_levels
from aistation_slurm.topology.plan import plan
from aistation_slurm.topology.readers import ibnetdiscover, lldp, scontrol, site_table, topology_conf, topology_yaml
from aistation_slurm.topology.shapes import reading_json
from aistation_slurm.topology.sources import sniff
from aistation_slurm.topology.validate import ClusterFacts, check
from aistation_slurm.topology.write import conf_text, merged_text, yaml_text
from tests.unit.topology.fabrics import rails

GENEROUS_S = 20.0
"""For a slow, shared machine; the figures are in the commit and in the bench."""

CONF = "SwitchName=leaf1 Nodes=gpu-[01-04,7] LinkSpeed=400\nSwitchName=leaf2 Nodes=n1,\\\nn2 # x\nSwitchName=s Switches=leaf[1-2]\n"
SHOWN = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nAggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-2] BlockSize=8\n"
YAML = yaml.safe_dump([{"topology": "t", "tree": {"switches": [{"switch": "s", "nodes": "n[1-2]"}]}}])
LLDP = '{"gpu1": {"lldp": {"interface": [{"eth0": {"chassis": {"leaf1": {"capability": []}}, "port": {"id": {}}}}]}}}'
TABLE = 'node,leaf,spine\n"n[1-2]",l1,s1\nn3,l2,s1\n'


def use(reading: Reading) -> None:
    problems = check(reading, ClusterFacts(("n1", "n2")), (22, 5))
    assert all(problem.text for problem in problems)
    assert reading_json(reading, problems)["kind"] == reading.topology.kind
    assert "</svg>" in svg.picture(reading.topology, "x")


READERS = {
    "conf": (CONF, topology_conf.read),
    "scontrol": (SHOWN, scontrol.read),
    "yaml": (YAML, topology_yaml.read),
    "lldp": (LLDP, lambda text: Reading((plan(lldp.read([(text, "x")])).topology,))),
    "table": (TABLE, site_table.read),
    "ibnetdiscover": (rails(1, 2, 2, 1).text(), lambda text: Reading((plan(ibnetdiscover.read(text)).topology,))),
}


@st.composite
def damaged(draw: st.DrawFn, good: str) -> str:
    """A good text with a few pieces cut, doubled, swapped or replaced by odd characters."""
    text = good
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(text)))
        end = draw(st.integers(at, min(len(text), at + 30)))
        odd = st.text(st.sampled_from('[]{},\\#="\n\t -0019an\0\udcff:;*&|>é'), max_size=6)
        text = text[:at] + draw(st.one_of(odd, st.just(text[at:end] * 2), st.just(""))) + text[end:]
    return text


@pytest.mark.parametrize("kind", list(READERS))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_readers_answer_or_say_why_not(kind: str, data: st.DataObject) -> None:
    good, read = READERS[kind]
    text = data.draw(st.one_of(damaged(good), st.text(max_size=200)))
    assert sniff(text, "x")
    try:
        reading = read(text)
    except TopologyError as exc:
        note = str(exc)
    else:
        use(reading)
        note = reading.source
    assert note is not None


@pytest.mark.parametrize(
    "text", ["[" * 100000, "- " * 20000 + "a", "{" * 50000, '{"a":' * 50000, "&a [*a]", "a: &x [*x, *x]", "\udcff"]
)
@pytest.mark.parametrize("kind", ["yaml", "lldp", "table"])
def test_deep_and_self_containing_texts(kind: str, text: str) -> None:
    try:
        reading = READERS[kind][1](text)
    except TopologyError:
        return
    assert not reading.topologies or reading.problems


NAMES = st.from_regex(r"[a-z]{1,3}(-[0-9]{1,3})?[0-9]{0,3}", fullmatch=True)


@st.composite
def trees(draw: st.DrawFn) -> Topology:
    """Leaves over disjoint nodes, and levels above them."""
    names = draw(st.lists(NAMES, min_size=4, max_size=30, unique=True))
    count = draw(st.integers(1, max(1, len(names) // 3)))
    leaves, nodes = names[:count], names[count:]
    per_leaf: dict[str, list[str]] = {leaf: [] for leaf in leaves}
    for node in nodes:
        per_leaf[draw(st.sampled_from(leaves))].append("n" + node)
    switches = [Switch("s" + leaf, tuple(below)) for leaf, below in per_leaf.items() if below]
    if len(switches) > 1 and draw(st.booleans()):
        switches.append(Switch("top", (), tuple(switch.name for switch in switches)))
    return Topology("tree", resolve_levels(switches))


@settings(max_examples=100, deadline=None)
@given(tree=trees())
def test_what_is_written_is_read_again(tree: Topology) -> None:
    def meaning(topology: Topology) -> dict[str, tuple[int, frozenset[str], frozenset[str]]]:
        return {s.name: (s.level, frozenset(s.nodes), frozenset(s.children)) for s in topology.switches}

    text = conf_text(tree)
    again = topology_conf.read(text)
    assert (meaning(again.topology), again.problems) == (meaning(tree), ())
    assert meaning(topology_yaml.read(yaml_text([tree])).topology) == meaning(tree)
    assert merged_text(tree, text) == text


def test_16384_nodes() -> None:
    switches = [Switch(f"leaf{i}", tuple(f"gpu{i * 16 + n:05d}" for n in range(16))) for i in range(1024)]
    pods = [Switch(f"spine{i}", (), tuple(f"leaf{i * 32 + n}" for n in range(32))) for i in range(32)]
    tree = Topology("tree", resolve_levels([*switches, *pods, Switch("core", (), tuple(pod.name for pod in pods))]))
    text = conf_text(tree)
    began = time.perf_counter()
    reading = topology_conf.read(text)
    read_s = time.perf_counter() - began
    problems = check(reading, ClusterFacts(tuple(f"gpu{n:05d}" for n in range(16384))))
    check_s = time.perf_counter() - began - read_s
    print(f"16384 nodes: read {read_s * 1000:.0f} ms, check {check_s * 1000:.0f} ms")
    assert problems == ()
    assert len(reading.topology.leaf_of) == 16384
    assert read_s + check_s < GENEROUS_S


def test_a_fabric_of_4096_hosts_with_8_rails() -> None:
    text = rails(groups=128, hosts=32, rails=8, spines=8).text()
    began = time.perf_counter()
    made = plan(ibnetdiscover.read(text))
    took = time.perf_counter() - began
    print(f"4096 hosts, 32768 cables to hosts, 1032 switches: {took * 1000:.0f} ms")
    assert len(made.topology.switches) == 129
    assert took < GENEROUS_S
