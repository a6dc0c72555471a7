"""aistation.toml, decoded strictly into typed structs.

Lookup order: the path given, then ``$AISTATION_CONFIG``, then ``/etc/aistation/aistation.toml``. A missing default
file means every default. A missing file that was named, an unknown key or a wrong type is a :class:`ConfigError` of one
line with file, line number and the allowed keys. Units are in the key names: ``_s`` seconds, ``_gbps`` Gb/s,
``_percent`` 0..100.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Optional, Union, get_args, get_origin

import msgspec

from aistation_slurm.checkpoints.layouts import Layout
from aistation_slurm.errors import ConfigError
from aistation_slurm.slurm import hostlist

__all__ = ["DEFAULT_PATH", "Config", "Mode", "load"]

DEFAULT_PATH = Path("/etc/aistation/aistation.toml")

Mode = Literal["enforce", "observe"]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Bounded = Annotated[float, msgspec.Meta(gt=0, le=604800)]
"""Seconds, a week at most: a deadline that has to end."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]


class Probe(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where the facts of a node are read. ``root`` is the folder that holds ``sys`` and ``proc``."""

    root: str = "/"
    kmsg: str = "/dev/kmsg"
    nvml_library: str = ""
    """Path of libnvidia-ml.so.1 where the loader does not find it by itself; empty: the loader's."""
    nvml_deadline_s: Seconds = 10.0
    """A child that makes NVML calls is given this long before its result counts as ``unknown``."""
    hang_confirm_s: Seconds = 30.0
    """Time in state D after which a blocked driver call is ``gpu.driver_hang``."""


class Mount(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One of ``[[expect.mounts]]``."""

    path: str
    type: str = ""
    """File system type, such as ``nfs4``, ``lustre``. Empty: any."""
    writable: bool = True


class Expect(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a healthy node of this kind has. Unset means: not judged (a count) or taken from Slurm's gres.conf."""

    gpus: Optional[Count] = None
    hca_ports: Optional[Count] = None
    rate_gbps: Optional[Annotated[float, msgspec.Meta(gt=0)]] = None
    """Rate each judged InfiniBand port must reach. Unset: a port below the majority of its own kind of card fails."""
    ignore_hcas: tuple[str, ...] = ()
    """Shell patterns of RDMA devices that are never judged (management and storage ports): name, PCI address, board, interface."""
    roce_gid_index: Optional[Count] = None
    """Index at which each RoCE HCA must have a RoCE v2 GID with an address. Unset: where most of the node's HCAs have it."""
    mtu: Optional[Annotated[int, msgspec.Meta(ge=256, le=65535)]] = None
    """MTU that the interface of each RoCE HCA must have. Unset: that of most of its kind in the node."""
    ecc_uncorrectable: Count = 0
    """Uncorrectable GPU memory errors since the driver was loaded above which the card fails."""
    ecc_corrected: Count = 50_000_000
    """Corrected GPU memory errors since the driver was loaded above which is warned."""
    ecc_sram_lifetime: Count = 4
    """Uncorrectable SRAM errors in a card's life above which is warned: another card is due."""
    remapped_rows: Count = 512
    """Rows remapped for uncorrectable errors above which is warned."""
    retired_pages: Count = 10
    """Pages retired (cards before Ampere) above which is warned."""
    throttle_percent: Percent = 60.0
    """Share of the looks of 10 minutes with HW slowdown, thermal slowdown or power brake from which is warned."""
    nvlink_errors_per_min: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    pcie_replays_per_min: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    pcie_width: Optional[Annotated[int, msgspec.Meta(ge=1, le=32)]] = None
    """Lanes each GPU must have. Unset: what its slot and most like cards of the node have."""
    driver: str = ""
    """NVIDIA driver version. Empty: not judged."""
    vbios: str = ""
    """VBIOS of all GPUs. Empty: that of most like cards of the node."""
    persistence: bool = True
    """Warn where persistence mode is off."""
    mig: Optional[bool] = None
    peermem: Optional[bool] = None
    """nvidia-peermem has to be loaded. Unset: unless driver and kernel offer DMA-BUF."""
    memory_available_percent: Percent = 2.0
    disk_free_percent: Percent = 2.0
    disk_paths: tuple[str, ...] = ("/tmp", "/var/spool/slurmd")
    memory_gib: Optional[Annotated[float, msgspec.Meta(gt=0)]] = None
    """Memory of the host. 5 % less than this fails (a lost DIMM). Unset: not judged."""
    memory_uncorrectable: Count = 0
    """Uncorrected memory errors of the host (EDAC) above which the node fails."""
    memory_corrected_per_day: Annotated[float, msgspec.Meta(ge=0)] = 1000.0
    """Corrected memory errors of the host (EDAC) a day above which is warned."""
    swap_used_percent: Percent = 50.0
    mounts: tuple[Mount, ...] = ()
    """Must be mounted, besides what /etc/fstab names."""
    nvme: Optional[Count] = None
    """NVMe drives. Fewer fail."""
    clock_offset_s: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    blocked_s: Seconds = 300.0
    """A user process that is in state D for this long is warned of."""
    blocked_processes: Count = 100
    zombies: Count = 100
    services: tuple[str, ...] = ()
    """systemd units that must be active."""


class Fabric(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Limits of what fabric counters may rise by."""

    flap_window_s: Seconds = 43200.0
    """A lost link counts for this long; then ``fabric.flap`` clears by itself."""
    flap_warn: Annotated[int, msgspec.Meta(ge=1)] = 3
    flap_fail: Annotated[int, msgspec.Meta(ge=1)] = 10
    """More lost links than this in the window fail."""
    bit_error_rate: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-12
    """Symbol errors beyond this share of the bits warn."""
    errors_per_hour: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    """Counter name -> limit, for the counters of ``fabric.errors`` whose own limit does not suit the site."""
    pause_percent: Percent = 10.0
    """Of the time, that an interface may send pause frames."""
    ethtool_every_s: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    """How often the agent asks drivers for their statistics; it costs more than all other fabric facts. 0: never."""


class Check(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How the checks of a node are run."""

    plugins_dir: str = "/etc/aistation/checks.d"
    """The site's own checks: executables that exit 0 ok, 1 fail, 2 warn, 3 unknown (node/site_checks.py)."""
    plugin_deadline_s: Seconds = 10.0
    plugins_budget_s: Seconds = 60.0
    """For all of them together; what does not get its turn is ``unknown``."""
    slow_every_s: Annotated[float, msgspec.Meta(ge=0)] = 120.0
    """How often the agent asks mounts, services, clock and the site's own checks; between, the last answers stand."""


class CheckRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a site makes of one check: ``[checks."gpu.throttle"]``. The name may be a shell pattern; the longest one counts."""

    enabled: bool = True
    severity: Optional[Literal["warn", "fail"]] = None
    """``warn``: a fail is only a warning. ``fail``: a warning is a fail, for which the gate may refuse jobs (``gate.refuse``).
    Unset: as the check has it."""
    action: Optional[Literal["drain", "report"]] = None
    """``report``: this node never drains itself for it. ``drain``: it does, for a fail. Unset: as the check has it."""


class Node(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Node-side files and schedule."""

    state_dir: str = "/run/aistation"
    gres_conf: str = "/etc/slurm/gres.conf"
    poll_s: Seconds = 30.0
    """How often the agent reads what sends no event."""


class Gate(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The prolog's decision."""

    mode: Optional[Mode] = None
    budget_s: Seconds = 8.0
    """All of the prolog; stays below Slurm's MessageTimeout (10 s by default)."""
    live_deadline_s: Seconds = 2.0
    max_age_s: Seconds = 150.0
    """A node state older than this is read again in place."""
    refuse: tuple[str, ...] = ("gpu.*", "fabric.port_state", "fabric.rate")
    """Checks (shell patterns) whose ``fail`` on the job's own devices refuses the job."""


class Agent(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The node agent's own actions."""

    mode: Optional[Mode] = None
    requeue: bool = True
    """After a drain for a fatal local fault, requeue the opted-in jobs of this node at once."""


class Hang(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Jobs that asked with ``--ais-hang-timeout`` and make no progress; judged by the agent of the job's first node."""

    mode: Optional[Mode] = None
    """Unset: the agent's mode."""
    poll_s: Seconds = 30.0
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


class Healing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Self-healing of nodes that AIStation itself drained and that run nothing (docs/healing.md). Off unless enabled."""

    enabled: bool = False
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


class Slurm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How Slurm is asked."""

    bin_dir: str = "/usr/bin"
    conf: str = ""
    """slurm.conf; empty: ``$SLURM_CONF`` or Slurm's own default."""
    timeout_s: Seconds = 10.0
    backend: Literal["auto", "cli", "pyslurm"] = "auto"


class Restart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How often one job is restarted for one cause, and how soon. The delay doubles with each quick failure in a row."""

    limit: Count = 0
    """Restarts for this cause in a job's life; 0: never for this cause."""
    backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Delay after the second attempt in a row that ended within ``quick_s``; the first restart is never delayed."""
    backoff_max_s: Seconds = 600.0
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
    quick_s: Seconds = 60.0
    """A job that failed within this time counts against the nodes it ran on."""
    window_s: Seconds = 900.0
    jobs: Annotated[int, msgspec.Meta(ge=2)] = 4
    """Quick failures in the window, of at least ``users`` users, and nothing that ran longer there."""
    users: Annotated[int, msgspec.Meta(ge=1)] = 2


class Watchdog(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Recovery on the controller."""

    mode: Optional[Mode] = None
    spool_dir: str = "/var/spool/aistation/events"
    journal: str = "/var/lib/aistation/journal.db"
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
    """COMPLETING for longer (KillWait is 30 s by default) on a node that bears our drain and runs nothing else: DOWN."""
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
    after_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """A restarted job waits this long before a spare is lent: free nodes come first."""

    def __post_init__(self) -> None:
        for text in self.nodes:
            try:
                hostlist.expand(text)
            except hostlist.HostlistError as exc:
                raise ValueError(f"nodes: {exc}") from exc


class Placement(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Few leaf switches and good links for new jobs: the table that job_submit.lua looks up (docs/placement.md)."""

    mode: Optional[Mode] = None
    """``observe``: no table is published by the watchdog, and pending jobs stay as they are."""
    table: str = "/var/lib/aistation/decisions"
    """aistation.lua has the same path; the folder must be writable for nobody but SlurmUser or root."""
    ttl_s: Annotated[float, msgspec.Meta(ge=60, le=604800)] = 900.0
    """A table that was not renewed for so long is not used any more."""
    degraded: tuple[str, ...] = ("fabric.*",)
    """Checks (shell patterns) whose findings make a node's agent grade it as degraded fabric, of ``degraded_from`` or worse."""
    degraded_from: Literal["warn", "fail"] = "fail"
    avoid_percent: Percent = 25.0
    """Where more of a partition's nodes are degraded, the fabric and not the nodes is at fault, and none is avoided."""
    correct: bool = True
    """Correct the exclusions of pending jobs when a node's grade changes; only those that AIStation made."""
    corrections_per_s: Annotated[float, msgspec.Meta(gt=0, le=10)] = 10.0


class CheckpointLayout(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A site's own layout of checkpoints (docs/checkpoints.md); jobs reach it through ``--ais-resume=auto``."""

    name: str
    """Value of ``aistation ckpt inspect --framework``."""
    glob: str
    """Shell pattern of a checkpoint's file or folder, with ``{step}`` for its digits: ``ckpt_{step}``."""
    resume_args: str
    """What ``AISTATION_RESUME_ARGS`` becomes: ``--restore {path}``; a job's ``--ais-resume-args`` goes before it."""
    marker: str = ""
    """File that is written when saving has ended, inside or beside the checkpoint: ``DONE``, ``{name}.done``."""
    require: tuple[str, ...] = ()
    """Shell patterns of files below the checkpoint, each of which must match one, and none of them empty."""
    shards: str = ""
    """Pattern of numbered shards below the checkpoint, from 0 or 1 on: ``shard_{i}_of_{n}.bin``, or without ``{n}``."""

    def __post_init__(self) -> None:
        self.layout()

    def layout(self) -> Layout:
        """The same for the readers of checkpoints. Raises ValueError, whose text begins with the key."""
        return Layout(**msgspec.structs.asdict(self))


class Checkpoints(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How checkpoints are read, beyond the frameworks that AIStation knows."""

    layout: tuple[CheckpointLayout, ...] = ()

    def __post_init__(self) -> None:
        names = [layout.name for layout in self.layout]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"layout: the name {twice!r} is given twice")


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole of aistation.toml. ``mode`` is the default of every part that does not set its own."""

    mode: Mode = "enforce"
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
    front: Front = Front()
    elastic: Elastic = Elastic()
    spares: Spares = Spares()
    placement: Placement = Placement()
    checkpoints: Checkpoints = Checkpoints()

    def enforcing(self, part: Union[Gate, Agent, Epilog, Healing, Watchdog, Placement]) -> bool:
        """True where ``part`` may act; False where it only observes and says what it would have done."""
        return (part.mode or self.mode) == "enforce"


def load(path: Optional[Path] = None) -> Config:
    """Read the configuration.

    Raises ConfigError: the named file is missing or unreadable, is not TOML, or has an unknown key or a wrong type.
    """
    named = path or (Path(os.environ["AISTATION_CONFIG"]) if os.environ.get("AISTATION_CONFIG") else None)
    chosen = named or DEFAULT_PATH
    try:
        text = chosen.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named is None:
            return Config()
        raise ConfigError(f"{chosen}: no such file; name an existing one or unset AISTATION_CONFIG") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{chosen}: cannot be read: {exc}") from exc
    return parse(text, str(chosen))


def parse(text: str, origin: str) -> Config:
    """Decode TOML text; ``origin`` names it in messages."""
    try:
        return msgspec.toml.decode(text, type=Config)
    except msgspec.ValidationError as exc:
        raise ConfigError(_explain(text, origin, str(exc))) from exc
    except (msgspec.DecodeError, ValueError) as exc:
        # tomllib's own message already ends with "(at line N, column M)"
        raise ConfigError(f"{origin}: not valid TOML: {exc}") from exc


def _explain(text: str, origin: str, message: str) -> str:
    """Turn msgspec's ``... - at `$.gate` `` into file:line, the allowed keys and the nearest one."""
    match = re.search(r" - at `\$\.?([^`]*)`$", message)
    where = re.findall(r"(?:[^.\[]|\[[^\]]*\])+", match.group(1)) if match else []
    what = message[: match.start()] if match else message
    unknown = re.search(r"unknown field `([^`]+)`", what)
    if unknown:
        key = unknown.group(1)
        allowed = _allowed_keys(where)
        near = difflib.get_close_matches(key, allowed, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        section = f"[{'.'.join(where)}]" if where else "the top level"
        line = _line_of(text, where, key)
        return f"{origin}:{line}: unknown key {key!r} in {section}{hint}. Allowed: {', '.join(allowed)}"
    names = [*where[:-1], *(re.sub(r"\[.*\]$", "", p) for p in where[-1:])]
    line = _line_of(text, names[:-1], names[-1]) if names else 1
    if where:  # a whole table was refused: the line of the key with which the message begins
        line = max(line, _line_of(text, where, what.partition(":")[0]))
    choices = "" if "enum value" not in what else f". Allowed: {', '.join(_choices(names))}"
    return f"{origin}:{line}: {'.'.join(where)}: {what[0].lower() + what[1:]}{choices}"


def _field_type(where: list[str]) -> object:
    """The declared type at a key path such as ``["gate", "mode"]``."""
    current: object = Config
    for part in where:
        name, *inside = re.split(r"(?=\[)", part)
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(current)}  # type: ignore[arg-type]
        current = fields[name]
        for _ in inside:
            # the values of a table of tables, the items of a list
            current = get_args(current)[1 if get_origin(current) is dict else 0]
    return current


def _choices(where: list[str]) -> list[str]:
    """The values of a ``Literal`` key, also inside ``Optional``."""
    found: list[str] = []
    pending: list[object] = [_field_type(where)]
    while pending:
        for arg in get_args(pending.pop()):
            if isinstance(arg, str):
                found.append(arg)
            else:
                pending.append(arg)
    return found


def _allowed_keys(where: list[str]) -> list[str]:
    return sorted(f.encode_name for f in msgspec.structs.fields(_field_type(where)))  # type: ignore[arg-type]


def _line_of(text: str, section: list[str], key: str) -> int:
    """Line (1-based) where ``key`` is set inside ``[section]``; 1 when it is not found (inline tables).

    ``checks[...]`` stands for any table of ``[checks."..."]``, ``mounts[0]`` for the first of ``[[expect.mounts]]``.
    """
    open_ended = bool(section) and section[-1].endswith("]")
    item = re.search(r"\[(\d+)\]$", section[-1]) if section else None
    before, found = int(item.group(1)) + 1 if item else 0, 1
    wanted, current = re.sub(r"\[[^\]]*\]", "", ".".join(section)), ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        header = re.match(r"\[\[?\s*([^\[\]]+?)\s*\]", line)
        if header:
            current = header.group(1)
            before -= current == wanted
            found = number if item and current == wanted and not before else found
            if current == (f"{wanted}.{key}" if wanted else key):
                return number
        elif (
            before <= 0
            and (current == wanted or (open_ended and current.startswith(f"{wanted}.")))
            and re.match(rf"[\"']?{re.escape(key)}[\"']?\s*[=.]", line)
        ):
            return number
    return found
