"""``fabric.device_files``: what libibverbs needs of each HCA.

``issm`` is not asked for: only a subnet manager uses it, and sites switch it off.
"""

from __future__ import annotations

from collections.abc import Sequence

from aistation_slurm.detectors.fabric.verdict import HCAS, verdict
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.rdma import PortSnapshot

__all__ = ["device_file_findings"]


def device_file_findings(mine: Sequence[PortSnapshot]) -> list[Finding]:
    hcas = list(dict.fromkeys(p.hca for p in mine))
    out = []
    for name in ("uverbs", "umad"):
        missing = [hca for hca in hcas if _lacks(name, [p for p in mine if p.hca == hca])]
        text = f"no {name} device for {', '.join(missing)}: is its kernel module loaded?"
        if len(missing) == len(hcas) > 1:
            missing, text = [HCAS], f"not every HCA has a {name} device: is its kernel module loaded?"
        out += [verdict("fabric.device_files", Status.FAIL, hca, text, Action.INSPECT) for hca in missing]
    return out


def _lacks(name: str, ports: Sequence[PortSnapshot]) -> bool:
    if name == "uverbs":
        return ports[0].verbs is False
    # only InfiniBand needs management datagrams from user space
    return ports[0].umad is False and any(p.infiniband for p in ports)
