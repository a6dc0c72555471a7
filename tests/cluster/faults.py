"""Faults of a node's hardware, one line each: ``cluster.inject("gpu2", gpu_lost(3))``.

A fault changes everything that a real one changes (NVML, sysfs, kernel log), the log last, as on a real node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Optional

from tests.cluster.hardware import Hardware

__all__ = [
    "Fault",
    "ecc_uncorrectable",
    "gpu_facts",
    "gpu_lost",
    "gpu_missing",
    "gpu_process",
    "gpu_text",
    "hca_firmware",
    "host_file",
    "ib_down",
    "ib_errors",
    "ib_rate",
    "kernel_log",
    "link_flaps",
    "memory_low",
    "nvlink_down",
    "nvml_block",
    "nvml_error",
    "pcie_link",
    "roce_mtu",
    "roce_no_address",
    "row_remap",
    "throttle",
    "xid",
]


@dataclass(frozen=True)
class Fault:
    """What is broken (for messages) and how a node's hardware shows it."""

    what: str
    apply: Callable[[Hardware], None]


# Text after "pid=.., name=..," by Xid, as the driver writes it.
_XID_TEXT = {
    13: "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f1e_c2000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000010",
    45: "Ch 00000010",
    48: "DBE (double bit error) ECC Error",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Remapping failed. Insufficient remap resources.",
    74: "NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x0 0x0).",
    120: "GSP task timeout @ pc:0x4bb9a2a, task: 1",
    140: "Unrecovered ECC error in DRAM",
}


def _xid_line(hardware: Hardware, gpu: int, code: int, pid: Optional[int], process: str) -> None:
    who = f"pid={pid}, name={process}" if pid is not None else "pid='<unknown>', name=<unknown>"
    text = _XID_TEXT.get(code, "unspecified error")
    hardware.log(f"NVRM: Xid ({hardware.gpu(gpu).xid_pci}): {code}, {who}, {text}", priority=3)


def gpu_lost(gpu: int) -> Fault:
    """The GPU falls off the bus: NVML says GPU_IS_LOST, its PCI configuration reads all ones, Xid 79 and 154."""

    def apply(hardware: Hardware) -> None:
        pci = hardware.gpu(gpu).pci
        hardware.nvml.set(f"gpu.{gpu}.lost", 1)
        hardware.nvml.set(f"gpu.{gpu}.recovery_action", 2)
        hardware.nvml.event(gpu, 79)
        hardware.fall_off_bus(pci)
        hardware.nvml.write()
        hardware.log(
            f"pcieport {pci[:5]}{pci[5]}0:01.0: pciehp: Slot({gpu}): Link Down", device=f"{pci[:5]}{pci[5]}0:01.0"
        )
        hardware.log(f"NVRM: GPU at {hardware.gpu(gpu).xid_pci}: {hardware.gpu(gpu).uuid}", priority=3)
        hardware.log(f"NVRM: GPU Board Serial Number: {hardware.gpu(gpu).serial}", priority=3)
        _xid_line(hardware, gpu, 79, None, "")
        hardware.log(f"NVRM: GPU {pci}: GPU has fallen off the bus.", priority=3)
        hardware.log(f"NVRM: GPU {pci}: GPU serial number is {hardware.gpu(gpu).serial}.", priority=3)
        hardware.log(
            f"NVRM: Xid ({hardware.gpu(gpu).xid_pci}): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
            "(Node Reboot Required)",
            priority=3,
        )
        hardware.log("NVRM: A GPU crash dump has been created. If possible, please run", priority=3)
        hardware.log("NVRM: nvidia-bug-report.sh as root to collect this data before", priority=3)
        hardware.log("NVRM: the NVIDIA kernel module is unloaded.", priority=3)

    return Fault(f"GPU {gpu} lost", apply)


def gpu_missing(gpu: int) -> Fault:
    """The GPU was not enumerated at boot: not counted by NVML, absent from sysfs and /proc; silent in the log."""

    def apply(hardware: Hardware) -> None:
        hardware.nvml.set(f"gpu.{gpu}.missing", 1)
        hardware.remove_pci(hardware.gpu(gpu).pci)
        hardware.nvml.write()

    return Fault(f"GPU {gpu} missing", apply)


def ecc_uncorrectable(gpu: int, n: int = 1) -> Fault:
    """``n`` more uncorrectable memory errors, volatile and aggregate, with Xid 48."""

    def apply(hardware: Hardware) -> None:
        hardware.gpu(gpu)
        for counter in ("volatile", "aggregate"):
            key = f"gpu.{gpu}.ecc.{counter}.uncorrected"
            hardware.nvml.set(key, hardware.nvml.number(key) + n)
        hardware.nvml.event(gpu, 48)
        hardware.nvml.write()
        _xid_line(hardware, gpu, 48, None, "")

    return Fault(f"GPU {gpu}: {n} uncorrectable ECC errors", apply)


def row_remap(
    gpu: int, pending: bool = False, failed: bool = False, correctable: int = 0, uncorrectable: int = 0
) -> Fault:
    """Row remapping as NVML tells it; a pending one logs Xid 63, a failed one Xid 64."""

    def apply(hardware: Hardware) -> None:
        hardware.gpu(gpu)
        facts = {"pending": pending, "failed": failed, "correctable": correctable, "uncorrectable": uncorrectable}
        for name, value in facts.items():
            hardware.nvml.set(f"gpu.{gpu}.remap.{name}", int(value))
        if failed:
            hardware.nvml.set(f"gpu.{gpu}.recovery_action", 1)
        for code, raised in ((63, pending), (64, failed)):
            if raised:
                hardware.nvml.event(gpu, code)
        hardware.nvml.write()
        for code, raised in ((63, pending), (64, failed)):
            if raised:
                _xid_line(hardware, gpu, code, None, "")

    return Fault(f"GPU {gpu}: row remap pending={pending} failed={failed}", apply)


def nvlink_down(gpu: int, link: int) -> Fault:
    """One NVLink is inactive, with Xid 74."""

    def apply(hardware: Hardware) -> None:
        hardware.gpu(gpu)
        hardware.nvml.set(f"gpu.{gpu}.nvlink.{link}.down", 1)
        hardware.nvml.event(gpu, 74)
        hardware.nvml.write()
        _xid_line(hardware, gpu, 74, None, "")

    return Fault(f"GPU {gpu}: NVLink {link} down", apply)


def gpu_facts(gpu: int, **facts: int) -> Fault:
    """Keys of the fake NVML's state, ``__`` for a dot: ``retired__dbe=3`` (fakenvml/health.c and fields_events.c have them)."""

    def apply(hardware: Hardware) -> None:
        hardware.gpu(gpu)
        for key, value in facts.items():
            hardware.nvml.set(f"gpu.{gpu}.{key.replace('__', '.')}", value)
        hardware.nvml.write()

    return Fault(f"GPU {gpu}: {facts}", apply)


def gpu_text(gpu: int, key: str, value: str) -> Fault:
    """A text of the fake NVML's state: vbios, inforom, name."""

    def apply(hardware: Hardware) -> None:
        hardware.nvml.set(f"gpu.{hardware.gpu(gpu).slot}.{key}", value)
        hardware.nvml.write()

    return Fault(f"GPU {gpu}: {key} {value}", apply)


def pcie_link(gpu: int, width: int = 16, gts: float = 32.0) -> Fault:
    """The GPU's PCIe link as NVML and sysfs show it."""
    generations = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5}

    def apply(hardware: Hardware) -> None:
        path = hardware.pci_path(hardware.gpu(gpu).pci)
        hardware.put(f"{path}/current_link_width", f"{width}\n")
        hardware.put(f"{path}/current_link_speed", f"{gts} GT/s PCIe\n")
        hardware.nvml.set(f"gpu.{gpu}.pcie.width", width)
        hardware.nvml.set(f"gpu.{gpu}.pcie.gen", generations[gts])
        hardware.nvml.write()

    return Fault(f"GPU {gpu}: PCIe x{width} at {gts} GT/s", apply)


def host_file(path: str, text: str) -> Fault:
    """A file of the node's /sys or /proc."""
    return Fault(f"{path}: {text[:20]}", lambda hardware: hardware.put(path, text))


_THROTTLE_BITS = {
    "idle": 0x1,
    "app_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
}


def throttle(gpu: int, *reasons: str, temperature: int = 0) -> Fault:
    """Clocks held down for these reasons: idle, sw_power_cap, hw_slowdown, sw_thermal, hw_thermal, power_brake..."""
    unknown = [reason for reason in reasons if reason not in _THROTTLE_BITS]
    if unknown or not reasons:
        raise ValueError(f"throttle reasons {unknown or 'missing'}; there are {', '.join(_THROTTLE_BITS)}")

    def apply(hardware: Hardware) -> None:
        hardware.gpu(gpu)
        hardware.nvml.set(f"gpu.{gpu}.throttle", hex(sum(_THROTTLE_BITS[reason] for reason in set(reasons))))
        hardware.nvml.set(f"gpu.{gpu}.clock.sm", 345)
        if temperature:
            hardware.nvml.set(f"gpu.{gpu}.temperature", temperature)
        hardware.nvml.write()

    return Fault(f"GPU {gpu} throttled: {', '.join(reasons)}", apply)


def nvml_block(kind: Literal["sleep", "dstate"] = "dstate", gpu: Optional[int] = None, function: str = "") -> Fault:
    """NVML calls never return: asleep (state S) or uninterruptible (state D, as in a hung driver call).

    gpu: only calls on that GPU; function: only that NVML function. Otherwise every call, initialisation too.
    """
    if kind not in ("sleep", "dstate"):
        raise ValueError(f"kind {kind!r}; it is sleep or dstate")

    def apply(hardware: Hardware) -> None:
        hardware.nvml.set("block" if gpu is None else f"gpu.{hardware.gpu(gpu).slot}.block", kind)
        if function:
            hardware.nvml.set("block.function", function)
        hardware.nvml.write()

    return Fault(f"NVML blocks ({kind})", apply)


def nvml_error(code: int, delay_s: float = 0.0) -> Fault:
    """nvmlInit answers with this error (9: driver not loaded; 0: none) after a delay (0: at once)."""

    def apply(hardware: Hardware) -> None:
        hardware.nvml.set("init.error", code)
        hardware.nvml.set("init.delay_ms", int(delay_s * 1000))
        hardware.nvml.write()

    return Fault(f"nvmlInit gives {code} after {delay_s:g} s", apply)


def gpu_process(gpu: int, pid: int, used_mib: int = 1024) -> Fault:
    """Process ``pid`` (as the node counts it) holds memory of the GPU, until it ends."""

    def apply(hardware: Hardware) -> None:
        hardware.gpu(gpu)
        hardware.nvml.add(f"gpu.{gpu}.process", f"{pid} {used_mib << 20}")
        hardware.nvml.write()

    return Fault(f"process {pid} on GPU {gpu}", apply)


def xid(gpu: int, code: int, pid: Optional[int] = None, process: str = "python") -> Fault:
    """An Xid in the kernel log and as an NVML event, nothing else."""

    def apply(hardware: Hardware) -> None:
        hardware.gpu(gpu)
        hardware.nvml.event(gpu, code)
        hardware.nvml.write()
        _xid_line(hardware, gpu, code, pid, process)

    return Fault(f"GPU {gpu}: Xid {code}", apply)


def ib_down(hca: str) -> Fault:
    """The port loses its link."""

    def apply(hardware: Hardware) -> None:
        device = hardware.hca(hca)
        hardware.set_port(hca, state="1: DOWN", phys="2: Polling", rate="10 Gb/sec (4X SDR)")
        port = f"sys/class/infiniband/{hca}/ports/1"
        downs = int(hardware.read(f"{port}/counters/link_downed"))
        hardware.put(f"{port}/counters/link_downed", f"{downs + 1}\n")
        hardware.put(f"sys/class/net/{device.netdev}/operstate", "down\n")
        hardware.put(f"sys/class/net/{device.netdev}/carrier", "0\n")
        hardware.log(f"mlx5_core {device.pci} {device.netdev}: Link down", device=device.pci)

    return Fault(f"{hca} down", apply)


_RATE_TEXT = {
    10: "4X SDR",
    25: "1X EDR",
    40: "4X QDR",
    50: "1X HDR",
    56: "4X FDR",
    100: "1X NDR",
    200: "2X NDR",
    400: "4X NDR",
}


def ib_rate(hca: str, gbps: int) -> Fault:
    """The port comes up, but slower."""
    if gbps not in _RATE_TEXT:
        raise ValueError(f"{gbps} Gb/s; there are {', '.join(map(str, _RATE_TEXT))}")

    def apply(hardware: Hardware) -> None:
        hardware.set_port(hca, rate=f"{gbps} Gb/sec ({_RATE_TEXT[gbps]})")

    return Fault(f"{hca} at {gbps} Gb/s", apply)


def link_flaps(hca: str, times: int) -> Fault:
    """The link went down so many times and came back each time: only counters and the kernel log tell of it."""

    def apply(hardware: Hardware) -> None:
        device = hardware.hca(hca)
        net = f"sys/class/net/{device.netdev}"
        hardware.raise_counter(hca, "link_downed", times)
        for way in ("up", "down"):
            count = int(hardware.read(f"{net}/carrier_{way}_count"))
            hardware.put(f"{net}/carrier_{way}_count", f"{count + times}\n")
        for _ in range(times):
            hardware.log(f"mlx5_core {device.pci} {device.netdev}: Link down", device=device.pci)
            hardware.log(f"mlx5_core {device.pci} {device.netdev}: Link up", device=device.pci)

    return Fault(f"{hca} flaps {times} times", apply)


def ib_errors(hca: str, counter: str, by: int) -> Fault:
    """An error counter of the port rises."""
    return Fault(f"{hca}: {counter} +{by}", lambda hardware: hardware.raise_counter(hca, counter, by))


def roce_no_address(hca: str) -> Fault:
    """The interface lost its IP address: only link-local GIDs are left."""
    return Fault(f"{hca} without address", lambda hardware: hardware.write_gids(hardware.hca(hca)))


def roce_mtu(hca: str, mtu: int) -> Fault:
    """The interface came up with this MTU."""

    def apply(hardware: Hardware) -> None:
        hardware.put(f"sys/class/net/{hardware.hca(hca).netdev}/mtu", f"{mtu}\n")

    return Fault(f"{hca}: MTU {mtu}", apply)


def hca_firmware(hca: str, version: str) -> Fault:
    """The card runs another firmware than its neighbours."""
    return Fault(
        f"{hca}: firmware {version}",
        lambda hardware: hardware.put(f"sys/class/infiniband/{hardware.hca(hca).name}/fw_ver", version + "\n"),
    )


def memory_low(percent: float) -> Fault:
    """Only this share of the host's memory is available."""

    def apply(hardware: Hardware) -> None:
        hardware.write_meminfo(available_kib=int(2_113_396_736 * percent / 100))

    return Fault(f"{percent:g} % of memory available", apply)


def kernel_log(text: str, priority: int = 6) -> Fault:
    """One kernel record (facility kernel) with this text."""
    return Fault(f"kernel log: {text}", lambda hardware: hardware.log(text, priority))
