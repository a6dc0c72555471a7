"""Sections of aistation.toml about jobs on a node: before they start, while they run, after they ended."""

from __future__ import annotations

from typing import Annotated, Literal, Optional

import msgspec

from aistation_slurm.config.values import Count, Mode, Percent, Seconds


class Gate(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The prolog's decision."""

    mode: Optional[Mode] = None
    """``observe``: the gate says what it would refuse, and lets the job start."""
    budget_s: Seconds = 8.0
    """All of the prolog; stays below Slurm's MessageTimeout (10 s by default)."""
    live_deadline_s: Seconds = 2.0
    """For the child that looks at the job's own devices: sysfs of a sick device can block."""
    max_age_s: Seconds = 150.0
    """A node state older than this is read again in place."""
    refuse: tuple[str, ...] = ("gpu.*", "fabric.port_state", "fabric.rate")
    """Checks (shell patterns) whose ``fail`` on the job's own devices refuses the job."""


class Agent(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The node agent's own actions."""

    mode: Optional[Mode] = None
    """``observe``: the agent writes the node's state and drains nothing."""
    requeue: bool = True
    """After a drain for a fatal local fault, requeue the opted-in jobs of this node at once."""


class Hang(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Jobs that asked with ``--ais-hang-timeout`` and make no progress; judged by the agent of the job's first node."""

    mode: Optional[Mode] = None
    """Unset: the agent's mode."""
    poll_s: Seconds = 30.0
    """How often a job's progress is looked at."""
    startup_grace_s: Seconds = 1800.0
    """No job is suspect in its first seconds, unless it has saved a checkpoint in this attempt."""
    checkpoint_allowance_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    """Added to the timeout while the last progress was a checkpoint: what is written later, or evaluated after it."""
    computing_allowance_s: Annotated[float, msgspec.Meta(ge=0)] = 1800.0
    """GPUs of the job that draw the power of real work (evaluation, buffered output) add to the timeout, at most this."""
    spin_timeout_s: Optional[Seconds] = None
    """Timeout for a job whose GPUs are all busy at idle power, as NCCL kernels that wait. Unset: the job's own alone."""
    spin_power_percent: Percent = 30.0
    """Of the power limit: a busy GPU below it spins, one above it computes."""
    read_deadline_s: Seconds = 10.0
    """For one look at the job's files; a file system that hangs says nothing about the job."""
    stack_deadline_s: Seconds = 60.0
    """For the stack snapshot, all of it."""
    other_nodes: bool = True
    """Fetch the stacks of the job's other nodes too, by a short step of the user's in the job (``srun --overlap``)."""
    py_spy: str = ""
    """Path of py-spy; empty: beside the interpreter, then /usr/local/bin and /usr/bin."""
    py_spy_as: Literal["user", "root"] = "user"
    """``root`` where kernel.yama.ptrace_scope keeps a user's process from reading another of the same user."""
    minute_s: Seconds = 60.0
    """Seconds of a minute of ``--ais-hang-timeout``. Only tests have a reason to change it."""


class Epilog(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Clean-up after a job."""

    mode: Optional[Mode] = None
    """``observe``: no process is ended."""
    term_grace_s: Seconds = 2.0
    """Between SIGTERM and SIGKILL for an orphan GPU process."""
    memory_free_mib: Count = 1024
    """GPU memory in use above this on a GPU without processes is reported (driver reserve and ECC stay below it)."""
    protect: tuple[str, ...] = (
        "nvidia-cuda-mps*",
        "nvidia-persiste*",
        "nv-hostengine*",
        "dcgm*",
        "nvidia-fabricm*",
    )
    """Process names (shell patterns) that are never ended."""
