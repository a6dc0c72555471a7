"""aistation.toml, decoded strictly into typed structs.

Lookup order: the path given, then ``$AISTATION_CONFIG``, then ``/etc/aistation/aistation.toml``. A missing default
file means every default. A missing file that was named, an unknown key or a wrong type is a :class:`ConfigError` of one
line with file, line number and the allowed keys. Units are in the key names: ``_s`` seconds, ``_gbps`` Gb/s,
``_percent`` 0..100.
"""

from __future__ import annotations

from aistation_slurm.config.breaker import Breaker
from aistation_slurm.config.checkpoints import CheckpointLayout, Checkpoints
from aistation_slurm.config.file import DEFAULT_PATH, chosen_path, load, parse
from aistation_slurm.config.healing import Healing
from aistation_slurm.config.job import Agent, Epilog, Gate, Hang
from aistation_slurm.config.model import Config
from aistation_slurm.config.node import Check, CheckRule, Expect, Fabric, Mount, Node, Probe
from aistation_slurm.config.placement import Placement
from aistation_slurm.config.recovery import BlackHole, Elastic, Front, Restart, Restarts, Slurm, Spares, Watchdog
from aistation_slurm.config.sweep import Sweep
from aistation_slurm.config.values import Bounded, Count, Mode, Percent, Seconds

__all__ = [
    "DEFAULT_PATH",
    "Agent",
    "BlackHole",
    "Bounded",
    "Breaker",
    "Check",
    "CheckRule",
    "CheckpointLayout",
    "Checkpoints",
    "Config",
    "Count",
    "Elastic",
    "Epilog",
    "Expect",
    "Fabric",
    "Front",
    "Gate",
    "Hang",
    "Healing",
    "Mode",
    "Mount",
    "Node",
    "Percent",
    "Placement",
    "Probe",
    "Restart",
    "Restarts",
    "Seconds",
    "Slurm",
    "Spares",
    "Sweep",
    "Watchdog",
    "chosen_path",
    "load",
    "parse",
]
