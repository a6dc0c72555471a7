"""Pure judgement: snapshots (and earlier snapshots) in, findings out. No clock, no file, no subprocess."""

from __future__ import annotations

__all__ = ["ALL"]

ALL = {
    # check id: what a fail means
    "gpu.count": "fewer GPUs than expected",
    "gpu.lost": "a GPU does not answer on the PCI bus",
    "gpu.xid": "a fatal Xid or SXid of this boot",
    "gpu.ecc_uncorrectable": "uncorrectable memory errors since the driver was loaded",
    "gpu.ecc_corrected": "very many corrected memory errors (a warning)",
    "gpu.ecc_mode": "ECC is off, unlike on like cards (a warning)",
    "gpu.row_remap": "a row remap failed (pending: a warning)",
    "gpu.retired_pages": "the card can retire no more pages (pending or many: a warning)",
    "gpu.recovery": "the driver itself asks for a reset or a reboot",
    "gpu.telemetry": "a GPU fails questions that it can answer (ERR!)",
    "gpu.nvlink": "a GPU has fewer NVLinks up than its neighbours",
    "gpu.nvlink_errors": "link errors rise too fast (a warning)",
    "gpu.fabric_manager": "GPUs are not registered with the fabric manager (reported)",
    "gpu.throttle": "the hardware slows itself down (a warning)",
    "gpu.clocks": "slow clocks under load that no policy asks for (a warning)",
    "gpu.temperature": "hotter than the card's own limits (a warning)",
    "gpu.power": "a lower power limit than like cards have (a warning)",
    "gpu.pcie": "a narrower PCIe link than card and slot can, or a slow one under load (a warning)",
    "gpu.persistence": "persistence mode is off (a warning)",
    "gpu.versions": "driver, VBIOS or InfoROM differ (a warning)",
    "gpu.mig": "MIG is not as expected, or waits for a reset (a warning)",
    "gpu.peermem": "GPU memory is out of reach of the HCAs (a warning)",
    "gpu.orphan_process": "a process on a GPU that belongs to no job (a warning)",
    "gpu.driver_hang": "a driver call blocks for ever",
    "fabric.port_state": "a port that was in use is not ACTIVE",
    "fabric.rate": "an InfiniBand port is slower than expected",
    "fabric.errors": "error counters of a port rise too fast (a warning)",
    "fabric.flap": "a link goes down again and again (a warning, until it is more than fabric.flap_fail times)",
    "fabric.roce_gid": "a RoCE HCA has no GID with an address, or at another index than the others (a warning)",
    "fabric.pfc": "a pause storm, or flow control set unlike the other HCAs (a warning)",
    "fabric.mtu": "a RoCE interface has a smaller MTU than its like (a warning)",
    "fabric.firmware": "cards of one kind run different firmware (a warning)",
    "fabric.device_files": "an RDMA device without its uverbs or umad file",
    "host.memory": "hardly any memory is available (a warning)",
    "host.disk": "a file system is full",
}
"""Every check id, in the order of reports. Names are stable: configuration, drains and dashboards hold them."""
