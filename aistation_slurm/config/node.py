"""Sections of aistation.toml about one node: what is read, what is expected of it, how it is checked."""

from __future__ import annotations

from typing import Annotated, Literal, Optional

import msgspec

from aistation_slurm.config.values import Count, Percent, Seconds


class Probe(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where the facts of a node are read. ``root`` is the folder that holds ``sys`` and ``proc``."""

    root: str = "/"
    """Another than ``/`` is a captured tree; nothing is done to the machine then."""
    kmsg: str = "/dev/kmsg"
    """Kernel log: the device, or a file of its records."""
    nvml_library: str = ""
    """Path of libnvidia-ml.so.1 where the loader does not find it by itself; empty: the loader's."""
    nvml_deadline_s: Seconds = 10.0
    """A child that makes NVML calls is given this long before its result counts as ``unknown``."""
    hang_confirm_s: Seconds = 30.0
    """Time in state D after which a blocked driver call is ``gpu.driver_hang``."""


class Mount(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One of ``[[expect.mounts]]``."""

    path: str
    """Mount point, absolute."""
    type: str = ""
    """File system type, such as ``nfs4``, ``lustre``. Empty: any."""
    writable: bool = True
    """A mount that went read-only fails."""


class Expect(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a healthy node of this kind has. Unset means: not judged (a count) or taken from Slurm's gres.conf."""

    gpus: Optional[Count] = None
    """GPUs of the node; fewer fail. Unset: as many as gres.conf names."""
    hca_ports: Optional[Count] = None
    """InfiniBand and RoCE ports that must be active; fewer fail. Unset: not judged."""
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
    """CRC and replay errors of one NVLink from which is warned: retries cost bandwidth before they cost jobs."""
    pcie_replays_per_min: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    """From which is warned: a card or riser that is not seated well."""
    pcie_width: Optional[Annotated[int, msgspec.Meta(ge=1, le=32)]] = None
    """Lanes each GPU must have. Unset: what its slot and most like cards of the node have."""
    driver: str = ""
    """NVIDIA driver version. Empty: not judged."""
    vbios: str = ""
    """VBIOS of all GPUs. Empty: that of most like cards of the node."""
    persistence: bool = True
    """Warn where persistence mode is off."""
    mig: Optional[bool] = None
    """MIG mode that every GPU should have; another is warned of. Unset: not judged."""
    peermem: Optional[bool] = None
    """nvidia-peermem has to be loaded. Unset: unless driver and kernel offer DMA-BUF."""
    memory_available_percent: Percent = 2.0
    """Of the host's memory, below which is warned: something outside of jobs holds it."""
    disk_free_percent: Percent = 2.0
    """Of each of ``disk_paths``, in space or in inodes, below which the node fails."""
    disk_paths: tuple[str, ...] = ("/tmp", "/var/spool/slurmd")
    """What jobs and slurmd need to write; a full one fails jobs at their start."""
    memory_gib: Optional[Annotated[float, msgspec.Meta(gt=0)]] = None
    """Memory of the host. 5 % less than this fails (a lost DIMM). Unset: not judged."""
    memory_uncorrectable: Count = 0
    """Uncorrected memory errors of the host (EDAC) above which the node fails."""
    memory_corrected_per_day: Annotated[float, msgspec.Meta(ge=0)] = 1000.0
    """Corrected memory errors of the host (EDAC) a day above which is warned."""
    swap_used_percent: Percent = 50.0
    """From which is warned: a node that swaps slows down all others of its job."""
    mounts: tuple[Mount, ...] = ()
    """Must be mounted, besides what /etc/fstab names."""
    nvme: Optional[Count] = None
    """NVMe drives. Fewer fail."""
    clock_offset_s: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    """Of the clock, as the NTP client knows it, from which is warned."""
    blocked_s: Seconds = 300.0
    """A user process that is in state D for this long is warned of."""
    blocked_processes: Count = 100
    """User processes in state D from which is warned: a file system hangs."""
    zombies: Count = 100
    """Zombie processes from which is warned."""
    services: tuple[str, ...] = ()
    """systemd units that must be active."""


class Fabric(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Limits of what fabric counters may rise by."""

    flap_window_s: Seconds = 43200.0
    """A lost link counts for this long; then ``fabric.flap`` clears by itself."""
    flap_warn: Annotated[int, msgspec.Meta(ge=1)] = 3
    """Lost links in the window from which is warned."""
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
    """For one of the site's checks; then its process group is killed and it is ``unknown``."""
    plugins_budget_s: Seconds = 60.0
    """For all of them together; what does not get its turn is ``unknown``."""
    slow_every_s: Annotated[float, msgspec.Meta(ge=0)] = 120.0
    """How often the agent asks mounts, services, clock and the site's own checks; between, the last answers stand."""


class CheckRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a site makes of one check: ``[checks."gpu.throttle"]``. The name may be a shell pattern; the longest one counts."""

    enabled: bool = True
    """``false``: the check is left out."""
    severity: Optional[Literal["warn", "fail"]] = None
    """``warn``: a fail is only a warning. ``fail``: a warning is a fail, for which the gate may refuse jobs (``gate.refuse``).
    Unset: as the check has it."""
    action: Optional[Literal["drain", "report"]] = None
    """``report``: this node never drains itself for it. ``drain``: it does, for a fail. Unset: as the check has it."""


class Node(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Node-side files and schedule."""

    state_dir: str = "/run/aistation"
    """The node's state, for the gate. In memory, so that it never outlives a boot; only root writes there."""
    gres_conf: str = "/etc/slurm/gres.conf"
    """Which device file is GPU 2 of Slurm. Configless: ``/run/slurm/conf/gres.conf``."""
    poll_s: Seconds = 30.0
    """How often the agent reads what sends no event."""
