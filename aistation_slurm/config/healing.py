"""Section ``[healing]`` of aistation.toml."""

from __future__ import annotations

from typing import Annotated, Literal, Optional

import msgspec

from aistation_slurm.config.values import Bounded, Mode


class Healing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Self-healing of nodes that AIStation itself drained and that run nothing (docs/healing.md). Off unless enabled."""

    enabled: bool = False
    """Switches healing on; a site decides which of ``actions`` it trusts first."""
    mode: Optional[Mode] = None
    """Unset: the agent's mode. ``observe``: say what would be done."""
    actions: tuple[Literal["gpu_reset", "reboot", "command"], ...] = ("gpu_reset", "reboot", "command")
    """What may be done at all."""
    reset: tuple[str, ...] = ("/usr/bin/nvidia-smi", "--gpu-reset", "-i", "{pci}")
    """For the action ``gpu_reset``: program and arguments, no shell. Run once for each GPU, whose PCI address ``{pci}`` becomes."""
    commands: dict[str, tuple[str, ...]] = {}
    """Check (shell pattern) -> program and arguments of the site, which run instead of what the finding asks for."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 2
    """For one drain; then a person is asked to inspect the node."""
    same_fault_s: Annotated[float, msgspec.Meta(ge=0, le=31536000)] = 604800.0
    """Attempts for the same check and subject under earlier drains count too for this long."""
    deadline_s: Bounded = 180.0
    """For the reset of one GPU or one site command; then its process group is killed."""
    reboot_deadline_s: Bounded = 3600.0
    """From the request until the node has another boot id."""
    settle_s: Annotated[float, msgspec.Meta(ge=0, le=31536000)] = 60.0
    """A fault that still shows this long after the action (or the first look after a boot) was not healed."""
    verify_deadline_s: Bounded = 900.0
    """An attempt whose result cannot be judged for this long has failed."""
    verify: tuple[str, ...] = ("*",)
    """Checks (shell patterns) that must not fail before the node goes back to service."""
    passes: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """Full checks in a row without a fail before the node goes back to service."""
    pass_every_s: Annotated[float, msgspec.Meta(ge=0, le=31536000)] = 20.0
    """Between two of these checks."""
    every_s: Bounded = 30.0
    """How often the agent goes on with what it began; a node that we did not drain costs nothing."""
    dir: str = "/var/lib/aistation/healing"
    """History and evidence, on a disk that outlives a reboot. Only root writes there."""

    def __post_init__(self) -> None:
        commands = {f"commands: {name}": argv for name, argv in self.commands.items()}
        for key, argv in {"reset": self.reset, **commands}.items():
            if not argv or not argv[0].startswith("/"):
                raise ValueError(f"{key}: must begin with the absolute path of a program")
            if any("\0" in word for word in argv):
                raise ValueError(f"{key}: has a NUL character")
        if "{pci}" not in " ".join(self.reset[1:]):
            raise ValueError("reset: has no {pci}; which GPU would it reset?")
        if not self.dir.startswith("/"):
            raise ValueError("dir: must be an absolute path")
