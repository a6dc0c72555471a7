"""``aistation check --learn``: what this node has, as the ``[expect]`` section of aistation.toml for nodes of its kind.

Learn from a node that is known to be in order: what is wrong with it is named in comments, and left out of nothing.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Optional, TypeVar

from aistation_slurm.config import Config
from aistation_slurm.detectors import fabric
from aistation_slurm.detectors.fabric.pairing import nearest
from aistation_slurm.findings import Status
from aistation_slurm.node.health import GpuRow, NodeReport
from aistation_slurm.probes.pci_path import read_pci_paths
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["learned"]

T = TypeVar("T", bound=Hashable)


def learned(report: NodeReport, ports: Sequence[PortSnapshot], config: Config) -> str:
    """TOML text. ports: of the same look."""
    lines = [f"# learned from {report.node}; put it into aistation.toml on nodes like this one"]
    bad = [f for f in report.findings if f.status is not Status.OK]
    lines += [f"# NOT IN ORDER: {_comment(f'{f.check} {f.subject}: {f.evidence}')}" for f in bad]
    mine = fabric.judged(ports, config.expect)
    used = [p for p in fabric.used_by_jobs(mine) if p.state == "ACTIVE"]
    lines += ["[expect]", f"gpus = {len(report.gpus)}", f"hca_ports = {len(used)}"]
    rate = _same([p.rate_gbps for p in used if p.infiniband])
    if rate is not None:
        lines.append(f"rate_gbps = {rate:g}")
    index = _same([_gid_index(p) for p in used if p.kind == "roce"])
    if index is not None:
        lines.append(f"roce_gid_index = {index}")
    mtu = _same([p.netdev.mtu if p.netdev else None for p in used if p.kind == "roce"])
    if mtu is not None:
        lines.append(f"mtu = {mtu}")
    if config.expect.ignore_hcas:
        lines.append(f"ignore_hcas = {json.dumps(list(config.expect.ignore_hcas))}")
    lines += [f"# {_comment(_port_line(p, p in used))}" for p in ports]
    lines += [f"# {_comment(line)}" for line in _pairs(report.gpus, used, Path(config.probe.root))]
    return "\n".join(lines) + "\n"


def _same(values: Sequence[Optional[T]]) -> Optional[T]:
    """The one value that all have; None where they differ, or where one does not tell."""
    return values[0] if values and len(set(values)) == 1 else None


def _gid_index(port: PortSnapshot) -> Optional[int]:
    return next((g.index for g in port.gids if g.type == "RoCE v2" and g.ipv4), None)


def _port_line(port: PortSnapshot, used: bool) -> str:
    facts = [port.name, port.pci, port.kind, port.state or "unreadable"]
    if port.rate_gbps is not None:
        facts.append(f"{port.rate_gbps:g} Gb/s" + (f" ({port.lanes}X {port.speed})" if port.lanes else ""))
    facts += [port.board_id, port.firmware and f"firmware {port.firmware}", "" if used else "not counted"]
    return ", ".join(fact for fact in facts if fact)


def _pairs(gpus: Sequence[GpuRow], used: Sequence[PortSnapshot], root: Path) -> list[str]:
    paths = read_pci_paths(root, [*(g.pci for g in gpus), *(p.pci for p in used)])
    own = {f"GPU{g.minor if g.minor >= 0 else '?'} {g.pci}": paths[g.pci] for g in gpus if g.pci in paths}
    near = nearest(own, {p.hca: paths[p.pci] for p in used if p.pci in paths})
    return [f"{gpu} is nearest to {', '.join(found.hcas)}: {found.how}" for gpu, found in near.items()]


def _comment(text: str) -> str:
    """One line: a comment must not end where the text of a device says so."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
