"""Slurm's name of this very node: the only node that this host ever drains.

SLURMD_NODENAME where it is set (slurmd sets it for its scripts, an administrator for agent and cron). Else the one node whose
NodeHostName is this host's name, as slurmd itself decides it (src/slurmd/slurmd/slurmd.c: the host name, then the short one).
A node that only is called like this host runs on another one. Asked for once a day, kept in ``<state_dir>/node-name``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import Callable, Optional

from aistation_slurm.errors import SlurmRefused
from aistation_slurm.node.state import boot_id, write_file
from aistation_slurm.slurm.client import Node, SlurmClient

__all__ = ["OwnName", "nodes_on"]

KEPT_S = 86400.0
"""slurm.conf may change under a running host."""
HOW_TO_SAY = "set SLURMD_NODENAME to this node's NodeName in the environment of agent and cron"


def nodes_on(host: str, nodes: Iterable[Node]) -> list[str]:
    """Names of the nodes whose slurmd runs on ``host`` (what gethostname says: short or with its domain)."""
    known = [(node.name, node.hostname) for node in nodes]
    exact = [name for name, hostname in known if hostname == host]
    short = host.partition(".")[0]
    if exact or not short:
        return exact
    if short != host:
        return [name for name, hostname in known if hostname == short]
    return [name for name, hostname in known if hostname.partition(".")[0] == short]


class OwnName:
    """One per process. ``host`` is what gethostname says."""

    def __init__(self, state_dir: str, host: str = "", now: Callable[[], float] = time.time) -> None:
        self.path = f"{state_dir}/node-name"
        self.host = host or socket.gethostname()
        self.now = now
        self._found: Optional[tuple[str, float]] = None

    def known(self) -> str:
        """The name, without a request; "" where Slurm must be asked."""
        named = os.environ.get("SLURMD_NODENAME", "")
        if named:
            return named
        name, since = self._found or self._kept() or ("", 0.0)
        return name if 0 <= self.now() - since < KEPT_S else ""

    def guess(self) -> str:
        """For reports alone; nothing may be done to the node of this name."""
        return self.known() or self.host.partition(".")[0]

    def certain(self, client: SlurmClient) -> str:
        """The name, asked for where it is not known.

        Raises SlurmUnavailable, and SlurmRefused where no node or several have this host's name.
        """
        name = self.known()
        if name:
            return name
        found = nodes_on(self.host, client.nodes())
        if len(found) != 1:
            what = f"the nodes {', '.join(found)} all have" if found else "no node of Slurm has"
            raise SlurmRefused(f"{what} NodeHostName={self.host}, so nothing is drained from here; {HOW_TO_SAY}")
        self._found = (found[0], self.now())
        try:
            write_file(self.path, f"{boot_id() or '-'} {self.host} {found[0]} {int(self._found[1])}\n".encode())
        except OSError:
            pass  # asked again by the next process
        return found[0]

    def _kept(self) -> Optional[tuple[str, float]]:
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                boot, host, name, since = file.read(1024).split()
            return (name, float(since)) if (boot, host) == (boot_id(), self.host) else None
        except (OSError, ValueError):
            return None
