"""From a fabric as it is cabled to the tree that Slurm can use. Pure and deterministic.

Slurm wants each node below one leaf and each switch below one parent. A rail-optimised fabric gives a node one leaf per rail, and a
fat tree gives a leaf many spines. So leaves that serve the same nodes become one leaf switch of Slurm's, and spines above the
same leaves one parent; a few wrong cables must not change that, hence majorities decide. Separate fabrics stay separate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from aistation_slurm.errors import TopologyError
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.fabric import Fabric, FabricSwitch, SwitchLink
from aistation_slurm.topology.model import Switch, Topology, natural, resolve_levels

__all__ = ["Group", "Plan", "cluster", "plan", "select_hosts"]

MAJORITY = 0.5
"""Two sets belong together when they share more than this of the smaller one."""


@dataclass(frozen=True)
class Group:
    """Real switches (ids, and their names) that Slurm sees as one. uplinks: cables to each real switch above, by name."""

    name: str
    members: tuple[str, ...]
    level: int
    nodes: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    uplinks: Mapping[str, int] = field(default_factory=dict)
    member_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """topology: for Slurm; groups: how it came about; notes: for a person."""

    topology: Topology
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()


@dataclass
class _Cluster:
    items: list[str]
    votes: Counter[str]

    def core(self) -> frozenset[str]:
        return frozenset(name for name, count in self.votes.items() if 2 * count >= len(self.items))


def cluster(sets: Mapping[str, frozenset[str]]) -> list[tuple[tuple[str, ...], Counter[str]]]:
    """Items whose sets are mostly the same, with how many of them name each element; larger sets decide first.

    Deterministic: ties go by count and then by name.
    """
    same: dict[frozenset[str], list[str]] = {}
    for item in sorted(sets, key=natural):
        same.setdefault(sets[item], []).append(item)
    order = sorted(same, key=lambda s: (-len(s), -len(same[s]), natural(same[s][0])))
    found: list[_Cluster] = []
    having: dict[str, list[int]] = {}
    for elements in order:
        near = {index for element in elements for index in having.get(element, ())}
        best, best_share = -1, MAJORITY
        for index in sorted(near):
            core = found[index].core()
            share = len(core & elements) / max(1, min(len(core), len(elements)))
            if share > best_share:
                best, best_share = index, share
        if best < 0:
            best = len(found)
            found.append(_Cluster([], Counter()))
        found[best].items += same[elements]
        for element in elements:
            found[best].votes[element] += len(same[elements])
            if best not in having.setdefault(element, []):
                having[element].append(best)
    return [(tuple(sorted(c.items, key=natural)), c.votes) for c in found]


def select_hosts(fabric: Fabric, known: Optional[Iterable[str]], rails: Sequence[str] = ()) -> Fabric:
    """The same fabric with Slurm's names for its hosts, and without the hosts (and rails) that Slurm has nothing to do with.

    known: names of nodes in slurm.conf. Without them a host keeps the part before its first dot.
    """
    names = set(known) if known is not None else None
    left_out: set[str] = set()
    kept = []
    for link in fabric.host_links:
        short = link.host.split(".")[0]
        host = short if names is None else next((n for n in (link.host, short) if n in names), "")
        if not host:
            left_out.add(short)
        elif not rails or link.rail in rails:
            kept.append(replace(link, host=host))
    notes = list(fabric.notes)
    if left_out:
        folded = hostlist.fold(sorted(left_out, key=natural))
        notes.append(f"{len(left_out)} hosts of the fabric are not nodes of this cluster and were left out: {folded}")
    return replace(fabric, host_links=tuple(kept), notes=tuple(notes))


def plan(fabric: Fabric, base: Optional[Topology] = None) -> Plan:
    """The tree of ``fabric``. base: an existing tree whose names stay where most of a switch's nodes stay.

    Raises TopologyError when no host hangs on a switch.
    """
    if not fabric.host_links:
        raise TopologyError(
            f"no host found on any of {len(fabric.switches)} switches: do the HCAs' node descriptions name their hosts, "
            "and are these the nodes of slurm.conf?"
        )
    notes = list(fabric.notes)
    fabric = _hosts_off_spines(fabric, notes)
    units, shared = _units(fabric, notes)
    levels: list[list[Group]] = [units]
    placed = {member for group in units for member in group.members} | shared
    while True:
        upper = _above(fabric, levels[-1], placed, len(levels))
        if not upper:
            break
        levels.append(upper)
        placed |= {member for group in upper for member in group.members}
    groups = [group for level in levels for group in level]
    groups = _join_roots(fabric, groups, notes)
    groups = _named(fabric, groups, base)
    switches = resolve_levels([Switch(g.name, g.nodes, g.children, note=_note(fabric, g)) for g in groups])
    return Plan(Topology("tree", switches), tuple(groups), tuple(dict.fromkeys(notes)))


def _note(fabric: Fabric, group: Group) -> str:
    if len(group.members) < 2:
        return ""
    return f"stands for {hostlist.fold(sorted((fabric.name(m) for m in group.members), key=natural))}"


def _hosts_off_spines(fabric: Fabric, notes: list[str]) -> Fabric:
    """A host on a spine (a fabric manager, a storage gateway) gets a leaf of its own below that spine.

    Slurm takes no switch with both nodes and switches. A spine is a switch with fewer hosts than neighbours that have more.
    """
    hosts = {switch: len(on) for switch, on in fabric.hosts_on.items()}
    spines = set()
    for switch, count in hosts.items():
        larger = sum(1 for near in fabric.neighbours[switch] if hosts.get(near, 0) > count)
        if larger >= 2 and larger > count:
            spines.add(switch)
    if not spines:
        return fabric
    taken = {switch.name for switch in fabric.switches}
    extra, links = [], []
    for switch in sorted(spines):
        name = next(
            n for n in (f"{fabric.name(switch)}-hosts{i or ''}" for i in range(len(taken) + 1)) if n not in taken
        )
        extra.append(FabricSwitch(f"{switch}/hosts", name))
        links.append(SwitchLink(f"{switch}/hosts", "0", switch, "0"))
        folded = hostlist.fold(sorted(fabric.hosts_on[switch], key=natural))
        notes.append(f"{folded} on {fabric.name(switch)}, which has switches below it: shown as leaf {name}")
    moved = tuple(replace(h, switch=f"{h.switch}/hosts") if h.switch in spines else h for h in fabric.host_links)
    return Fabric((*fabric.switches, *extra), moved, (*fabric.switch_links, *links), fabric.notes)


def _units(fabric: Fabric, notes: list[str]) -> tuple[list[Group], set[str]]:
    """Nodes that share their leaves, and leaves that several such groups share (a storage rail): those are left out."""
    leaves_of: dict[str, set[str]] = {}
    for link in fabric.host_links:
        leaves_of.setdefault(link.host, set()).add(link.switch)
    clusters = cluster({host: frozenset(leaves) for host, leaves in leaves_of.items()})
    strong: dict[str, list[int]] = {}
    best: dict[str, tuple[int, int]] = {}
    for index, (hosts, votes) in enumerate(clusters):
        for leaf, count in votes.items():
            if 2 * count >= len(hosts):
                strong.setdefault(leaf, []).append(index)
            if count > best.get(leaf, (0, 0))[0]:
                best[leaf] = (count, index)
    own: dict[int, list[str]] = {}
    several = {leaf for leaf, indexes in strong.items() if len(indexes) > 1}
    for leaf, (_, index) in best.items():
        if leaf not in several:
            own.setdefault(index, []).append(leaf)
    for leaf in sorted(several):
        if any(index not in own for index in strong[leaf]):
            # some nodes have no other leaf: it stays with those that use it most
            own.setdefault(best[leaf][1], []).append(leaf)
    kept = {leaf for leaves in own.values() for leaf in leaves}
    for leaf in sorted(several - kept, key=lambda s: natural(fabric.name(s))):
        notes.append(
            f"{fabric.name(leaf)} serves several groups of nodes (a storage rail?) and was left out of the tree"
        )
    groups = []
    for index, (hosts, votes) in enumerate(clusters):
        members = own.get(index) or [max(votes, key=lambda leaf: (votes[leaf], leaf))]
        names = tuple(sorted(members, key=lambda s: natural(fabric.name(s))))
        groups.append(Group(fabric.name(names[0]), names, 0, nodes=hosts))
    return _distinct(groups), several - kept


def _distinct(groups: list[Group]) -> list[Group]:
    """Names used once: two groups on one leaf (nodes with and without a second rail) become one."""
    merged: dict[str, Group] = {}
    for group in groups:
        before = merged.get(group.name)
        if before is not None:
            members = tuple(dict.fromkeys((*before.members, *group.members)))
            nodes = tuple(sorted({*before.nodes, *group.nodes}, key=natural))
            group = replace(before, members=members, nodes=nodes)
        merged[group.name] = group
    return sorted(merged.values(), key=lambda g: natural(g.name))


def _above(fabric: Fabric, below: Sequence[Group], placed: set[str], level: int) -> list[Group]:
    owner = {member: group.name for group in below for member in group.members}
    sets: dict[str, frozenset[str]] = {}
    for switch in fabric.by_id:
        children = frozenset(owner[near] for near in fabric.neighbours[switch] if near in owner)
        if children and switch not in placed:
            sets[switch] = children
    clusters = cluster({fabric.name(s): children for s, children in sets.items()})
    ids = {fabric.name(s): s for s in sets}
    best: dict[str, tuple[int, int]] = {}
    for index, (_, votes) in enumerate(clusters):
        for child, count in votes.items():
            if count > best.get(child, (0, 0))[0]:
                best[child] = (count, index)
    groups = []
    for index, (names, _) in enumerate(clusters):
        below_it = tuple(sorted((child for child, (_, best_index) in best.items() if best_index == index), key=natural))
        members = tuple(ids[name] for name in names)
        if below_it:
            groups.append(Group(names[0], members, level, children=below_it))
    return sorted(groups, key=lambda g: natural(g.name))


def _join_roots(fabric: Fabric, groups: list[Group], notes: list[str]) -> list[Group]:
    """A parent over roots that cables do join (leaves cabled to each other, pods with one link); never over separate fabrics."""
    component: dict[str, int] = {}
    for start in fabric.by_id:
        if start in component:
            continue
        number, stack = len(component), [start]
        while stack:
            switch = stack.pop()
            if switch not in component:
                component[switch] = number
                stack.extend(fabric.neighbours[switch])
    children = {child for group in groups for child in group.children}
    roots: dict[int, list[Group]] = {}
    for group in groups:
        if group.name not in children:
            roots.setdefault(component[group.members[0]], []).append(group)
    taken = {group.name for group in groups}
    joined = list(groups)
    for several in [found for found in roots.values() if len(found) > 1]:
        names = tuple(sorted((group.name for group in several), key=natural))
        name = next(n for n in (f"fabric{i}" for i in range(1, len(taken) + 2)) if n not in taken)
        taken.add(name)
        joined.append(Group(name, (), 1 + max(group.level for group in several), children=names))
        notes.append(f"{hostlist.fold(names)} are cabled to each other without a switch above them: joined as {name}")
    return joined


def _named(fabric: Fabric, groups: list[Group], base: Optional[Topology]) -> list[Group]:
    """Groups with their uplinks, and with the names that ``base`` has for switches over mostly the same nodes."""
    renamed = _base_names(groups, base) if base is not None else {}
    found = []
    owned = {member for group in groups for member in group.members}
    for group in groups:
        mine = set(group.members)
        ups: Counter[str] = Counter()
        for member in group.members:
            for near, count in fabric.neighbours[member].items():
                if near in owned and near not in mine:
                    ups[near] += count
        found.append((group, ups))
    level = {member: group.level for group in groups for member in group.members}
    return [
        replace(
            group,
            name=renamed.get(group.name, group.name),
            member_names=tuple(fabric.name(m) for m in group.members),
            children=tuple(sorted((renamed.get(c, c) for c in group.children), key=natural)),
            uplinks={
                fabric.name(n): ups[n]
                for n in sorted(ups, key=lambda s: natural(fabric.name(s)))
                if level[n] > group.level
            },
        )
        for group, ups in found
    ]


def _base_names(groups: list[Group], base: Topology) -> dict[str, str]:
    below: dict[str, frozenset[str]] = {}
    for group in sorted(groups, key=lambda g: g.level):
        below[group.name] = frozenset(group.nodes).union(*[below[child] for child in group.children])
    old: dict[str, frozenset[str]] = {}
    for switch in sorted(base.switches, key=lambda s: s.level):
        old.setdefault(switch.name, frozenset(switch.nodes).union(*(old.get(c, frozenset()) for c in switch.children)))
    levels = {switch.name: switch.level for switch in base.switches}
    index: dict[tuple[int, str], list[str]] = {}
    for name, nodes in old.items():
        for node in nodes:
            index.setdefault((levels[name], node), []).append(name)
    wishes = []
    for group in groups:
        votes: Counter[str] = Counter()
        for node in below[group.name]:
            votes.update(index.get((group.level, node), ()))
        for name, count in votes.items():
            if 2 * count > len(below[group.name]) and 2 * count > len(old[name]):
                wishes.append((-count, name != group.name, natural(name), group.name, name))
    chosen: dict[str, str] = {}
    kept = {group.name for group in groups}
    for _, _, _, group_name, name in sorted(wishes):
        free = name == group_name or name not in kept
        if group_name not in chosen and name not in chosen.values() and free:
            chosen[group_name] = name
    return chosen
