"""Cables that are not where those of their peers are. Pure: a fabric in, findings out.

There is no plan of the cabling to compare with, so the majority is the plan: hosts on the same leaves, leaves of the same group,
cables of the same kind. Where there is no majority nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.fabric import Fabric, HostLink, speed_gbps
from aistation_slurm.topology.model import natural
from aistation_slurm.topology.plan import Group

__all__ = ["Finding", "findings"]

PEERS = 3
"""Fewer are no majority."""


@dataclass(frozen=True)
class Finding:
    """kind: rail (on the wrong leaf), missing_rail, uplinks, ports or speed; switch and port: where to go and look."""

    kind: str
    switch: str
    port: str
    host: str
    rail: str
    message: str

    def as_json(self) -> dict[str, str]:
        return {
            "kind": self.kind,
            "switch": self.switch,
            "port": self.port,
            "host": self.host,
            "rail": self.rail,
            "message": self.message,
        }


def findings(fabric: Fabric, groups: Sequence[Group]) -> tuple[Finding, ...]:
    """groups: of the plan of the same fabric. Sorted by switch and port."""
    found = [*_rails(fabric, groups), *_uplinks(fabric, groups), *_ports(fabric, groups), *_speeds(fabric)]
    return tuple(
        sorted(dict.fromkeys(found), key=lambda f: (f.kind, natural(f.switch), natural(f.port), natural(f.host)))
    )


def _most(values: Iterable[str]) -> Optional[tuple[str, int]]:
    """The value of more than half of them, and of how many; None without such a majority."""
    count = Counter(values)
    value, number = max(count.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return (
        (value, number)
        if number >= PEERS - 1 and 2 * number > sum(count.values()) and sum(count.values()) >= PEERS
        else None
    )


def _rails(fabric: Fabric, groups: Sequence[Group]) -> Iterator[Finding]:
    """Within a group of hosts each rail has its leaf."""
    links: dict[str, list[HostLink]] = {}
    for link in fabric.host_links:
        links.setdefault(link.host, []).append(link)
    for group in [g for g in groups if g.nodes]:
        by_rail: dict[str, list[HostLink]] = {}
        for host in group.nodes:
            for link in links.get(host, ()):
                if link.rail:
                    by_rail.setdefault(link.rail, []).append(link)
        for rail in sorted(by_rail, key=natural):
            usual = _most(link.switch for link in by_rail[rail])
            if usual is None:
                continue
            leaf, count = usual
            for link in by_rail[rail]:
                if link.switch != leaf:
                    here = fabric.name(link.switch)
                    message = f"{link.host} {rail} is on {here} port {link.port}: {count} peers have {rail} on {fabric.name(leaf)}"
                    yield Finding("rail", here, link.port, link.host, rail, message)
        yield from _missing(fabric, group, by_rail, links)


def _missing(
    fabric: Fabric, group: Group, by_rail: dict[str, list[HostLink]], links: dict[str, list[HostLink]]
) -> Iterator[Finding]:
    """Hosts with fewer cables than most of their group, by the rails that those have."""
    usual = _most(str(len(links[host])) for host in group.nodes)
    if usual is None:
        return
    for host in group.nodes:
        if len(links[host]) >= int(usual[0]):
            continue
        mine = {link.rail for link in links[host]}
        peers = Counter(rail for rail, cables in by_rail.items() for _ in cables)
        lost = sorted((r for r, n in peers.items() if r not in mine and 2 * n > len(group.nodes)), key=natural)
        what = f"; {hostlist.fold(lost)} not seen" if lost else ""
        message = f"{host} has {len(links[host])} cables, {usual[1]} of its peers have {usual[0]}{what}"
        yield Finding("missing_rail", group.name, "", host, ",".join(lost), message)


def _uplinks(fabric: Fabric, groups: Sequence[Group]) -> Iterator[Finding]:
    """Cables from each switch of a level to each switch above: most pairs have the same number."""
    level = {member: group.level for group in groups for member in group.members}
    by_rank: dict[int, list[str]] = {}
    for member, rank in level.items():
        by_rank.setdefault(rank, []).append(member)
    for rank, members in sorted(by_rank.items()):
        spines = {up for member in members for up in fabric.neighbours[member] if level.get(up, -1) == rank + 1}
        ups = {m: {u: n for u, n in fabric.neighbours[m].items() if u in spines} for m in members}
        same: dict[frozenset[str], list[str]] = {}
        for member in members:
            same.setdefault(frozenset(ups[member]), []).append(member)
        for above, mine in same.items():
            # pods: a leaf is compared with those that share most of its spines
            near = [m for others, found in same.items() if 2 * len(others & above) > len(above) for m in found]
            for spine in {up for others in same if 2 * len(others & above) > len(above) for up in others}:
                usual = _most(str(ups[other].get(spine, 0)) for other in near)
                for member in mine:
                    have = ups[member].get(spine, 0)
                    if usual is not None and have < int(usual[0]):
                        name = fabric.name(member)
                        message = f"{name} has {have} of the cables to {fabric.name(spine)}"
                        message += f", {usual[1]} of its peers have {usual[0]}"
                        yield Finding("uplinks", name, "", "", "", message)


def _ports(fabric: Fabric, groups: Sequence[Group]) -> Iterator[Finding]:
    """Leaves of one rail group serve the same hosts, so they have as many ports to hosts."""
    ports = Counter(link.switch for link in fabric.host_links)
    for group in groups:
        if len(group.members) < PEERS:
            continue
        count = {member: ports[member] for member in group.members}
        usual = _most(str(number) for number in count.values())
        for member, number in count.items():
            if usual is not None and str(number) != usual[0]:
                name = fabric.name(member)
                message = f"{name} has {number} ports to hosts, {usual[1]} leaves of its rail group have {usual[0]}"
                yield Finding("ports", name, "", "", "", message)


def _speeds(fabric: Fabric) -> Iterator[Finding]:
    """Host cables against those of the same leaf, switch cables against those of the same switch."""
    hosts: dict[str, list[tuple[str, str, str, str]]] = {}
    for link in fabric.host_links:
        hosts.setdefault(link.switch, []).append((link.port, link.speed, link.host, link.rail))
    cables: dict[str, list[tuple[str, str, str, str]]] = {}
    for wire in fabric.switch_links:
        cables.setdefault(wire.switch, []).append((wire.port, wire.speed, fabric.name(wire.peer), ""))
        cables.setdefault(wire.peer, []).append((wire.peer_port, wire.speed, fabric.name(wire.switch), ""))
    seen: set[frozenset[str]] = set()
    for table, to_host in ((hosts, True), (cables, False)):
        for switch in sorted(table, key=lambda s: natural(fabric.name(s))):
            usual = _most(speed for _, speed, _, _ in table[switch] if speed)
            if usual is None:
                continue
            fast = speed_gbps(usual[0]) or 0.0
            for port, speed, other, rail in table[switch]:
                slow = speed_gbps(speed)
                name = fabric.name(switch)
                pair = frozenset((name, other, "" if to_host else speed))
                if slow is None or slow >= fast or (not to_host and pair in seen):
                    continue
                seen.add(pair)
                message = (
                    f"{name} port {port} to {' '.join(filter(None, (other, rail)))} runs at {speed} ({slow:g} Gb/s), "
                    f"{usual[1]} of its peers at {usual[0]} ({fast:g} Gb/s)"
                )
                yield Finding("speed", name, port, other if to_host else "", rail, message)
