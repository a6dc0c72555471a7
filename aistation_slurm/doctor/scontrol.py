"""What the running daemons say of themselves: ``scontrol show config`` and ``scontrol show node``."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.config import Slurm
from aistation_slurm.doctor.model import NEWEST, NodeFact
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.recovery.primary import read_controllers
from aistation_slurm.slurm.command import run
from aistation_slurm.slurm.gres import gpu_count
from aistation_slurm.topology.validate import parse_version

__all__ = ["Shown", "nodes_from_text", "show_config", "show_nodes", "shown_from_text"]


@dataclass(frozen=True)
class Shown:
    """keys: lower-case; values of keys with an index, ``Prolog[0]``, joined with commas. conf: the file slurmctld read.

    time: the controller's clock, unix seconds; asked: when this host had the answer, by its own.
    """

    keys: Mapping[str, str]
    release: tuple[int, int]
    conf: str
    silent: tuple[str, ...]
    time: Optional[float] = None


def show_config(slurm: Slurm, conf: str) -> Shown:
    """Raises SlurmUnavailable, SlurmRefused."""
    argv = (f"{slurm.bin_dir}/scontrol", "show", "config")
    return shown_from_text(run(argv, timeout_s=slurm.timeout_s, conf=conf))


def show_nodes(slurm: Slurm, conf: str) -> tuple[NodeFact, ...]:
    """Raises SlurmUnavailable, SlurmRefused."""
    argv = (f"{slurm.bin_dir}/scontrol", "-d", "show", "node")
    return nodes_from_text(run(argv, timeout_s=slurm.timeout_s, conf=conf))


def shown_from_text(text: str) -> Shown:
    """``scontrol show config``: ``Key    = value`` lines, a first line with the controller's time, ping's lines at the end.

    Raises SlurmUnavailable where it is something else.
    """
    keys: dict[str, str] = {}
    for line in text.splitlines():
        found = re.match(r"(\w+)(\[\d+\])?\s*= ?(.*)$", line)
        if found is None:
            continue
        key, index, value = found.group(1).lower(), found.group(2), found.group(3).strip()
        keys[key] = f"{keys[key]},{value}" if index and key in keys else value
    if "slurm_version" not in keys:
        raise SlurmUnavailable("`scontrol show config` printed no SLURM_VERSION; is this Slurm's scontrol?")
    try:
        release = parse_version(keys["slurm_version"])
    except ValueError:
        release = NEWEST
    as_of = re.match(r"Configuration data as of (\S+)", text)
    silent = tuple(one.host for one in read_controllers(text) if not one.up)
    return Shown(keys, release, keys.get("slurm_conf", ""), silent, _time(as_of.group(1)) if as_of else None)


def _time(text: str) -> Optional[float]:
    if text.isdigit():
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def nodes_from_text(text: str) -> tuple[NodeFact, ...]:
    """``scontrol -d show node``, the form of several lines; GresUsed stands there only with ``-d``."""
    found = []
    for record in re.split(r"(?m)^(?=NodeName=)", text):
        name = re.match(r"NodeName=(\S+)", record)
        if name is None:
            continue
        address = re.search(r"(?m)^\s+NodeAddr=.*$", record)
        line = address.group(0) if address else ""
        host, version = re.search(r"NodeHostName=(\S+)", line), re.search(r"Version=(\S+)", line)
        state = re.search(r"(?m)^\s+State=(\S+)", record)
        features = re.search(r"(?m)^\s+AvailableFeatures=(\S+)", record)
        words = features.group(1).split(",") if features else []
        used = re.search(r"(?m)^\s+GresUsed=(\S+)", record)
        found.append(
            NodeFact(
                name.group(1),
                host.group(1) if host else name.group(1),
                version.group(1) if version else "",
                state.group(1) if state else "",
                tuple(word for word in words if word != "(null)"),
                gpu_count(used.group(1)) if used else 0,
            )
        )
    return tuple(found)
