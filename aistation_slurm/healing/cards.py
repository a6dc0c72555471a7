"""Who the GPUs of this node are: ``<healing.dir>/<node>-gpus.json``. A card that has fallen silent tells no serial any more.

Best effort: without it the evidence is poorer, and nothing else is lost.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

import msgspec

from aistation_slurm.node.state import write_file
from aistation_slurm.probes.nvml import NvmlSnapshot

__all__ = ["Cards", "identities"]

FRESH_S = 86400.0


def identities(nvml: NvmlSnapshot) -> dict[str, dict[str, str]]:
    """PCI address -> serial, UUID, name, VBIOS, InfoROM, minor, driver, of each GPU that tells its serial or UUID now."""
    found = {}
    for gpu in nvml.gpus:
        if gpu.pci and (gpu.serial or gpu.uuid) and not gpu.lost:
            facts = {
                "serial": gpu.serial,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "vbios": gpu.vbios,
                "inforom": gpu.inforom,
            }
            found[gpu.pci] = {**facts, "minor": str(gpu.minor), "driver": nvml.driver}
    return found


class Cards:
    """What was last known of each."""

    def __init__(self, folder: str, node: str) -> None:
        self.path = f"{folder}/{re.sub(r'[^A-Za-z0-9._-]', '_', node)}-gpus.json"

    def known(self) -> dict[str, dict[str, str]]:
        try:
            with open(self.path, "rb") as file:
                return msgspec.json.decode(file.read(1 << 20), type=dict[str, dict[str, str]])
        except (OSError, ValueError):
            return {}

    def stale(self) -> bool:
        """Nobody has looked for a day."""
        try:
            return not 0 <= time.time() - os.stat(self.path).st_mtime < FRESH_S
        except OSError:
            return True

    def learn(self, found: Mapping[str, Mapping[str, str]]) -> None:
        """Add to what is known: a card that is silent now keeps what it said. A card that was changed is another one."""
        before = self.known()
        after = {**before, **found}
        if not found or (after == before and not self.stale()):
            return
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            write_file(self.path, msgspec.json.format(msgspec.json.encode(after), indent=1), 0o600)
        except OSError:
            pass
