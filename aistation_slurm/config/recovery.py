"""Sections of aistation.toml about the controller's part: how Slurm is asked, and which jobs are restarted how."""

from __future__ import annotations

from typing import Annotated, Literal, Optional

import msgspec

from aistation_slurm.config.values import Count, Mode, Seconds
from aistation_slurm.slurm import hostlist


class Slurm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How Slurm is asked."""

    bin_dir: str = "/usr/bin"
    """Where scontrol, squeue and the others are."""
    conf: str = ""
    """slurm.conf; empty: ``$SLURM_CONF`` or Slurm's own default."""
    timeout_s: Seconds = 10.0
    """For one request to Slurm; then its process group is killed and Slurm counts as silent."""
    backend: Literal["auto", "cli", "pyslurm"] = "auto"
    """``auto``: pyslurm where it is of the running Slurm's release, else Slurm's commands."""


class Restart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How often one job is restarted for one cause, and how soon. The delay doubles with each quick failure in a row."""

    limit: Count = 0
    """Restarts for this cause in a job's life; 0: never for this cause."""
    backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Delay after the second attempt in a row that ended within ``quick_s``; the first restart is never delayed."""
    backoff_max_s: Seconds = 600.0
    """The delay does not grow beyond this."""
    wait_first: bool = False
    """Delay the first restart too."""


class Restarts(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The policy table, by cause. Only ``infrastructure`` leaves the budget of ``--ais-max-restarts`` alone."""

    infrastructure: Restart = Restart(limit=100, backoff_s=10.0)
    """A fault of a node of the job: drained by AIStation, down, rebooted, or its gate refused the job."""
    hang: Restart = Restart(limit=3, backoff_s=30.0)
    """No progress for ``--ais-hang-timeout``."""
    resume_failed: Restart = Restart(limit=4, backoff_s=10.0)
    """Failed by itself soon after one of our restarts: perhaps its checkpoint is bad, and start-up takes an older one."""
    busy: Restart = Restart(limit=10, backoff_s=30.0, backoff_max_s=120.0, wait_first=True)
    """A restart that start-up refused, since processes of an earlier attempt still wrote to the checkpoint directory."""
    transient: Restart = Restart(limit=2, backoff_s=30.0)
    """Failed with words of NCCL, the network or the driver in its output, and no node is known to be at fault."""


class BlackHole(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A node on which job after job dies at once, while the same users' jobs run elsewhere."""

    action: Literal["drain", "report", "off"] = "drain"
    """``drain`` the node, only ``report`` it, or ``off``."""
    quick_s: Seconds = 60.0
    """A job that failed within this time counts against the nodes it ran on."""
    window_s: Seconds = 900.0
    """Quick failures of longer ago are forgotten."""
    jobs: Annotated[int, msgspec.Meta(ge=2)] = 4
    """Quick failures in the window, of at least ``users`` users, and nothing that ran longer there."""
    users: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Of one user alone it may be a broken script."""


class Watchdog(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Recovery on the controller."""

    mode: Optional[Mode] = None
    """``observe``: what would be done is journaled and printed, and nothing is requeued."""
    spool_dir: str = "/var/spool/aistation/events"
    """Where EpilogSlurmctld leaves its events; the script has the same path (``AISTATION_SPOOL`` changes it there)."""
    journal: str = "/var/lib/aistation/journal.db"
    """SQLite, on a local disk of the controller: its locks do not work on a network file system."""
    poll_s: Seconds = 30.0
    """Safety net; events from EpilogSlurmctld are handled at once."""
    restart: Restarts = Restarts()
    max_restarts: Count = 10
    """Restarts of one job that are not for the machine's faults, where the job did not ask for fewer or more."""
    max_restarts_cap: Count = 100
    """The most that ``--ais-max-restarts`` may ask for."""
    no_progress_restarts: Count = 5
    """Hold a job after this many restarts in a row without a newer checkpoint to resume from; 0: never."""
    start_gap_s: Seconds = 1.0
    """StartTime after COMPLETING ended: slurmd refuses a credential of the same second as the last terminate."""
    quick_s: Seconds = 300.0
    """An attempt that ended sooner counts as quick: restarts of quick attempts in a row are delayed more and more."""
    exclusion_s: Seconds = 86400.0
    """A node that was excluded from a job by AIStation may be used by that job again after this long."""
    late_s: Seconds = 3600.0
    """A failure that Slurm still shows but that ended longer ago is left alone: its owner may have acted on it."""
    unkillable_s: Seconds = 90.0
    """COMPLETING for longer on a node that bears our drain and runs nothing else: DOWN. Never sooner than Slurm's own KillWait,
    UnkillableStepTimeout and EpilogTimeout together."""
    keep_days: Annotated[int, msgspec.Meta(ge=1)] = 90
    """Journal entries older than this are removed."""
    black_hole: BlackHole = BlackHole()
    partitions: tuple[str, ...] = ()
    """Partitions whose batch jobs are managed without opting in (requeue only, nothing is put in their environment)."""


class Front(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A restarted job on a full cluster: next to start, on the healthy nodes that it held (recovery/front.py)."""

    keep_nodes_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 300.0
    """Nodes are kept and the job stays in front for at most this long (whole minutes, rounded up). 0: never."""
    most: Count = 4
    """Jobs in front at once; the next one waits in its usual place."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Of a partition's nodes in service: no more are kept for jobs in front, but for one job alone as many as it needs."""


class Elastic(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Restarted jobs that asked for a range of nodes and fix their tasks a node (recovery/elastic.py)."""

    resize: bool = False
    """Resize them. Their scripts must take the size from SLURM_JOB_NUM_NODES: SLURM_NTASKS keeps the submitted number."""
    after_s: Seconds = 600.0
    """Smaller only after a restart has waited this long for as many nodes as before."""


class Spares(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Nodes that stand by for restarted jobs, in a reservation that the watchdog keeps (recovery/spares.py)."""

    nodes: tuple[str, ...] = ()
    """Slurm hostlists. Empty: there are no spares, and the reservation is not touched."""
    reservation: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")] = "ais-spares"
    """Name of the reservation; the watchdog makes it where it is missing."""
    after_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """A restarted job waits this long before a spare is lent: free nodes come first."""

    def __post_init__(self) -> None:
        for text in self.nodes:
            try:
                hostlist.expand(text)
            except hostlist.HostlistError as exc:
                raise ValueError(f"nodes: {exc}") from exc
