"""A fabric as it is cabled: switches and hosts, and the links between their ports. Immutable; made by the readers of
ibnetdiscover and LLDP, judged by ``cabling.py``, made into a topology of Slurm's by ``plan.py``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Optional

__all__ = ["Fabric", "FabricSwitch", "HostLink", "SwitchLink", "speed_gbps"]

_RATES_PER_LANE = {"SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0}
_RATES_PER_LANE.update(NDR=100.0, XDR=200.0)


@lru_cache(maxsize=1024)
def speed_gbps(text: str) -> Optional[float]:
    """``4xNDR`` -> 400.0, ``2xHDR`` and ``100G`` -> 100.0 in Gb/s; None for what is not a link's width and rate."""
    if re.fullmatch(r"[0-9]{1,4}G", text):
        return float(text[:-1])
    found = re.fullmatch(r"([0-9]{1,2})[xX]([A-Za-z]+(?:10)?)", text)
    if found is None or found.group(2).upper() not in _RATES_PER_LANE:
        return None
    return int(found.group(1)) * _RATES_PER_LANE[found.group(2).upper()]


@dataclass(frozen=True)
class FabricSwitch:
    """id: GUID or chassis id, unique; name: fit for Slurm, unique in its fabric; ports: as the switch says, 0 unknown."""

    id: str
    name: str
    ports: int = 0


@dataclass(frozen=True)
class HostLink:
    """One cable from a switch's port to a host. rail: the host's device, e.g. mlx5_3 or HCA-4; "" where not told."""

    switch: str
    port: str
    host: str
    rail: str = ""
    speed: str = ""


@dataclass(frozen=True)
class SwitchLink:
    """One cable between two switches (ids), seen from either end once."""

    switch: str
    port: str
    peer: str
    peer_port: str
    speed: str = ""


@dataclass(frozen=True)
class Fabric:
    """switches, cables and what a person should know of them (notes, sorted)."""

    switches: tuple[FabricSwitch, ...] = ()
    host_links: tuple[HostLink, ...] = ()
    switch_links: tuple[SwitchLink, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def by_id(self) -> Mapping[str, FabricSwitch]:
        return {switch.id: switch for switch in self.switches}

    def name(self, switch_id: str) -> str:
        return self.by_id[switch_id].name

    @cached_property
    def neighbours(self) -> Mapping[str, Mapping[str, int]]:
        """Switch id -> neighbouring switch id -> number of cables."""
        found: dict[str, dict[str, int]] = {switch.id: {} for switch in self.switches}
        for link in self.switch_links:
            if link.switch == link.peer:
                continue
            for one, other in ((link.switch, link.peer), (link.peer, link.switch)):
                found[one][other] = found[one].get(other, 0) + 1
        return found

    @cached_property
    def hosts_on(self) -> Mapping[str, frozenset[str]]:
        """Switch id -> hosts that hang on it."""
        found: dict[str, set[str]] = {}
        for link in self.host_links:
            found.setdefault(link.switch, set()).add(link.host)
        return {switch: frozenset(hosts) for switch, hosts in found.items()}
