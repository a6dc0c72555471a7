"""topology.yaml (Slurm 25.05 and newer): several named topologies, each a tree, blocks, flat, rings or 3D toruses.

::

    - topology: topo1
      cluster_default: true
      tree:
        switches:
          - switch: sw_root
            children: s[1-2]
          - switch: s1
            nodes: node[01-02]

Read through PyYAML's composer, which keeps line numbers and makes no objects: see docs/decisions/0012.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Optional

import yaml

from aistation_slurm.topology.model import ERROR, WARNING, Block, Problem, Reading, Switch, Topology, resolve_levels
from aistation_slurm.topology.readers.conf_lines import Line, expand_names
from aistation_slurm.topology.readers.topology_conf import block_sizes, invalid_child

__all__ = ["read"]

_UNITS = {
    # kind: (key of its list, key of a unit's name, other keys of a unit)
    "tree": ("switches", "switch", ("children", "nodes")),
    "block": ("blocks", "block", ("nodes",)),
    "ring": ("rings", "ring", ("nodes",)),
    "torus3d": ("toruses", "name", ("nodes", "dims", "regions", "placements")),
}
_KINDS = (*_UNITS, "flat")
MAX_DEPTH = 100
"""A topology has seven levels at most."""
_TRUE = ("true", "yes", "on", "1")


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def say(self, severity: str, where: Any, message: str, slurm: str = "fatal", hint: str = "") -> None:
        line = None if where is None else where.start_mark.line + 1
        self.problems.append(Problem(severity, message, line, slurm, hint, self.file))

    def mapping(self, node: Any, what: str, known: tuple[str, ...]) -> dict[str, Any]:
        """Keys and value nodes of a mapping; the last of two equal keys counts; unknown ones are told and left out."""
        if not isinstance(node, yaml.MappingNode):
            self.say(ERROR, node, f"{what}: expected keys and values", hint=f"keys are {', '.join(known)}")
            return {}
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name not in known:
                hint = f"known keys are {', '.join(known)}"
                self.say(WARNING, key, f"unknown key {name or '(not a text)'} in {what}", "warning", hint)
                continue
            if name in found:
                self.say(WARNING, key, f"key {name} appears twice in {what}; the last one counts", "")
            found[name] = value
        return found

    def sequence(self, node: Any, what: str) -> list[Any]:
        """Slurm takes one mapping for a list of one."""
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        if isinstance(node, yaml.MappingNode):
            return [node]
        self.say(ERROR, node, f"{what}: expected a list", hint="start each entry with a dash")
        return []

    def text(self, node: Any, what: str) -> str:
        if node is None:
            return ""
        if not isinstance(node, yaml.ScalarNode):
            self.say(
                ERROR,
                node,
                f"{what}: expected a text, found a list or a mapping",
                hint="a hostlist such as node[01-08]",
            )
            return ""
        return "" if node.tag == "tag:yaml.org,2002:null" else str(node.value)

    def names(self, node: Any, what: str) -> tuple[str, ...]:
        hint = "a hostlist such as node[01-08]; in quotes if it starts with a bracket"
        return expand_names(self.text(node, what), lambda why: self.say(ERROR, node, f"{what}: {why}", hint=hint))


def read(text: str, file: str = "topology.yaml") -> Reading:
    """Every problem is in the answer, those of the YAML itself too; nothing is raised for bad text."""
    reader = _Reader(file)
    if _depth(text) > MAX_DEPTH:
        problem = Problem(ERROR, f"not a topology: more than {MAX_DEPTH} levels deep", None, "fatal", "", file)
        return Reading((), (problem,), file)
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        what = str(getattr(exc, "problem", None) or exc).split("\n")[0]
        problem = Problem(ERROR, f"not YAML: {what}", mark.line + 1 if mark else None, "fatal", "", file)
        return Reading((), (problem,), file)
    except (RecursionError, ValueError) as exc:
        return Reading((), (Problem(ERROR, f"not YAML that can be read: {exc}", None, "fatal", "", file),), file)
    if document is None:
        return Reading((), (Problem(ERROR, "no topology in it", None, "fatal", "see topology.yaml(5)", file),), file)
    topologies = [t for node in reader.sequence(document, "topologies") for t in _topology(reader, node)]
    seen: set[str] = set()
    for topology in topologies:
        if topology.name in seen:
            reader.say(WARNING, None, f"topology {topology.name} is defined twice: partitions get the first one", "")
        seen.add(topology.name)
    if sum(topology.cluster_default for topology in topologies) > 1:
        reader.say(WARNING, None, "several topologies have cluster_default: true: the first one counts", "")
    return Reading(tuple(topologies), tuple(reader.problems), file)


def _depth(text: str) -> int:
    """How deep lists and mappings can be nested, at most: PyYAML's time grows with the square of it."""
    depth = deepest = 0
    for mark in re.findall(r"[\[{\]}]", text):
        depth = depth + 1 if mark in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    runs = re.findall(r"(?m)^[ \t]*((?:[-?][ \t]+)+)", text)
    return max(deepest, max((len(run.split()) for run in runs), default=0))


def _topology(reader: _Reader, node: Any) -> Iterator[Topology]:
    values = reader.mapping(node, "a topology", ("topology", "cluster_default", *_KINDS))
    if not values:
        return
    name = reader.text(values.get("topology"), "topology")
    if not name:
        reader.say(ERROR, node, "a topology without a name", hint="its first key is topology: NAME")
    elif next(iter(values)) != "topology":
        reader.say(WARNING, node, f"topology {name}: the key topology must come first", "")
    default = reader.text(values.get("cluster_default"), "cluster_default").lower() in _TRUE
    kinds = [kind for kind in _KINDS if kind in values]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none of them"
        hint = f"give exactly one of {', '.join(_KINDS)}"
        reader.say(
            ERROR, node, f"topology {name} has {found}: the types are mutually exclusive and one is needed", hint=hint
        )
    if not kinds:
        return
    kind = kinds[0]
    if kind == "flat":
        yield Topology("flat", name=name or "default", cluster_default=default)
        return
    key, unit_name, keys = _UNITS[kind]
    inner = reader.mapping(values[kind], kind, (key, "block_sizes") if kind == "block" else (key,))
    units = reader.sequence(inner[key], key) if key in inner else []
    sizes = _sizes(reader, inner.get("block_sizes"))
    if kind == "tree":
        switches = resolve_levels([s for unit in units for s in _switch(reader, unit)])
        known = {switch.name for switch in switches}
        for switch in switches:
            for child in dict.fromkeys(switch.children):
                if child not in known or child == switch.name:
                    reader.problems.append(invalid_child(switch, child, reader.file))
        yield Topology("tree", switches, name=name or "default", cluster_default=default)
        return
    blocks = [b for unit in units for b in _block(reader, unit, kind, unit_name, keys)]
    yield Topology(kind, (), tuple(blocks), sizes, name or "default", default)


def _switch(reader: _Reader, node: Any) -> Iterator[Switch]:
    values = reader.mapping(node, "a switch", ("switch", "children", "nodes"))
    name = reader.text(values.get("switch"), "switch")
    if not name:
        reader.say(ERROR, node, "Can't create a switch without a name", hint="its key is switch: NAME")
        return
    nodes = reader.names(values.get("nodes"), f"Invalid node name in switch config ({name})")
    children = reader.names(values.get("children"), f"Invalid switches of {name}")
    bare = not {"nodes", "children"} & set(values)
    yield Switch(name, nodes, children, line=node.start_mark.line + 1, bare=bare)


def _block(reader: _Reader, node: Any, kind: str, key: str, keys: tuple[str, ...]) -> Iterator[Block]:
    values = reader.mapping(node, f"a {kind}", (key, *keys))
    name = reader.text(values.get(key), key)
    if not name:
        reader.say(ERROR, node, f"Can't create a {kind} without a name", hint=f"its key is {key}: NAME")
        return
    nodes = reader.names(values.get("nodes"), f"Invalid node name in {kind} config ({name})")
    if "regions" in values:
        for region in reader.sequence(values["regions"], "regions"):
            inside = reader.mapping(region, "a region", ("anchor", "dims", "nodes"))
            nodes += reader.names(inside.get("nodes"), f"Invalid node name in a region of {name}")
    yield Block(name, nodes, node.start_mark.line + 1, bare=not {"nodes", "regions"} & set(values))


def _sizes(reader: _Reader, node: Optional[Any]) -> tuple[int, ...]:
    if node is None:
        return ()
    items = [reader.text(item, "block_sizes") for item in reader.sequence(node, "block_sizes")]
    if not items:
        return ()
    return block_sizes(items, Line("", node.start_mark.line + 1, reader.file), reader.problems)
