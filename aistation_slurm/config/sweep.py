"""Section ``[sweep]`` of aistation.toml."""

from __future__ import annotations

from typing import Annotated, Literal, Optional

import msgspec

from aistation_slurm.config.values import Bounded, Mode, Percent

Some = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class Sweep(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``aistation sweep``: many nodes at once, from an administrator's host (docs/sweep.md)."""

    mode: Optional[Mode] = None
    """Unset: the mode of all. ``observe``: ``--act`` and ``--return-to-service`` only say what they would do."""
    via: Literal["ssh", "slurm", "command"] = "ssh"
    """How nodes are asked. ``slurm``: nobody is asked, Slurm's own state is read. ``command``: by ``command``."""
    command: tuple[str, ...] = ()
    """For ``via = "command"``: program and arguments, no shell; ``{node}`` is Slurm's name, ``{host}`` the host of its slurmd.
    The check's own program and arguments are added at the end."""
    program: str = "/usr/bin/aistation"
    """Where the nodes have it."""
    ssh_options: str = ""
    """More for ssh, as on its command line: ``-i /root/.ssh/sweep``."""
    fanout: Some = 64
    """Nodes asked at the same time."""
    connect_timeout_s: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 10
    """For ssh; a node that takes longer is unknown."""
    timeout_s: Bounded = 120.0
    """For the whole answer of one node; then the check there is killed and the node is unknown."""
    agents: bool = False
    """For ``via = "slurm"``: every node runs the agent, so that a node which reports nothing is well. Unset: that is believed only
    where HealthCheckProgram of slurm.conf runs the checks."""
    share_percent: Percent = 10.0
    """Of a partition's nodes, that AIStation may have drained when ``--act`` has done its part; where more would go, none goes."""
    least: Some = 4
    """As many may be drained in any partition: 10 % of a small one would be none."""
    drains_per_min: Some = 4
    """No more in any minute."""
    passes: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """Full checks in a row without a fail before ``--return-to-service`` gives a node back."""
    pass_every_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 20.0
    """Between two of them."""
    reboot_for: tuple[str, ...] = ("gpu.lost", "gpu.count", "gpu.driver_hang")
    """Checks (shell patterns) whose drain is taken back only after a boot later than it; Xids go by the action of their table."""

    def __post_init__(self) -> None:
        if self.via == "command" and "{node}" not in " ".join(self.command) and "{host}" not in " ".join(self.command):
            raise ValueError('via: "command" needs a command with {node} or {host}; which node would it ask?')
        if any("\0" in word for word in (*self.command, self.program, self.ssh_options)):
            raise ValueError("command: has a NUL character")
        if not self.program.startswith("/"):
            raise ValueError("program: must be an absolute path")
