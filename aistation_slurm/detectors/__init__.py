"""Pure judgement: snapshots (and earlier snapshots) in, findings out. No clock, no file, no subprocess."""

from __future__ import annotations

__all__ = ["ALL"]

ALL = {
    # check id: what a fail means
    "gpu.count": "fewer GPUs than expected",
    "gpu.lost": "a GPU does not answer on the PCI bus",
    "gpu.xid": "a fatal Xid or SXid of this boot",
    "gpu.ecc_uncorrectable": "uncorrectable memory errors since the driver was loaded",
    "gpu.row_remap": "a row remap failed (pending: a warning)",
    "gpu.recovery": "the driver itself asks for a reset or a reboot",
    "gpu.telemetry": "a GPU fails questions that it can answer (ERR!)",
    "gpu.nvlink": "a GPU has fewer NVLinks up than its neighbours",
    "gpu.throttle": "the hardware slows itself down (a warning)",
    "gpu.driver_hang": "a driver call blocks for ever",
    "fabric.port_state": "a port that was in use is not ACTIVE",
    "fabric.rate": "an InfiniBand port is slower than expected",
    "fabric.device_files": "an RDMA device without its uverbs or umad file",
    "host.memory": "hardly any memory is available (a warning)",
    "host.disk": "a file system is full",
}
"""Every check id, in the order of reports. Names are stable: configuration, drains and dashboards hold them."""
