"""A Reaction of a make-believe node, with a clock that only tests move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from aistation_slurm.node.reaction import Reaction
from tests.unit.node.fake_slurm import FakeSlurm
from tests.unit.node.sim import SimNode


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def reaction(node: SimNode, slurm: FakeSlurm, clock: Clock, own_name: Optional[Callable[[], str]] = None) -> Reaction:
    slots = {g.pci: g.slot for g in node.hardware.gpus}

    def gres_of(device: str) -> Optional[int]:
        return slots.get(device)

    return Reaction(node.config, "gpu1", "boot", slurm, gres_of, clock, own_name)
