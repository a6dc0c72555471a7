"""What Slurm believes about the network: switches or blocks over nodes. Immutable; every reader makes one of these.

::

    core1                 level 2
    ├── spine1            level 1
    │   ├── leaf1         level 0: nodes hang here
    │   └── leaf2
    └── spine2 ...

A fabric as it is cabled (ports, rails, speeds) is in ``fabric.py``; ``plan.py`` makes this out of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Optional, Union

__all__ = ["ERROR", "WARNING", "Block", "Problem", "Reading", "Switch", "Topology", "natural", "resolve_levels"]

ERROR, WARNING = "error", "warning"
UNRESOLVED = -1
MAX_PASSES = 20
"""slurmctld gives up ("not a tree") after so many passes over the file (switch_record.c)."""


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, Union[int, str], int], ...]:
    """Sort key in which node9 comes before node10, as in slurmctld's node table (strnatcmp)."""
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((0, int(p), len(p)) if p.isdigit() and p.isascii() else (1, p, 0) for p in parts if p)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    severity: ``error`` (Slurm does not start with it, or drops it) or ``warning``; slurm: Slurm's own reaction (fatal, error,
    warning, or "" where it says nothing); line: physical line, None where the file as a whole is meant.
    """

    severity: str
    message: str
    line: Optional[int] = None
    slurm: str = ""
    hint: str = ""
    file: str = ""

    @property
    def text(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part)
        slurm = f" [Slurm: {self.slurm}]" if self.slurm else ""
        hint = f"\n    {self.hint}" if self.hint else ""
        return f"{place}: {self.severity}: {self.message}{slurm}{hint}".lstrip(": ")

    def as_json(self) -> dict[str, object]:
        return {
            "severity": self.severity,
            "line": self.line,
            "message": self.message,
            "slurm": self.slurm,
            "hint": self.hint,
            "file": self.file,
        }


@dataclass(frozen=True)
class Switch:
    """One line ``SwitchName=``. level: 0 is a leaf, -1 cannot be told (undefined child, cycle).

    nodes: those that hang on this switch itself; children: switches below; link_speed: Slurm's unitless number;
    note: for a person, e.g. which real switches stand behind this name; bare: has neither of the keys, which Slurm before 25.05
    refuses (unlike an empty list).
    """

    name: str
    nodes: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    level: int = 0
    link_speed: int = 1
    line: Optional[int] = None
    note: str = ""
    bare: bool = False

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "level": self.level,
            "nodes": list(self.nodes),
            "children": list(self.children),
            "link_speed": self.link_speed,
            "line": self.line,
            "note": self.note,
        }


@dataclass(frozen=True)
class Block:
    """One line ``BlockName=`` (or a ring or a torus, by the kind of its topology)."""

    name: str
    nodes: tuple[str, ...] = ()
    line: Optional[int] = None
    note: str = ""
    bare: bool = False

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "nodes": list(self.nodes), "size": len(self.nodes), "line": self.line}


@dataclass(frozen=True)
class Topology:
    """One topology. kind: tree, block, flat, ring or torus3d; block_sizes in nodes, base size first."""

    kind: str
    switches: tuple[Switch, ...] = ()
    blocks: tuple[Block, ...] = ()
    block_sizes: tuple[int, ...] = ()
    name: str = "default"
    cluster_default: bool = False

    @property
    def units(self) -> tuple[Union[Switch, Block], ...]:
        """Everything that has a name and may have nodes."""
        return (*self.switches, *self.blocks)

    @cached_property
    def by_name(self) -> Mapping[str, Switch]:
        found: dict[str, Switch] = {}
        for switch in self.switches:
            found.setdefault(switch.name, switch)
        return found

    @cached_property
    def leaf_of(self) -> Mapping[str, str]:
        """Node -> the first leaf switch (or block) that names it."""
        found: dict[str, str] = {}
        for unit in self.units:
            for node in unit.nodes:
                found.setdefault(node, unit.name)
        return found

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node once, in the order of the file."""
        return tuple(self.leaf_of)

    @cached_property
    def parents(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for switch in self.switches:
            for child in dict.fromkeys(switch.children):
                found.setdefault(child, []).append(switch.name)
        return {child: tuple(parents) for child, parents in found.items()}

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """Switches without a parent, sorted by name."""
        names = [switch.name for switch in self.switches if switch.name not in self.parents]
        return tuple(sorted(dict.fromkeys(names), key=natural))

    @cached_property
    def fabrics(self) -> tuple[frozenset[str], ...]:
        """Switch names by connected fabric, largest in nodes first. A job cannot span two of them."""
        root: dict[str, str] = {switch.name: switch.name for switch in self.switches}

        def find(name: str) -> str:
            while root[name] != name:
                root[name] = root[root[name]]
                name = root[name]
            return name

        for switch in self.switches:
            for child in switch.children:
                if child in root:
                    root[find(child)] = find(switch.name)
        groups: dict[str, set[str]] = {}
        for name in root:
            groups.setdefault(find(name), set()).add(name)
        sized = [(self._size(names), min(names, key=natural), frozenset(names)) for names in groups.values()]
        return tuple(names for _, _, names in sorted(sized, key=lambda g: (-g[0], natural(g[1]))))

    def _size(self, names: Iterable[str]) -> int:
        return len({node for name in names for node in self.by_name[name].nodes})

    def fabric_nodes(self, fabric: Iterable[str]) -> tuple[str, ...]:
        wanted = frozenset(fabric)
        return tuple(node for node, leaf in self.leaf_of.items() if leaf in wanted)

    def distance(self, one: str, other: str) -> Optional[int]:
        """Links between the leaves of two nodes: 0 on the same leaf, 2 over one spine; None when nothing joins them.

        Raises KeyError for a node that no switch has.
        """
        start, goal = self.leaf_of[one], self.leaf_of[other]
        seen, front, steps = {start}, [start], 0
        while front:
            if goal in front:
                return steps
            near = {n for name in front for n in (*self.parents.get(name, ()), *self._children(name))}
            front, steps = sorted(near - seen), steps + 1
            seen.update(front)
        return None

    def _children(self, name: str) -> tuple[str, ...]:
        switch = self.by_name.get(name)
        return tuple(child for child in switch.children if child in self.by_name) if switch else ()


@dataclass(frozen=True)
class Reading:
    """What a reader found. A file of Slurm's before 25.05, and every other source, holds one topology."""

    topologies: tuple[Topology, ...]
    problems: tuple[Problem, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def topology(self) -> Topology:
        """The cluster's default: the first one marked so, else the first."""
        marked = [topology for topology in self.topologies if topology.cluster_default]
        return (marked or list(self.topologies) or [Topology("flat")])[0]


def resolve_levels(switches: Sequence[Switch]) -> tuple[Switch, ...]:
    """The same switches with their levels, found as slurmctld does: a switch is one above its highest child.

    Level -1 stays on a switch above an undefined child or in a cycle.
    """
    levels: dict[str, int] = {}
    for switch in switches:
        if not switch.children:
            levels.setdefault(switch.name, 0)
    waiting = [switch for switch in switches if switch.children]
    for _ in range(MAX_PASSES + 1):
        left = []
        for switch in waiting:
            below = [levels.get(child, UNRESOLVED) for child in switch.children]
            if UNRESOLVED in below:
                left.append(switch)
            else:
                levels.setdefault(switch.name, 1 + max(below))
        if not left or len(left) == len(waiting):
            break
        waiting = left
    return tuple(replace(switch, level=levels.get(switch.name, UNRESOLVED)) for switch in switches)
