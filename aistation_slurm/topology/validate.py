"""Is this topology what Slurm will take, and is it what the site means? Pure: topologies and facts in, problems out.

Severity follows slurmctld: what is fatal or dropped there is an error here, what it only logs is a warning. Facts of
src/plugins/topology/{tree,block}, Slurm 22.05 to 26.05; where releases differ the newest one is the judge unless ``version``
names an older one, and the message says which releases refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import ERROR, WARNING, Block, Problem, Reading, Switch, Topology, natural
from aistation_slurm.topology.shapes import plural

__all__ = ["ClusterFacts", "check", "parse_version"]

NEWEST = (99, 99)
EMPTY_ALLOWED_SINCE = (25, 5)
SMALL_BLOCKS_SINCE = (25, 5)
NAME_CHECKED_SINCE = (24, 11)
MAX_NAME = 64
"""HOST_NAME_MAX on Linux."""
RANK_SINCE = {"tree": ("SwitchAsNodeRank", (23, 2)), "block": ("BlockAsNodeRank", (25, 11))}
SHOWN = 300
"""Characters of a list of names in a message."""


@dataclass(frozen=True)
class ClusterFacts:
    """What slurm.conf says. nodes: names in the file's order, None where not known; aliases: NodeHostname -> NodeName;
    dynamic: nodes may register that slurm.conf does not name."""

    nodes: Optional[tuple[str, ...]] = None
    aliases: tuple[tuple[str, str], ...] = ()
    plugin: Optional[str] = None
    params: tuple[str, ...] = ()
    dynamic: bool = False


def parse_version(text: str) -> tuple[int, int]:
    """``24.11.5`` -> (24, 11). Raises ValueError."""
    found = re.match(r"(?:slurm(?:-wlm)?[ -])?([0-9]{2})[.-]([0-9]{1,2})(?![0-9])", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a Slurm release such as 24.11")
    return int(found.group(1)), int(found.group(2))


def check(reading: Reading, facts: ClusterFacts, version: tuple[int, int] = NEWEST) -> tuple[Problem, ...]:
    """The reader's problems and all others, in the order of lines; those without a line come last."""
    found = list(reading.problems)
    for topology in reading.topologies:
        found += [_placed(problem, reading.source) for problem in _topology(topology, facts, version)]
    found += [_placed(problem, reading.source) for problem in _advice(reading, facts, version)]
    found.sort(key=lambda p: (p.file != reading.source, p.file, p.line is None, p.line or 0))
    return tuple(dict.fromkeys(found))


def _placed(problem: Problem, file: str) -> Problem:
    return Problem(problem.severity, problem.message, problem.line, problem.slurm, problem.hint, problem.file or file)


def _topology(topology: Topology, facts: ClusterFacts, version: tuple[int, int]) -> Iterator[Problem]:
    if topology.kind in ("tree", "block", "ring", "torus3d") and not topology.units:
        what = {"tree": "switches", "block": "blocks", "ring": "rings", "torus3d": "toruses"}[topology.kind]
        slurm = "fatal" if version >= EMPTY_ALLOWED_SINCE else "error"
        yield Problem(ERROR, f"No {what} configured", None, slurm, "Slurm does not use an empty topology")
        return
    if topology.kind == "flat":
        return
    if topology.kind == "tree":
        yield from _tree(topology, version)
    else:
        yield from _blocks(topology, version)
    yield from _names(topology, version)
    yield from _known_nodes(topology, facts)
    if topology.kind in RANK_SINCE and (topology.cluster_default or topology.name == "default"):
        yield from _rank_order(topology, facts)


def _tree(topology: Topology, version: tuple[int, int]) -> Iterator[Problem]:
    seen: dict[str, Switch] = {}
    for switch in topology.switches:
        if switch.name in seen:
            hint = f"first defined in line {seen[switch.name].line}; slurmctld refuses the file"
            yield Problem(ERROR, f"Switch ({switch.name}) has already been defined", switch.line, "fatal", hint)
        seen.setdefault(switch.name, switch)
        if switch.bare:
            message = f"switch {switch.name} has neither child switches nor nodes"
            yield _empty(message, switch.line, version, EMPTY_ALLOWED_SINCE)
        elif not switch.nodes and not switch.children:
            yield Problem(
                WARNING, f"switch {switch.name} has an empty list of nodes", switch.line, "", "remove the line"
            )
        elif switch.nodes and switch.children:
            message = f"switch {switch.name} has both child switches and nodes"
            yield Problem(ERROR, message, switch.line, "warning", "Slurm ignores its child switches")
        for child in _repeated(switch.children):
            yield Problem(WARNING, f"switch {switch.name} names its child {child} more than once", switch.line)
    yield from _cycles(topology)
    yield from _homes(topology)
    yield from _fabrics(topology)


def _empty(message: str, line: Optional[int], version: tuple[int, int], since: tuple[int, int]) -> Problem:
    release = f"{since[0]}.{since[1]:02d}"
    if version < since:
        return Problem(ERROR, message, line, "fatal", "remove the line, or give it what it lacks")
    return Problem(WARNING, message, line, "", f"Slurm before {release} refuses the file for it")


def _repeated(names: Sequence[str]) -> list[str]:
    if len(set(names)) == len(names):
        return []
    seen: set[str] = set()
    twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    return list(dict.fromkeys(twice))


def _cycles(topology: Topology) -> Iterator[Problem]:
    """Switches whose level cannot be told although all their children exist: they hang above themselves."""
    known = topology.by_name
    stuck = {s.name for s in topology.switches if s.level < 0}
    undefined = {s.name for s in topology.switches if any(c not in known or c == s.name for c in s.children)}
    while True:
        above = {name for name in stuck - undefined if any(c in undefined for c in known[name].children)}
        if not above:
            break
        undefined |= above
    cyclic = sorted(stuck - undefined, key=natural)
    if cyclic:
        message = f"Switch configuration is not a tree: {_list(cyclic)}"
        hint = "each of these is above itself, or the tree is more than 20 levels deep"
        yield Problem(ERROR, message, known[cyclic[0]].line, "fatal", hint)


def _homes(topology: Topology) -> Iterator[Problem]:
    homes: dict[str, list[Switch]] = {}
    for switch in topology.switches:
        for node in dict.fromkeys(switch.nodes):
            homes.setdefault(node, []).append(switch)
        twice = _repeated(switch.nodes)
        if twice:
            yield Problem(WARNING, f"switch {switch.name} names nodes more than once: {_list(twice)}", switch.line)
    many = {node: leaves for node, leaves in homes.items() if len({leaf.name for leaf in leaves}) > 1}
    if many:
        names = sorted({leaf.name for leaves in many.values() for leaf in leaves}, key=natural)
        hint = f"on {_list(names)}; a node with several rails belongs under one name for the whole rail group"
        line = max((leaf.line or 0 for leaves in many.values() for leaf in leaves[1:2]), default=0)
        yield Problem(WARNING, f"Multiple leaf switches contain nodes: {_list(many)}", line or None, "warning", hint)


def _fabrics(topology: Topology) -> Iterator[Problem]:
    """No switch above all nodes: valid, and right where fabrics really are separate."""
    if any(switch.level < 0 for switch in topology.switches):
        return
    reach: dict[str, frozenset[str]] = {}
    for switch in sorted(topology.switches, key=lambda s: s.level):
        below = [reach.get(child, frozenset()) for child in switch.children]
        reach.setdefault(switch.name, frozenset().union(switch.nodes, *below))
    everything = len(topology.leaf_of)
    if not everything or any(len(nodes) == everything for nodes in reach.values()):
        return
    nodes_of = [topology.fabric_nodes(fabric) for fabric in topology.fabrics]
    parts = [f"{_list(nodes)} ({plural(len(nodes), 'node')})" for nodes in nodes_of if nodes]
    if len(parts) == 1:
        hint = "the top switches share leaves, but none of them is above all nodes: add the level that joins them"
    else:
        hint = f"{len(parts)} separate fabrics, and no job can span two: {'; '.join(parts)}"
    yield Problem(WARNING, "no switch can reach all nodes through its descendants", None, "warning", hint)


def _blocks(topology: Topology, version: tuple[int, int]) -> Iterator[Problem]:
    word = {"block": "Block", "ring": "Ring", "torus3d": "Torus"}[topology.kind]
    seen: dict[str, Block] = {}
    homes: dict[str, list[str]] = {}
    for block in topology.blocks:
        if block.name in seen:
            hint = f"first defined in line {seen[block.name].line}; slurmctld refuses the file"
            yield Problem(ERROR, f"{word} ({block.name}) has already been defined", block.line, "fatal", hint)
        seen.setdefault(block.name, block)
        for node in dict.fromkeys(block.nodes):
            homes.setdefault(node, []).append(block.name)
        twice = _repeated(block.nodes)
        if twice:
            yield Problem(
                WARNING, f"{topology.kind} {block.name} names nodes more than once: {_list(twice)}", block.line
            )
    many = [node for node, blocks in homes.items() if len(set(blocks)) > 1]
    if many:
        yield Problem(
            WARNING, f"nodes are in more than one {topology.kind}: {_list(many)}", None, "", "each has one place"
        )
    if topology.kind == "block":
        yield from _block_sizes(topology, version)


def _block_sizes(topology: Topology, version: tuple[int, int]) -> Iterator[Problem]:
    filled = [block for block in topology.blocks if block.nodes]
    if not filled and not topology.block_sizes:
        message = "Blocks do not contain any nodes and the BlockSizes are not set"
        yield Problem(ERROR, message, None, "fatal", "give the blocks nodes, or the file BlockSizes")
        return
    base = topology.block_sizes[0] if topology.block_sizes else len(filled[0].nodes)
    for block in topology.blocks:
        size = len(block.nodes)
        if block.bare:
            yield _empty(f"block {block.name} has no nodes", block.line, version, EMPTY_ALLOWED_SINCE)
        elif not size and version >= SMALL_BLOCKS_SINCE:
            yield Problem(WARNING, f"block {block.name} has an empty list of nodes", block.line, "", "remove the line")
        elif size < base:
            message = f"block {block.name} has {size} nodes, fewer than the base block size {base}"
            yield _empty(message, block.line, version, SMALL_BLOCKS_SINCE)


def _names(topology: Topology, version: tuple[int, int]) -> Iterator[Problem]:
    """Names that are too long, and those that Slurm takes and then cannot use in lists."""
    for unit in topology.units:
        if len(unit.name) > MAX_NAME and topology.kind == "tree":
            refused = version >= NAME_CHECKED_SINCE
            message = f"SwitchName ({unit.name}) must be shorter than {MAX_NAME} chars"
            severity, slurm = (ERROR, "fatal") if refused else (WARNING, "")
            yield Problem(severity, message, unit.line, slurm, f"give it a name of at most {MAX_NAME} characters")
        if not unit.name:
            yield Problem(ERROR, "a switch or block without a name", unit.line, "fatal", "give it a name")
        elif re.search(r"[\[\]{},\s=#\\\"]", unit.name):
            message = f"name {unit.name!r} is taken literally and no list can name it"
            yield Problem(WARNING, message, unit.line, "", "one name a line: letters, digits, dash, dot and underscore")
        elif re.search(r"[0-9]{19,}\Z", unit.name):
            message = f"name {unit.name} ends in a number too large for Slurm's host lists"
            yield Problem(WARNING, message, unit.line, "", "Slurm may print another name: use fewer digits at the end")
        odd = [node for node in unit.nodes if re.search(r"[^\w.{}-]", node, re.ASCII)]
        if odd:
            yield Problem(WARNING, f"not names of nodes in {unit.name}: {_list(odd)}", unit.line, "warning")


def _known_nodes(topology: Topology, facts: ClusterFacts) -> Iterator[Problem]:
    if facts.nodes is None:
        return
    known, aliases = set(facts.nodes), dict(facts.aliases)
    named: set[str] = set()
    kind = "switch" if topology.kind == "tree" else topology.kind
    everything = False
    for unit in topology.units:
        here = {aliases.get(node, node) for node in unit.nodes if "{" not in node}
        everything = everything or any("{" in node for node in unit.nodes)
        named |= here
        unknown = sorted(here - known - {"ALL"}, key=natural)
        everything = everything or "ALL" in here - known
        if unknown:
            hint = "slurm.conf has no such NodeName; Slurm ignores them here"
            if facts.dynamic:
                hint = "not in slurm.conf; right only for nodes that register themselves (MaxNodeCount is set)"
            yield Problem(
                WARNING, f"Invalid hostnames in {kind} configuration: {_list(unknown)}", unit.line, "warning", hint
            )
    missing = [] if everything else [node for node in facts.nodes if node not in named]
    if missing:
        label = "switches lack" if topology.kind == "tree" else "Blocks lack"
        hint = "no switch has these nodes of slurm.conf: they never run a job together with others"
        yield Problem(WARNING, f"{label} access to {len(missing)} nodes: {_list(missing)}", None, "warning", hint)


def _rank_order(topology: Topology, facts: ClusterFacts) -> Iterator[Problem]:
    """Ranks follow the node table, which is sorted by name: names that alternate between leaves make every hop cross."""
    option, since = RANK_SINCE.get(topology.kind, ("", NEWEST))
    if not option or option.lower() in {param.lower() for param in facts.params}:
        return
    order = sorted(topology.leaf_of, key=natural)
    if not order:
        return
    leaves = [topology.leaf_of[node] for node in order]
    crossings = sum(1 for one, next_one in zip(leaves, leaves[1:]) if one != next_one)
    least = len(set(leaves)) - 1
    if crossings > least:
        where = next(i for i in range(1, len(leaves)) if leaves[i] != leaves[i - 1] and leaves[i] in leaves[:i])
        units = "leaves" if topology.kind == "tree" else "blocks"
        message = (
            f"node order breaks rank order: sorted by name, neighbours cross {crossings} times between {units} "
            f"where {least} would do (e.g. {order[where - 1]}, {order[where]})"
        )
        hint = (
            f"TopologyParam={option} (Slurm {since[0]}.{since[1]:02d} and newer) keeps the ranks of one leaf together"
        )
        if topology.kind == "block":
            hint = hint.replace("one leaf", "one block")
        yield Problem(WARNING, message, None, "", hint)


def _advice(reading: Reading, facts: ClusterFacts, version: tuple[int, int]) -> Iterator[Problem]:
    """TopologyPlugin and TopologyParam against what the file is."""
    topology = reading.topology
    params = {param.lower().split("=")[0]: param for param in facts.params}
    yaml = reading.source.endswith((".yaml", ".yml"))
    if facts.plugin is not None and not yaml and topology.kind != "flat":
        wanted = f"topology/{topology.kind}"
        if facts.plugin.lower() != wanted:
            missing = facts.plugin in ("", "topology/flat", "topology/default", "topology/none")
            what = "does not read this file" if missing else "reads this file by other rules"
            shown = facts.plugin or "(not set)"
            severity = WARNING if missing else ERROR
            slurm = "" if missing else "fatal"
            hint = f"set TopologyPlugin={wanted} in slurm.conf"
            yield Problem(severity, f"TopologyPlugin={shown} {what}", None, slurm, hint)
    if "routetree" in params and len(topology.fabrics) > 1:
        yield Problem(WARNING, "TopologyParam=RouteTree needs one connected tree", None, "", "remove RouteTree")
    if "dragonfly" in params and topology.kind == "tree":
        yield Problem(
            WARNING, "TopologyParam=Dragonfly: Slurm ignores --switches above 1", None, "", "remove it on a fat tree"
        )
    for kind, (option, since) in RANK_SINCE.items():
        if option.lower() in params and version < since:
            release = f"{since[0]}.{since[1]:02d}"
            yield Problem(WARNING, f"TopologyParam={option} has no effect before Slurm {release}", None, "", "")
        elif option.lower() in params and kind != topology.kind:
            yield Problem(WARNING, f"TopologyParam={option} is for topology/{kind}", None, "", "remove it")


def _list(names: object) -> str:
    """A hostlist, cut where it gets long."""
    given = [str(name) for name in names]  # type: ignore[attr-defined]
    text = hostlist.fold(sorted(given, key=natural))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(given)})"
