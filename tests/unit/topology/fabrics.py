"""ibnetdiscover's output for made-up fabrics, cable by cable."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Optional

from aistation_slurm.topology.fabric import Fabric
from aistation_slurm.topology.readers import ibnetdiscover


def guid(name: str) -> str:
    return f"{sum(ord(c) * 257**i for i, c in enumerate(reversed(name))) & (1 << 64) - 1:016x}"


@dataclass
class Cables:
    """switches: name -> description; links: both ends with their ports and the speed."""

    switches: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    links: list[tuple[str, int, str, int, str]] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)

    def port(self, name: str) -> int:
        self.used[name] = self.used.get(name, 0) + 1
        return self.used[name]

    def switch(self, name: str, description: Optional[str] = None) -> str:
        self.switches[name] = description if description is not None else f"MF0;{name}:MQM9700/U1"
        return name

    def hca(self, leaf: str, host: str, device: str, speed: str = "4xNDR", description: Optional[str] = None) -> None:
        """One HCA (its own CA, as on real machines) of a host, cabled to a leaf."""
        hca = f"{host}|{device}"
        self.hosts[hca] = description if description is not None else f"{host} {device}"
        self.links.append((leaf, self.port(leaf), hca, 1, speed))

    def trunk(self, below: str, above: str, cables: int = 1, speed: str = "4xNDR") -> None:
        for _ in range(cables):
            self.links.append((below, self.port(below), above, self.port(above), speed))

    def text(self, shuffle: Optional[int] = None) -> str:
        blocks, ends = [], self._ends()
        for name, description in self.switches.items():
            lines = [
                f"switchguid=0x{guid(name)}({guid(name)})",
                f'Switch\t64 "S-{guid(name)}"\t\t# "{description}" enhanced port 0 lid 1 lmc 0',
            ]
            blocks.append("\n".join([*lines, *ends.get(name, ())]))
        for hca, description in self.hosts.items():
            lines = [f"caguid=0x{guid(hca)}", f'Ca\t1 "H-{guid(hca)}"\t\t# "{description}"']
            blocks.append("\n".join([*lines, *ends.get(hca, ())]))
        if shuffle is not None:
            random.Random(shuffle).shuffle(blocks)
        return "#\n# Topology file: generated on Wed Aug  6 16:11:23 2025\n#\n\n" + "\n\n".join(blocks) + "\n"

    def _ends(self) -> dict[str, list[str]]:
        """The lines of the links, by the device that they are told from."""
        lines: dict[str, list[str]] = {}
        for one, port, other, other_port, speed in self.links:
            for me, my_port, peer, peer_port in ((one, port, other, other_port), (other, other_port, one, port)):
                if peer in self.switches:
                    end = f'"S-{guid(peer)}"[{peer_port}]\t\t# "{self.switches[peer]}" lid 2 {speed}'
                else:
                    end = f'"H-{guid(peer)}"[{peer_port}]({guid(peer)}) \t\t# "{self.hosts[peer]}" lid 3 {speed}'
                lines.setdefault(me, []).append(f"[{my_port}]\t{end}")
        return lines

    def fabric(self) -> Fabric:
        return ibnetdiscover.read(self.text())


def rails(groups: int = 2, hosts: int = 4, rails: int = 4, spines: int = 2) -> Cables:
    """Rail-optimised: rail r of every host of group g on leaf g-r, every leaf on every spine."""
    made = Cables()
    names = [made.switch(f"spine{s + 1}") for s in range(spines)]
    for group in range(groups):
        for rail in range(rails):
            leaf = made.switch(f"leaf{group + 1}-{rail + 1}")
            for host in range(hosts):
                made.hca(leaf, f"gpu{group * hosts + host + 1:03d}", f"mlx5_{rail}")
            for spine in names:
                made.trunk(leaf, spine, 2)
    return made


def pods(pods: int = 2, leaves: int = 2, hosts: int = 3, spines: int = 2, cores: int = 2) -> Cables:
    """Three levels: each core switch on every spine."""
    made = Cables()
    tops = [made.switch(f"core{c + 1}") for c in range(cores)]
    host = 0
    for pod in range(pods):
        middle = [made.switch(f"pod{pod + 1}-spine{s + 1}") for s in range(spines)]
        for leaf_number in range(leaves):
            leaf = made.switch(f"pod{pod + 1}-leaf{leaf_number + 1}")
            for _ in range(hosts):
                host += 1
                made.hca(leaf, f"n{host}", "mlx5_0")
            for spine in middle:
                made.trunk(leaf, spine)
        for spine in middle:
            for top in tops:
                made.trunk(spine, top)
    return made
