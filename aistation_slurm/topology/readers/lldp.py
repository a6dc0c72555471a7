"""LLDP neighbours, for RoCE: what ``lldpctl -f json`` (or json0) prints on hosts, and on switches where one can log in.

lldpctl does not say whose neighbours it prints, so the name comes from the file (``gpu1.json``), or from one object over all of
them: ``{"gpu1": {"lldp": {...}}, "gpu2": {"lldp": {...}}}``. From hosts alone one learns the leaf switches; the cables between
switches need the switches' own output.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import msgspec

from aistation_slurm.errors import TopologyError
from aistation_slurm.topology.fabric import Fabric, FabricSwitch, HostLink, SwitchLink
from aistation_slurm.topology.model import natural
from aistation_slurm.topology.readers.ibnetdiscover import fit_name

__all__ = ["read"]


@dataclass(frozen=True)
class _Neighbour:
    """One interface of ``device`` and who is at the other end. chassis: its name, else its id; bridge: None where not told."""

    device: str
    interface: str
    chassis: str
    port: str
    speed: str
    bridge: object


def read(texts: Sequence[tuple[str, str]]) -> Fabric:
    """``texts``: pairs of text and file name. Raises TopologyError for what is no output of lldpctl, or holds no neighbour."""
    seen: list[_Neighbour] = []
    notes: list[str] = []
    devices: set[str] = set()
    for text, file in texts:
        for device, report in _reports(text, file):
            devices.add(device)
            found = list(_neighbours(device, report, file))
            if not found:
                notes.append(f"{device} sees no LLDP neighbour")
            seen += found
    if not seen:
        names = ", ".join(file for _, file in texts[:3])
        raise TopologyError(f"{names}: no LLDP neighbour in it: is lldpd running there, and do the switches send LLDP?")
    switches = _switches(seen, devices)
    named = _names(switches)
    host_links: dict[tuple[str, str], HostLink] = {}
    switch_links: dict[frozenset[tuple[str, str]], SwitchLink] = {}
    for one in seen:
        if one.device in switches and one.chassis in switches:
            ends = frozenset(((one.device, one.interface), (one.chassis, one.port)))
            switch_links.setdefault(ends, SwitchLink(one.device, one.interface, one.chassis, one.port, one.speed))
        elif one.chassis in switches:
            host_links[(one.device, one.interface)] = HostLink(
                one.chassis, one.port, one.device, one.interface, one.speed
            )
        elif one.device in switches and re.fullmatch(r"[A-Za-z0-9][\w.-]*", one.chassis, re.ASCII):
            told = HostLink(one.device, one.interface, one.chassis, one.port, one.speed)
            # the host's own word of this interface, where it was asked, tells more
            host_links.setdefault((one.chassis, one.port), told)
    return Fabric(
        tuple(FabricSwitch(switch, named[switch]) for switch in sorted(switches, key=lambda s: natural(named[s]))),
        tuple(sorted(host_links.values(), key=lambda h: (natural(h.switch), natural(h.port)))),
        tuple(sorted(switch_links.values(), key=lambda s: (natural(s.switch), natural(s.port)))),
        tuple(sorted(set(notes), key=natural)),
    )


def _switches(seen: Sequence[_Neighbour], devices: set[str]) -> set[str]:
    """Neighbours that bridge or route, and those that say nothing of it and were not asked themselves.

    A host that was asked and sees only switches stays a host, even if it bridges for its own containers.
    """
    neighbours = {one.chassis for one in seen}
    bridging = {one.chassis for one in seen if one.bridge is True}
    silent = {one.chassis for one in seen if one.bridge is None}
    found = (bridging - devices) | (silent - devices)
    # of those asked themselves, the ones that others see bridging and that see several devices
    reach = {device: {one.chassis for one in seen if one.device == device} for device in devices}
    asked = {device for device in bridging & devices if len(reach[device]) > 1 and reach[device] & devices}
    return found | {device for device in asked if device in neighbours}


def _names(switches: set[str]) -> dict[str, str]:
    short = {s: fit_name(s if re.fullmatch(r"[0-9a-fA-F:.]+", s) else s.split(".")[0]) for s in switches}
    count = Counter(short.values())
    return {s: name if count[name] == 1 else fit_name(s) for s, name in short.items()}


def _reports(text: str, file: str) -> Iterator[tuple[str, Any]]:
    try:
        data = msgspec.json.decode(text.strip().encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, RecursionError, ValueError) as exc:
        raise TopologyError(f"{file}: not JSON ({exc}): collect it with lldpctl -f json") from exc
    if isinstance(data, dict) and "lldp" in data:
        name = str(data.get("host") or data.get("hostname") or PurePath(file).stem)
        if file == "stdin" and name == "stdin":
            raise TopologyError(
                'lldp from standard input: whose is it? Give {"gpu1": {"lldp": ...}} or a file gpu1.json'
            )
        yield name, data["lldp"]
        return
    if not isinstance(data, dict) or not all(isinstance(value, dict) and "lldp" in value for value in data.values()):
        raise TopologyError(
            f'{file}: no "lldp" in it: expected the output of lldpctl -f json, or an object host -> output'
        )
    for name, value in data.items():
        yield name, value["lldp"]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _neighbours(device: str, report: Any, file: str) -> Iterator[_Neighbour]:
    for part in _listed(report):
        if not isinstance(part, dict):
            raise TopologyError(f"{file}: {device}: lldp: expected an object, found {type(part).__name__}")
        for entry in _listed(part.get("interface")):
            if not isinstance(entry, dict):
                raise TopologyError(f"{file}: {device}: interface: expected an object, found {type(entry).__name__}")
            if "chassis" in entry:  # json0 names the interface inside
                pairs = [(str(entry.get("name", "")), entry)]
            else:
                pairs = [(str(name), value) for name, value in entry.items() if isinstance(value, dict)]
            for interface, value in pairs:
                found = _neighbour(device, interface, value)
                if found is not None:
                    yield found


def _neighbour(device: str, interface: str, value: dict[Any, Any]) -> Any:
    name, chassis = "", next(iter(_listed(value.get("chassis"))), None)
    if not isinstance(chassis, dict):
        return None
    if "id" not in chassis and "name" not in chassis and len(chassis) == 1:
        name, inner = next(iter(chassis.items()))
        chassis = inner if isinstance(inner, dict) else {}
    name = _value(chassis.get("name")) or str(name) or _value(chassis.get("id"))
    port = next(iter(_listed(value.get("port"))), None)
    port = port if isinstance(port, dict) else {}
    kind = next((p.get("type") for p in _listed(port.get("id")) if isinstance(p, dict)), "")
    label = _value(port.get("id"))
    if kind == "mac":
        label = _value(port.get("descr")) or label
    speed = re.search(r"\b([0-9]{1,4})G", str(port.get("auto-negotiation", "")))
    told = [c for c in _listed(chassis.get("capability")) if isinstance(c, dict)]
    bridge = any(c.get("type") in ("Bridge", "Router") and c.get("enabled") is True for c in told) if told else None
    if not name or name == device:
        return None
    return _Neighbour(device, interface, name, label, f"{speed.group(1)}G" if speed else "", bridge)


def _value(item: Any) -> str:
    """``"x"``, ``{"value": "x"}`` and ``[{"value": "x"}]`` are the same in lldpctl's JSON dialects."""
    first = next(iter(_listed(item)), None)
    if isinstance(first, dict):
        first = first.get("value")
    return str(first).strip() if isinstance(first, (str, int)) else ""
