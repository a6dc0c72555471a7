"""The whole of aistation.toml."""

from __future__ import annotations

from typing import Union

import msgspec

from aistation_slurm.config.breaker import Breaker
from aistation_slurm.config.checkpoints import Checkpoints
from aistation_slurm.config.healing import Healing
from aistation_slurm.config.job import Agent, Epilog, Gate, Hang
from aistation_slurm.config.node import Check, CheckRule, Expect, Fabric, Node, Probe
from aistation_slurm.config.placement import Placement
from aistation_slurm.config.recovery import Elastic, Front, Slurm, Spares, Watchdog
from aistation_slurm.config.sweep import Sweep
from aistation_slurm.config.values import Mode


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole of aistation.toml. ``mode`` is the default of every part that does not set its own."""

    mode: Mode = "enforce"
    """``observe``: every part says what it would do, and does nothing. For a site's first week."""
    probe: Probe = Probe()
    expect: Expect = Expect()
    check: Check = Check()
    checks: dict[str, CheckRule] = {}
    fabric: Fabric = Fabric()
    node: Node = Node()
    gate: Gate = Gate()
    agent: Agent = Agent()
    hang: Hang = Hang()
    epilog: Epilog = Epilog()
    healing: Healing = Healing()
    slurm: Slurm = Slurm()
    watchdog: Watchdog = Watchdog()
    breaker: Breaker = Breaker()
    front: Front = Front()
    elastic: Elastic = Elastic()
    spares: Spares = Spares()
    placement: Placement = Placement()
    checkpoints: Checkpoints = Checkpoints()
    sweep: Sweep = Sweep()

    def enforcing(self, part: Union[Gate, Agent, Epilog, Healing, Watchdog, Placement, Sweep]) -> bool:
        """True where ``part`` may act; False where it only observes and says what it would have done."""
        return (part.mode or self.mode) == "enforce"
