"""Why a finding is what it is: the fact, the limits that the configuration sets, the source, and who acts on it. Pure.

Sources: NVML (docs.nvidia.com/deploy/nvml-api), the kernel's ABI documents for /sys and /proc, systemd and chrony.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from aistation_slurm.config import Config
from aistation_slurm.detectors import ALL
from aistation_slurm.detectors.rules import rule_of
from aistation_slurm.findings import Finding, Scope, Status

__all__ = ["SOURCES", "Explanation", "Source", "explain"]


class Source(NamedTuple):
    """facts: where they are read. limits: keys of the configuration, with their section."""

    facts: str
    limits: tuple[str, ...] = ()


_KLOG = "kernel log (/dev/kmsg, records of facility kernel of this boot)"
_IB = "/sys/class/infiniband/<hca>/ports/<n>"
_FABRIC = "counters of /sys/class/infiniband against the first look of this boot"

SOURCES = {
    "gpu.count": Source("NVML nvmlDeviceGetCount; /sys/bus/pci/devices; gres.conf", ("expect.gpus", "node.gres_conf")),
    "gpu.lost": Source(f"PCI configuration space; NVML's GPU_IS_LOST; {_KLOG}"),
    "gpu.xid": Source(f"{_KLOG}; what each code means: detectors/xid.toml", ("probe.kmsg",)),
    "gpu.ecc_uncorrectable": Source(
        "NVML nvmlDeviceGetTotalEccErrors, nvmlDeviceGetMemoryErrorCounter, nvmlDeviceGetSramEccErrorStatus",
        ("expect.ecc_uncorrectable", "expect.ecc_sram_lifetime"),
    ),
    "gpu.ecc_corrected": Source("NVML nvmlDeviceGetTotalEccErrors (corrected, volatile)", ("expect.ecc_corrected",)),
    "gpu.ecc_mode": Source("NVML nvmlDeviceGetEccMode, against like cards of the node"),
    "gpu.row_remap": Source(
        "NVML nvmlDeviceGetRemappedRows, nvmlDeviceGetRowRemapperHistogram", ("expect.remapped_rows",)
    ),
    "gpu.retired_pages": Source("NVML fields RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING", ("expect.retired_pages",)),
    "gpu.recovery": Source("NVML field GET_GPU_RECOVERY_ACTION"),
    "gpu.telemetry": Source("NVML: questions that answered with an error"),
    "gpu.nvlink": Source("NVML nvmlDeviceGetNvLinkState, against like cards of the node"),
    "gpu.nvlink_errors": Source(
        "NVML fields NVLINK_*_ERROR_COUNT_TOTAL over the looks of 10 minutes", ("expect.nvlink_errors_per_min",)
    ),
    "gpu.fabric_manager": Source("NVML nvmlDeviceGetGpuFabricInfoV"),
    "gpu.throttle": Source(
        "NVML nvmlDeviceGetCurrentClocksThrottleReasons and field PERF_POLICY_THERMAL over the looks of 10 minutes",
        ("expect.throttle_percent",),
    ),
    "gpu.clocks": Source("NVML nvmlDeviceGetClockInfo (SM) under load, half of nvmlDeviceGetMaxClockInfo"),
    "gpu.temperature": Source("NVML nvmlDeviceGetTemperature against nvmlDeviceGetTemperatureThreshold of the card"),
    "gpu.power": Source("NVML nvmlDeviceGetEnforcedPowerLimit, against like cards of the node and the card's default"),
    "gpu.pcie": Source(
        "/sys/bus/pci/devices/*/{current,max}_link_{width,speed} of card and slot; NVML's PCIe link and replay counter",
        ("expect.pcie_width", "expect.pcie_replays_per_min"),
    ),
    "gpu.persistence": Source("NVML nvmlDeviceGetPersistenceMode", ("expect.persistence",)),
    "gpu.versions": Source(
        "NVML driver, VBIOS and InfoROM versions; /proc/driver/nvidia", ("expect.driver", "expect.vbios")
    ),
    "gpu.mig": Source("NVML nvmlDeviceGetMigMode", ("expect.mig",)),
    "gpu.peermem": Source("/proc/modules, /proc/driver/nvidia/version, kernel release", ("expect.peermem",)),
    "gpu.orphan_process": Source(
        "NVML nvmlDeviceGetComputeRunningProcesses; /proc and cgroups of the processes", ("epilog.protect",)
    ),
    "gpu.driver_hang": Source(
        "state and progress of our own child in /proc", ("probe.nvml_deadline_s", "probe.hang_confirm_s")
    ),
    "fabric.port_state": Source(f"{_IB}/state, phys_state", ("expect.hca_ports", "expect.ignore_hcas")),
    "fabric.rate": Source(f"{_IB}/rate, against like cards of the node", ("expect.rate_gbps", "expect.ignore_hcas")),
    "fabric.errors": Source(_FABRIC, ("fabric.bit_error_rate", "fabric.errors_per_hour")),
    "fabric.flap": Source(
        f"{_IB}/counters/link_downed", ("fabric.flap_window_s", "fabric.flap_warn", "fabric.flap_fail")
    ),
    "fabric.roce_gid": Source(f"{_IB}/gids, gid_attrs", ("expect.roce_gid_index",)),
    "fabric.pfc": Source("the interface's driver statistics (ethtool)", ("fabric.pause_percent",)),
    "fabric.mtu": Source("/sys/class/net/<interface>/mtu", ("expect.mtu",)),
    "fabric.firmware": Source("/sys/class/infiniband/<hca>/fw_ver, against like cards of the node"),
    "fabric.device_files": Source("/sys/class/infiniband_verbs, infiniband_mad"),
    "host.memory": Source("/proc/meminfo", ("expect.memory_gib", "expect.memory_available_percent")),
    "host.swap": Source("/proc/meminfo", ("expect.swap_used_percent",)),
    "host.memory_errors": Source(
        f"/sys/devices/system/edac/mc; HardwareCorrupted of /proc/meminfo; {_KLOG}",
        ("expect.memory_uncorrectable", "expect.memory_corrected_per_day"),
    ),
    "host.kernel": Source("/proc/sys/kernel/tainted"),
    "host.disk": Source("statvfs of each path", ("expect.disk_paths", "expect.disk_free_percent")),
    "host.mounts": Source(f"/proc/mounts, /etc/fstab, statvfs in a child; {_KLOG}", ("expect.mounts",)),
    "host.nvme": Source(f"/sys/class/nvme; {_KLOG}", ("expect.nvme",)),
    "host.clock": Source("adjtimex, chronyc tracking, timedatectl", ("expect.clock_offset_s",)),
    "host.blocked": Source("/proc/<pid>/stat", ("expect.blocked_s", "expect.blocked_processes")),
    "host.zombies": Source("/proc/<pid>/stat", ("expect.zombies",)),
    "host.services": Source("systemctl is-active", ("expect.services",)),
    "site.checks": Source("the site's own executables", ("check.plugins_dir", "check.plugin_deadline_s")),
}


@dataclass(frozen=True)
class Explanation:
    """limits: key -> value now. rule: the site's rule for this check, "" for none. acts: who does what for it."""

    means: str
    facts: str
    limits: dict[str, Any]
    rule: str
    acts: str

    def as_json(self) -> dict[str, Any]:
        return {"means": self.means, "source": self.facts, "limits": self.limits, "rule": self.rule, "acts": self.acts}


def explain(finding: Finding, config: Config) -> Explanation:
    key = "site.checks" if finding.check.startswith("site.") else finding.check
    source = SOURCES.get(key, Source("see docs"))
    limits = {name: _value(config, name) for name in source.limits}
    rule = rule_of(finding.check, config.checks)
    said = "" if rule is None else ", ".join(f"{k} = {v!r}" for k, v in _settings(rule).items())
    return Explanation(ALL.get(key, ""), source.facts, limits, said, _acts(finding))


def _settings(rule: Any) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in ("enabled", "severity", "action") if getattr(rule, name) is not None}


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    value = getattr(getattr(config, section), name)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _acts(finding: Finding) -> str:
    if finding.status is Status.FAIL:
        local = finding.scope is Scope.LOCAL
        return "this node drains itself for it" if local else "reported; the controller, which sees all nodes, may act"
    if finding.status is Status.UNKNOWN:
        return "nobody: it could not be judged"
    return "nobody: a warning for people" if finding.status is Status.WARN else "nobody"
