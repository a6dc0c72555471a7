"""What differs between two topologies in what they mean; order, comments and spelling do not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import Block, Switch, Topology, natural

__all__ = ["Difference", "compare"]


@dataclass(frozen=True)
class Difference:
    """From an older topology to a newer one. renamed: the same nodes (or children) under another name."""

    kind: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    nodes_added: tuple[str, ...] = ()
    nodes_removed: tuple[str, ...] = ()
    nodes_moved: tuple[tuple[str, str, str], ...] = ()
    children: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    block_sizes: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return self != Difference()

    def as_json(self) -> dict[str, object]:
        return {
            "same": not self,
            "kind": list(self.kind),
            "added": list(self.added),
            "removed": list(self.removed),
            "renamed": [{"from": old, "to": new} for old, new in self.renamed],
            "nodes_added": list(self.nodes_added),
            "nodes_removed": list(self.nodes_removed),
            "nodes_moved": [{"node": node, "from": old, "to": new} for node, old, new in self.nodes_moved],
            "children": [{"switch": s, "gained": list(plus), "lost": list(minus)} for s, plus, minus in self.children],
            "block_sizes": [list(sizes) for sizes in self.block_sizes],
        }

    def lines(self) -> list[str]:
        """For a person: ``+`` is new, ``-`` is gone, ``~`` is changed."""
        out = [f"~ kind: {' -> '.join(self.kind)}"] if self.kind else []
        out += [f"- {name}" for name in self.removed]
        out += [f"+ {name}" for name in self.added]
        out += [f"~ {old} is now called {new}" for old, new in self.renamed]
        if self.nodes_removed:
            out.append(f"- nodes {_folded(self.nodes_removed)}")
        if self.nodes_added:
            out.append(f"+ nodes {_folded(self.nodes_added)}")
        ways: dict[tuple[str, str], list[str]] = {}
        for node, old, new in self.nodes_moved:
            ways.setdefault((old, new), []).append(node)
        out += [f"~ nodes {_folded(nodes)}: {old} -> {new}" for (old, new), nodes in ways.items()]
        for switch, gained, lost in self.children:
            parts = ([f"gains {_folded(gained)}"] if gained else []) + ([f"loses {_folded(lost)}"] if lost else [])
            out.append(f"~ {switch} {' and '.join(parts)}")
        if self.block_sizes:
            out.append(
                "~ block sizes: " + " -> ".join(",".join(map(str, sizes)) or "(none)" for sizes in self.block_sizes)
            )
        return out


def _folded(names: Sequence[str]) -> str:
    return hostlist.fold(sorted(names, key=natural))


def _units(topology: Topology) -> dict[str, Union[Switch, Block]]:
    found: dict[str, Union[Switch, Block]] = {}
    for unit in topology.units:
        found.setdefault(unit.name, unit)
    return found


def _meaning(unit: Union[Switch, Block], renamed: dict[str, str]) -> frozenset[tuple[str, str]]:
    children = unit.children if isinstance(unit, Switch) else ()
    below = [("switch", renamed.get(child, child)) for child in children]
    return frozenset([*below, *(("node", node) for node in unit.nodes)])


def compare(old: Topology, new: Topology) -> Difference:
    """``old`` to ``new``. A switch whose name is new and whose nodes or children are those of one that is gone was renamed."""
    before, after = _units(old), _units(new)
    gone = [name for name in before if name not in after]
    fresh = [name for name in after if name not in before]
    renamed: dict[str, str] = {}
    height = {name: unit.level if isinstance(unit, Switch) else 0 for name, unit in before.items()}
    same_now: dict[frozenset[tuple[str, str]], str] = {_meaning(after[name], {}): name for name in reversed(fresh)}
    for name in sorted(gone, key=lambda n: (height[n], natural(n))):
        meaning = _meaning(before[name], renamed)
        match = same_now.get(meaning)
        if meaning and match is not None and match not in renamed.values():
            renamed[name] = match
    children = []
    for name, unit in before.items():
        now = after.get(renamed.get(name, name))
        if isinstance(unit, Switch) and isinstance(now, Switch):
            had = {renamed.get(child, child) for child in unit.children}
            gained = tuple(sorted(set(now.children) - had, key=natural))
            lost = tuple(sorted(had - set(now.children), key=natural))
            if gained or lost:
                children.append((now.name, gained, lost))
    moved = []
    for node, leaf in old.leaf_of.items():
        now_on = new.leaf_of.get(node)
        if now_on is not None and now_on != renamed.get(leaf, leaf):
            moved.append((node, leaf, now_on))
    return Difference(
        kind=() if old.kind == new.kind else (old.kind, new.kind),
        added=tuple(sorted((name for name in fresh if name not in renamed.values()), key=natural)),
        removed=tuple(sorted((name for name in gone if name not in renamed), key=natural)),
        renamed=tuple(sorted(renamed.items(), key=lambda pair: natural(pair[0]))),
        nodes_added=tuple(sorted(set(new.leaf_of) - set(old.leaf_of), key=natural)),
        nodes_removed=tuple(sorted(set(old.leaf_of) - set(new.leaf_of), key=natural)),
        nodes_moved=tuple(sorted(moved, key=lambda m: natural(m[0]))),
        children=tuple(sorted(children, key=lambda c: natural(c[0]))),
        block_sizes=() if old.block_sizes == new.block_sizes else (old.block_sizes, new.block_sizes),
    )
