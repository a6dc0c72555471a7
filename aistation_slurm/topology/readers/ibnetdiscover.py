"""What ``ibnetdiscover`` prints (rdma-core 1.5 to 2.x, with or without ``-f`` and ``-g``).

::

    Switch  65 "S-bbbb0300b87b40"   # "MF0;ibleaf-01:MQM9701/U1" enhanced port 0 lid 73 lmc 0
    [1]     "H-aaaa7303007a4bd8"[1](aaaa7303007a4bd8)    # "gpu-node-01 mlx5_5" lid 647 4xNDR
    [35]    "S-cccc0300c26280"[32]  # "MF0;ibspine-02:MQM9701/U1" lid 236 4xNDR

A link is told from both of its ends, and only from one where a block is missing. Names come from the node descriptions, which
anybody may set: a host that has none yet is reported, never invented. Every Quantum switch has an HCA of its own on its last
port, the aggregation node of SHARP: not a host. The program exits with 0 also where it saw nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Optional

from aistation_slurm.errors import TopologyError
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.fabric import Fabric, FabricSwitch, HostLink, SwitchLink, speed_gbps
from aistation_slurm.topology.model import natural

__all__ = ["fit_name", "host_of", "read", "switch_names"]

_HEAD = re.compile(r'(Switch|Ca|Rt)\s+([0-9]{1,4})\s+"([^"]+)"\s*(?:#\s*(.*))?\Z')
_LINK = re.compile(
    r'\[([0-9]{1,4})\](?:\[ext [^\]]*\])?(?:\([0-9a-fA-F]+\))?\s+"([SHR]-[^"]+)"\[([0-9]{1,4})\](?:\[ext [^\]]*\])?'
    r"(?:\([0-9a-fA-F]+\))?\s*(?:#\s*(.*))?\Z"
)
_DEVICE = re.compile(
    r"(?:mlx[45]_\w+|HCA-?[0-9]+|mthca[0-9]+|hfi[0-9]+_[0-9]+|qib[0-9]+|bnxt_re[0-9]+|irdma[0-9]+|efa_?[0-9]+"
    r"|ibp?[0-9]\w*|rocep?\w+|en[ops]\w+|i40iw[0-9]+)",
    re.IGNORECASE,
)
_VENDOR = re.compile(
    r"\bMellanox\b|\bNVIDIA\b|^MT[0-9]+|ConnectX|InfiniScale|SwitchX|^Quantum|\bTechnologies\b|^localhost\b", re.I
)
_FAILED = re.compile(r"iberror:|mad_rpc_open_port|discover failed")
_ROCE_HINT = (
    "on RoCE ports (link_layer Ethernet in ibstatus) there is no InfiniBand fabric to discover: use --from lldp there"
)


@dataclass
class _Seen:
    """Everything in the order of the output; ids are ``S-<guid>`` and ``H-<guid>``."""

    described: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    links: dict[frozenset[tuple[str, str]], tuple[str, str, str, str, str]] = field(default_factory=dict)
    odd_lines: list[int] = field(default_factory=list)
    failure: str = ""


def read(text: str, file: str = "ibnetdiscover") -> Fabric:
    """The fabric of one or several runs of ibnetdiscover (texts simply joined).

    Raises TopologyError where the output shows a failure or no switch at all: an empty topology must never replace a good one.
    """
    seen = _scan(text)
    switches = [node for node in seen.described if node.startswith("S-")]
    failure = seen.failure
    if failure or not switches:
        raise TopologyError(_refusal(text, file, seen))
    names = switch_names({node: seen.described[node] for node in switches})
    host_links: list[HostLink] = []
    nameless: dict[str, list[str]] = {}
    strange: set[str] = set()
    switch_links: list[SwitchLink] = []
    for one, port, other, other_port, speed in seen.links.values():
        if one.startswith("S-") and other.startswith("S-"):
            switch_links.append(SwitchLink(one, port, other, other_port, speed))
            continue
        switch, switch_port, end = (one, port, other) if one.startswith("S-") else (other, other_port, one)
        if not switch.startswith("S-") or not end.startswith("H-"):
            continue
        description = seen.described.get(end, "")
        if is_service(description):
            continue
        host, rail = host_of(description)
        if host:
            host_links.append(HostLink(switch, switch_port, host, rail, speed))
        else:
            nameless.setdefault(switch, []).append(switch_port)
            if description and not _VENDOR.search(description):
                strange.add(description)
    notes = [_nameless_note(names[switch], ports) for switch, ports in nameless.items()]
    notes += [f"no host name found in the node description {text!r}" for text in strange]
    if seen.odd_lines:
        lines = ", ".join(str(number) for number in seen.odd_lines[:5])
        notes.append(f"{len(seen.odd_lines)} lines are no output of ibnetdiscover and were left out (line {lines})")
    return Fabric(
        tuple(
            FabricSwitch(node, names[node], seen.ports.get(node, 0))
            for node in sorted(switches, key=lambda n: natural(names[n]))
        ),
        tuple(sorted(host_links, key=lambda h: (natural(names[h.switch]), natural(h.port)))),
        tuple(sorted(switch_links, key=lambda s: (natural(names[s.switch]), natural(s.port)))),
        tuple(sorted(notes, key=natural)),
    )


def _nameless_note(switch: str, ports: list[str]) -> str:
    ports = sorted(ports, key=natural)
    if len(ports) == 1:
        return f"1 HCA without host name on {switch} port {ports[0]}"
    return f"{len(ports)} HCAs without host name on {switch} ports {', '.join(ports)}"


def _scan(text: str) -> _Seen:
    seen = _Seen()
    block: Optional[str] = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line:
            block = None
            continue
        if line.startswith("#") or re.match(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid|Chassis)\b", line):
            continue
        head = _HEAD.match(line)
        if head is not None:
            block = head.group(3) if head.group(3)[:2] in ("S-", "H-", "R-") else f"{head.group(1)[0]}-{head.group(3)}"
            seen.ports[block] = int(head.group(2))
            seen.described[block] = _description(head.group(4) or "")
            continue
        link = _LINK.match(line)
        if link is None or block is None:
            seen.odd_lines.append(number)
            if _FAILED.search(line):
                seen.failure = line
            continue
        port, other, other_port, comment = link.groups()
        ends = frozenset(((block, port), (other, other_port)))
        speed = next((word for word in reversed((comment or "").split()) if speed_gbps(word) is not None), "")
        if ends not in seen.links or not seen.links[ends][4]:
            seen.links[ends] = (block, port, other, other_port, speed)
        seen.described.setdefault(other, _description(comment or ""))
        if not seen.described[other]:
            seen.described[other] = _description(comment or "")
    return seen


def _description(comment: str) -> str:
    """Between the outermost double quotes: a description may hold quotes itself."""
    start, end = comment.find('"'), comment.rfind('"')
    return comment[start + 1 : end].strip() if 0 <= start < end else ""


def is_service(description: str) -> bool:
    """HCAs that belong to no host: SHARP aggregation nodes, gateways, the subnet manager's own appliance."""
    return "aggregation node" in description.lower() or ";" in description


def host_of(description: str) -> tuple[str, str]:
    """Host and device: ``gpu-node-01 mlx5_5`` -> ("gpu-node-01", "mlx5_5"); ("", "") where it names no host."""
    words = description.replace('"', " ").replace("'", " ").split()
    if not words or _VENDOR.search(" ".join(words)):
        return "", ""
    if len(words) > 1 and _DEVICE.fullmatch(words[0]) and not _DEVICE.fullmatch(words[1]):
        words[0], words[1] = words[1], words[0]
    host, rest = words[0], words[1:]
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*", host, re.ASCII) is None:
        return "", ""
    if not rest:
        # a lone word may be the device of a host that has no name yet
        return ("", "") if _DEVICE.fullmatch(host) else (host, "")
    if len(rest) > 1 and not _DEVICE.fullmatch(rest[0]):
        return "", ""
    return host, rest[0]


def switch_names(described: dict[str, str]) -> dict[str, str]:
    """Names fit for Slurm by id. ``MF0;ibleaf-01:MQM9701/U1`` -> ibleaf-01; with its chip where one name has several.

    A switch without a name of its own (an unmanaged one) keeps its id, ``S-<guid>``.
    """
    short: dict[str, str] = {}
    long: dict[str, str] = {}
    for node, description in described.items():
        managed = re.match(r"[^;:]*;([^;:]+)(?::(.*))?\Z", description)
        name = managed.group(1) if managed else description
        if not name or (managed is None and (_VENDOR.search(name) or ";" in name)):
            short[node] = long[node] = fit_name(node)
            continue
        chip = "-".join((managed.group(2) or "").split("/")[1:]) if managed else ""
        short[node] = fit_name(name)
        long[node] = fit_name(f"{name}-{chip}") if chip else short[node]
    once = Counter(short.values())
    chosen = {node: short[node] if once[short[node]] == 1 else long[node] for node in described}
    twice = Counter(chosen.values())
    return {node: name if twice[name] == 1 else fit_name(f"{name[:40]}-{node[2:]}") for node, name in chosen.items()}


def fit_name(name: str) -> str:
    """Letters, digits, dash, dot, underscore, at most 64 of them."""
    text = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")
    return (text if re.match(r"\w", text, re.ASCII) else f"sw{text}")[:64] or "switch"


def _refusal(text: str, file: str, seen: _Seen) -> str:
    ethernet = re.search(r"link_layer:\s*Ethernet", text)
    if ethernet:
        device = re.search(r"Infiniband device '([^']+)'", text)
        port = f"{device.group(1)} has" if device else "the port has"
        return f"{file}: {port} link_layer Ethernet (RoCE): {_ROCE_HINT}; nothing was written"
    if seen.failure:
        return f"{file}: ibnetdiscover failed ({seen.failure[:120]}); {_ROCE_HINT}; nothing was written"
    cas = sorted({host_of(d)[0] or d for n, d in seen.described.items() if n.startswith("H-")}, key=natural)
    if cas:
        hosts = hostlist.fold(cas[:20]) if all(re.fullmatch(r"[\w.-]+", c) for c in cas[:20]) else ", ".join(cas[:20])
        count = "1 host" if len(cas) == 1 else f"{len(cas)} hosts"
        return f"{file}: error: no switches found, only {count} ({hosts}): run ibnetdiscover where it sees the fabric, as root"
    return f"{file}: error: no switches found: this is no output of ibnetdiscover, or an empty one; {_ROCE_HINT}"
