"""What the suite asks of Slurm, as one protocol, and the two records that come back.

Backends: :mod:`aistation_slurm.slurm.cli_backend` (Slurm's commands) and :mod:`aistation_slurm.slurm.pyslurm_backend`;
tests/cluster/test_client_contract.py holds for each. All times are unix seconds; None means "not set".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Protocol

__all__ = ["Job", "Node", "Reservation", "SlurmClient"]

FINISHED = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
)
_UNUSABLE_WORDS = """DRAIN NOT_RESPONDING FAIL MAINTENANCE POWERED_DOWN POWERING_DOWN POWER_DOWN POWER_DRAIN
REBOOT_ISSUED INVALID_REG"""
UNUSABLE = frozenset(_UNUSABLE_WORDS.split())


@dataclass(frozen=True)
class Job:
    """One job as the controller shows it now.

    state: base state in capitals (``PENDING``); flags: ``COMPLETING``, ``REQUEUED`` ... nodes: allocated now, or last.
    priority: 0 is held, -1 is not told. requeue: what the job asked (``--no-requeue`` is False); None where not told.
    node_count: allocated, or, while PENDING, Slurm's own guess. min_nodes: the fewest it takes, 0 where not told (22.05's text
    of a started job); max_nodes: the most, told only while PENDING, else 0. cron: of scrontab, Slurm itself restarts it.
    reservation: ReservationName, "" for none. tasks_per_node: ``--ntasks-per-node``, 0 where not asked.
    """

    job_id: int
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    name: str = ""
    user_id: int = -1
    user_name: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    start_time: Optional[int] = None
    eligible_time: Optional[int] = None
    end_time: Optional[int] = None
    submit_time: Optional[int] = None
    restart_cnt: int = 0
    comment: str = ""
    admin_comment: str = ""
    exit_code: int = 0
    exit_signal: int = 0
    priority: int = 0
    node_count: int = 0
    min_nodes: int = 0
    max_nodes: int = 0
    time_limit_s: Optional[int] = None
    array_job_id: Optional[int] = None
    array_task_id: Optional[int] = None
    het_job_id: Optional[int] = None
    requeue: Optional[bool] = None
    batch: bool = True
    required_switches: int = 0
    switch_wait_s: int = 0
    gres_detail: tuple[str, ...] = ()
    std_out: str = ""
    cron: bool = False
    reservation: str = ""
    nice: int = 0
    tasks: int = 0
    tasks_per_node: int = 0
    cpus_per_task: int = 1

    @property
    def argument(self) -> str:
        """How ``scontrol`` is told this very job: an array task is ``1234_7``, since 1234 means the whole array."""
        if self.array_job_id and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return str(self.job_id)

    @property
    def completing(self) -> bool:
        """True while epilogs of the last attempt may still run."""
        return "COMPLETING" in self.flags or self.state == "COMPLETING"

    @property
    def finished(self) -> bool:
        """True when the job has ended for good and its nodes are free."""
        return self.state in FINISHED and not self.completing

    @property
    def held_by_failed_launch(self) -> bool:
        """Held by Slurm itself after a failed prolog; ``launch failed requeued held`` with blanks or underscores."""
        return self.priority == 0 and self.reason.replace("_", " ").lower() == "launch failed requeued held"


@dataclass(frozen=True)
class Node:
    """One node as the controller shows it now. ``reason`` is without the ``[user@time]`` that scontrol adds.

    hostname: NodeHostName, the host that runs its slurmd; the name is Slurm's own and may be another one.
    features: the active ones.
    """

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_time: Optional[int] = None
    boot_time: Optional[int] = None
    slurmd_start_time: Optional[int] = None
    partitions: tuple[str, ...] = ()
    comment: str = ""
    gres: str = ""
    extra: str = ""
    hostname: str = ""
    features: tuple[str, ...] = ()

    @property
    def drained(self) -> bool:
        """True where the DRAIN flag is set, whatever still runs there."""
        return "DRAIN" in self.flags

    @property
    def responding(self) -> bool:
        return self.state != "DOWN" and "NOT_RESPONDING" not in self.flags

    @property
    def schedulable(self) -> bool:
        """True where a new job may start now or when the present one ends."""
        return self.state in ("IDLE", "ALLOCATED", "MIXED") and not (self.flags & UNUSABLE)


@dataclass(frozen=True)
class Reservation:
    """One reservation. flags as scontrol prints them (``FLEX``, ``PURGE_COMP=00:01:00``)."""

    name: str
    nodes: tuple[str, ...] = ()
    start_time: Optional[int] = None
    end_time: Optional[int] = None
    flags: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()


class SlurmClient(Protocol):
    """Every method is bounded in time and raises SlurmUnavailable or SlurmRefused."""

    def jobs(self) -> list[Job]:
        """Every job in the controller's memory, finished ones too. An empty list means: truly none."""
        ...

    def job(self, job_id: int) -> Optional[Job]:
        """One job by its raw id; None when the controller no longer knows it."""
        ...

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """All nodes, or those named."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Set DRAIN and the reason. Replaces whatever reason is there: look first."""
        ...

    def down(self, node: str, reason: str) -> None:
        """Set DOWN and the reason: every job there ends. For a node whose processes cannot be ended."""
        ...

    def update_node(self, node: str, **fields: str) -> None:
        """``scontrol update NodeName=`` with these keys (Reason, Comment), all in one request; the state stays."""
        ...

    def resume(self, node: str) -> None:
        """Clear DRAIN and the reason."""
        ...

    def requeue(self, job: Job) -> None:
        """Put a running or ended batch job back in the queue."""
        ...

    def release(self, job: Job) -> None:
        """Take a hold off."""
        ...

    def hold(self, job: Job) -> None:
        """Hold a pending job."""
        ...

    def update_job(self, job: Job, **fields: str) -> None:
        """``scontrol update JobId=`` with these keys, all in one request."""
        ...

    def cluster_name(self) -> str:
        """ClusterName of slurm.conf."""
        ...

    def reservations(self) -> list[Reservation]:
        """All reservations. An empty list means: truly none."""
        ...

    def create_reservation(self, name: str, **fields: str) -> None:
        """``scontrol create reservation`` with these keys, from now on."""
        ...

    def update_reservation(self, name: str, **fields: str) -> None:
        """``scontrol update ReservationName=``. Nodes is the whole new list, never empty."""
        ...

    def delete_reservation(self, name: str) -> None:
        """SlurmRefused where a running job uses it, or where there is none of that name."""
        ...
