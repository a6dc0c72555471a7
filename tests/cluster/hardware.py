"""The make-believe hardware of one node: GPUs and HCAs in a sysfs/procfs tree, NVML's state file, a kernel log.

``folder`` is seen as /run/aisim on the node:

    root/sys/class/infiniband/mlx5_N/ports/1/...      root/sys/bus/pci/devices/0000:xx:00.0/...
    root/proc/driver/nvidia/gpus/...  root/proc/meminfo   nvml.state  libnvidia-ml.so.1
    kmsg                                              records as /dev/kmsg gives them, appended

Shapes follow an 8-GPU H100 node with NDR InfiniBand (one HCA beside each GPU below a PCIe switch).
"""

from __future__ import annotations

import os
import shutil
import struct
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.fakenvml import SONAME, NvmlState

# Bus numbers of GPU and HCA per slot; each pair hangs below the PCIe root of the same tens digit.
_GPU_BUS = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB, 0x1B, 0x2D, 0x3D, 0x60, 0x9D, 0xAE, 0xBD, 0xDE)
_HCA_BUS = (0x19, 0x2B, 0x3B, 0x5E, 0x9B, 0xAC, 0xBB, 0xDC, 0x1C, 0x2E, 0x3E, 0x61, 0x9E, 0xAF, 0xBE, 0xDF)

_IB_COUNTERS = (
    "VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors "
    "multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors "
    "port_rcv_packets port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors "
    "port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets "
    "unicast_xmit_packets"
)
_IB_HW_COUNTERS = (
    "duplicate_request implied_nak_seq_err local_ack_timeout_err out_of_buffer out_of_sequence packet_seq_err "
    "req_cqe_error req_cqe_flush_error resp_cqe_error rnr_nak_retry_err roce_adp_retrans roce_slow_restart "
    "rx_icrc_encapsulated rx_read_requests rx_write_requests"
)


@dataclass(frozen=True)
class Gpu:
    slot: int
    pci: str
    """sysfs form, "0000:18:00.0"."""
    uuid: str
    serial: str

    @property
    def xid_pci(self) -> str:
        """As the kernel log's Xid lines have it: "PCI:0000:18:00"."""
        return f"PCI:{self.pci[:-2]}"


@dataclass(frozen=True)
class Hca:
    name: str
    pci: str
    netdev: str


class Hardware:
    """Hardware of node ``name``; changes are seen on the node at once."""

    def __init__(self, folder: Path, name: str, gpus: int, hcas: int, boot_id: str = "") -> None:
        if gpus > len(_GPU_BUS) or hcas > len(_HCA_BUS):
            raise ValueError(f"at most {len(_GPU_BUS)} GPUs and {len(_HCA_BUS)} HCAs a node, not {gpus} and {hcas}")
        self.folder = folder
        self.name = name
        self.boot_id = boot_id
        self.gpus = tuple(_gpu(name, slot) for slot in range(gpus))
        self.hcas = tuple(_hca(slot) for slot in range(hcas))
        self.nvml = NvmlState(folder / "nvml.state")
        self.roce = False
        """Set before ``install`` or ``make_healthy``: the HCAs are Ethernet ones, with addresses 10.0.<slot>.<node's own>."""
        self.faulty = False
        """True since the last fault, until it is healed."""
        self._sequence = 0
        self._booted = time.monotonic()

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def gpu(self, slot: int) -> Gpu:
        if not 0 <= slot < len(self.gpus):
            raise ValueError(f"{self.name} has GPUs 0 to {len(self.gpus) - 1}, not {slot}")
        return self.gpus[slot]

    def hca(self, name: str) -> Hca:
        for hca in self.hcas:
            if hca.name == name:
                return hca
        raise ValueError(f"{self.name} has HCAs {', '.join(h.name for h in self.hcas)}, not {name}")

    # ---- whole states ---------------------------------------------------------------------------------------------

    def install(self, library: Path) -> None:
        """Make the folder for a first boot."""
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, self.folder / SONAME)
        self.make_healthy()
        self.boot(self.boot_id)

    def boot(self, boot_id: str) -> None:
        """A new boot: an empty kernel log and the driver's first lines. Faults of the hardware stay."""
        self.boot_id = boot_id
        self._booted = time.monotonic()
        self._sequence = 0
        self.put("proc/sys/kernel/random/boot_id", boot_id + "\n")
        (self.folder / "kmsg").write_text("", encoding="utf-8")
        self.log("Linux version 5.15.0-116-generic (buildd@lcy02-amd64-015) #126-Ubuntu SMP", priority=5)
        self.log("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024", priority=5)

    def make_healthy(self) -> None:
        """All hardware as new. The kernel log keeps what it has, as a repaired node's does until it is rebooted."""
        shutil.rmtree(self.root / "sys", ignore_errors=True)
        shutil.rmtree(self.root / "proc/driver", ignore_errors=True)
        for gpu in self.gpus:
            self.write_gpu(gpu)
        for hca in self.hcas:
            self.write_hca(hca)
        for folder in ("sys/class/infiniband", "sys/bus/pci/devices", "proc/driver/nvidia/gpus"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07\n")
        self.put(
            "proc/modules",
            "nvidia 56823808 32 - Live 0x0000000000000000 (POE)\nnvidia_peermem 16384 0 - Live 0x0\n"
            "mlx5_core 2318336 1 - Live 0x0\n",
        )
        self.put("proc/loadavg", "0.52 0.58 0.59 1/1840 4321\n")
        self.write_meminfo(available_kib=2_040_109_465)
        events = [line for line in self.nvml.text().splitlines() if line.startswith("event ")]
        self.nvml.clear()
        for line in events:  # sequence numbers must go on rising for those who wait
            self.nvml.add("event", line.partition(" ")[2])
        for gpu in self.gpus:
            self.nvml.set(f"gpu.{gpu.slot}.pci", f"0000{gpu.pci.upper()}")
            self.nvml.set(f"gpu.{gpu.slot}.uuid", gpu.uuid)
            self.nvml.set(f"gpu.{gpu.slot}.serial", gpu.serial)
        self.nvml.set("driver", "550.90.07")
        self.nvml.write()
        self.faulty = False

    # ---- parts ----------------------------------------------------------------------------------------------------

    def put(self, path: str, text: str) -> None:
        """Write one file of the tree, by rename."""
        self._put_bytes(path, text.encode())

    def _put_bytes(self, path: str, data: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.new")
        fresh.write_bytes(data)
        os.replace(fresh, target)

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def log(self, text: str, priority: int = 6, device: str = "") -> None:
        """Append one kernel record (facility kernel). ``device`` adds the dictionary lines of a dev_err()."""
        stamp = int((time.monotonic() - self._booted + 1) * 1_000_000)
        record = f"{priority},{self._sequence},{stamp},-;{text}\n"
        if device:
            record += f" SUBSYSTEM=pci\n DEVICE=+pci:{device}\n"
        self._sequence += 1
        with (self.folder / "kmsg").open("a", encoding="utf-8") as kmsg:
            kmsg.write(record)

    def pci_path(self, pci: str) -> str:
        return f"sys/devices/pci{pci[:5]}{pci[5]}0/{pci}"

    def write_gpu(self, gpu: Gpu) -> None:
        self._write_pci(gpu.pci, 0x10DE, 0x2330, 0x030200, "nvidia", gpu.slot // 4)
        self.put(
            f"proc/driver/nvidia/gpus/{gpu.pci}/information",
            "Model: \t\t NVIDIA H100 80GB HBM3\n"
            f"IRQ:   \t\t {300 + gpu.slot}\n"
            f"GPU UUID: \t {gpu.uuid}\n"
            "Video BIOS: \t 96.00.74.00.01\n"
            "Bus Type: \t PCIe\n"
            "DMA Size: \t 52 bits\n"
            "DMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {gpu.pci}\n"
            f"Device Minor: \t {gpu.slot}\n"
            "GPU Firmware: \t 550.90.07\n"
            "GPU Excluded:\t No\n",
        )

    def fall_off_bus(self, pci: str) -> None:
        """What sysfs shows of a PCIe device that no longer answers: reads of its configuration give all ones."""
        path = self.pci_path(pci)
        self._put_bytes(f"{path}/config", b"\xff" * 256)
        self.put(f"{path}/current_link_speed", "Unknown\n")
        self.put(f"{path}/current_link_width", "63\n")

    def remove_pci(self, pci: str) -> None:
        """The device is not enumerated at all."""
        (self.root / "sys/bus/pci/devices" / pci).unlink(missing_ok=True)
        shutil.rmtree(self.root / self.pci_path(pci), ignore_errors=True)
        shutil.rmtree(self.root / "proc/driver/nvidia/gpus" / pci, ignore_errors=True)

    def _write_pci(self, pci: str, vendor: int, device: int, pci_class: int, driver: str, numa: int) -> None:
        path = self.pci_path(pci)
        header = struct.pack("<HHHHI", vendor, device, 0x0506, 0x0010, pci_class << 8 | 0xA1)
        self._put_bytes(f"{path}/config", header.ljust(256, b"\0"))
        facts = {"vendor": f"0x{vendor:04x}", "device": f"0x{device:04x}", "class": f"0x{pci_class:06x}"}
        facts |= {"revision": "0xa1", "subsystem_vendor": f"0x{vendor:04x}", "numa_node": str(numa), "enable": "1"}
        for kind in ("current", "max"):
            facts |= {f"{kind}_link_speed": "32.0 GT/s PCIe", f"{kind}_link_width": "16"}
        for name, value in facts.items():
            self.put(f"{path}/{name}", value + "\n")
        (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        _link(self.root / path / "driver", f"../../../bus/pci/drivers/{driver}")
        _link(self.root / "sys/bus/pci/devices" / pci, f"../../../devices/pci{pci[:5]}{pci[5]}0/{pci}")

    def write_hca(self, hca: Hca) -> None:
        slot = int(hca.name.rpartition("_")[2])
        self._write_pci(hca.pci, 0x15B3, 0x1021, 0x020700, "mlx5_core", slot // 4)
        base = f"{self.pci_path(hca.pci)}/infiniband/{hca.name}"
        guid = f"{int(hca.pci[5:7], 16):02x}"
        facts = {"board_id": "MT_0000000838", "fw_ver": "28.41.1000", "hca_type": "MT4129", "node_type": "1: CA"}
        facts |= {"node_guid": f"a088:c203:00{guid}:0000", "sys_image_guid": f"a088:c203:00{guid}:0000"}
        facts |= {"node_desc": f"{self.name} {hca.name}"}
        for name, value in facts.items():
            self.put(f"{base}/{name}", value + "\n")
        port = f"{base}/ports/1"
        layer, lid = ("Ethernet", "0x0") if self.roce else ("InfiniBand", f"0x{0x20 + slot:x}")
        for name, value in {"link_layer": layer, "lid": lid, "sm_lid": "0x0" if self.roce else "0x1"}.items():
            self.put(f"{port}/{name}", value + "\n")
        for name in _IB_COUNTERS.split():
            self.put(f"{port}/counters/{name}", "0\n")
        for name in _IB_HW_COUNTERS.split():
            self.put(f"{port}/hw_counters/{name}", "0\n")
        _link(self.root / base / "device", f"../../../{hca.pci}")
        _link(self.root / "sys/class/infiniband" / hca.name, f"../../{base[4:]}")
        net = f"{self.pci_path(hca.pci)}/net/{hca.netdev}"
        facts = {"operstate": "up", "mtu": "9000" if self.roce else "2044", "carrier": "1", "flags": "0x1003"}
        facts |= {"type": "1" if self.roce else "32", "dev_port": "0"}
        facts |= {"carrier_up_count": "1", "carrier_down_count": "0"}
        for name, value in facts.items():
            self.put(f"{net}/{name}", value + "\n")
        if self.roce:
            self.write_gids(hca, f"10.0.{slot}.{1 + int(self.name.strip('abcdefghijklmnopqrstuvwxyz-') or 0) % 250}")
        _link(self.root / "sys/class/net" / hca.netdev, f"../../{net[4:]}")
        self.set_port(hca.name)

    def write_gids(self, hca: Hca, address: str = "") -> None:
        """The GID table of a RoCE port as mlx5 fills it: link-local entries, then those of the address, v1 before v2."""
        port = f"{self.pci_path(hca.pci)}/infiniband/{hca.name}/ports/1"
        local = f"fe80:0000:0000:0000:a288:c2ff:fe{hca.pci[5:7]}:0000"
        mapped = ""
        if address:
            a, b, c, d = (int(part) for part in address.split("."))
            mapped = f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
        empty = "0000:0000:0000:0000:0000:0000:0000:0000"
        for index in range(16):
            gid = (local, local, mapped, mapped)[index] if index < 4 else ""
            self.put(f"{port}/gids/{index}", (gid or empty) + "\n")
            for folder, text in {"types": ("IB/RoCE v1", "RoCE v2")[index % 2], "ndevs": hca.netdev}.items():
                # the kernel gives an error for an empty entry; here the file is empty
                self.put(f"{port}/gid_attrs/{folder}/{index}", f"{text}\n" if gid else "")

    def raise_counter(self, hca: str, name: str, by: int) -> None:
        """Counters of the port only rise, as on a node."""
        port = f"sys/class/infiniband/{self.hca(hca).name}/ports/1"
        folder = "hw_counters" if name in _IB_HW_COUNTERS.split() else "counters"
        self.put(f"{port}/{folder}/{name}", f"{int(self.read(f'{port}/{folder}/{name}')) + by}\n")

    def set_port(
        self, hca: str, state: str = "4: ACTIVE", phys: str = "5: LinkUp", rate: str = "400 Gb/sec (4X NDR)"
    ) -> None:
        port = f"sys/class/infiniband/{self.hca(hca).name}/ports/1"
        for name, value in {"state": state, "phys_state": phys, "rate": rate}.items():
            self.put(f"{port}/{name}", value + "\n")

    def write_meminfo(self, available_kib: int, total_kib: int = 2_113_396_736) -> None:
        self.put(
            "proc/meminfo",
            f"MemTotal:       {total_kib} kB\nMemFree:        {available_kib * 9 // 10} kB\n"
            f"MemAvailable:   {available_kib} kB\nBuffers:          512000 kB\nCached:         24117248 kB\n"
            "SwapTotal:             0 kB\nSwapFree:              0 kB\n",
        )


def _gpu(node: str, slot: int) -> Gpu:
    seed = uuid.uuid5(uuid.NAMESPACE_DNS, f"{node}.gpu{slot}")
    return Gpu(slot, f"0000:{_GPU_BUS[slot]:02x}:00.0", f"GPU-{seed}", str(1_650_000_000_000 + seed.int % 10**9))


def _hca(slot: int) -> Hca:
    bus = _HCA_BUS[slot]
    return Hca(f"mlx5_{slot}", f"0000:{bus:02x}:00.0", f"ibp{bus}s0")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
