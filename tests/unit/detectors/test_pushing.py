"""Which faults take a running job off its node: by evidence and by drain reason alike, and nothing left undecided."""

from __future__ import annotations

import pytest

from aistation_slurm.detectors import pushing, xid_table
from aistation_slurm.findings import Finding, Status, drain_reason

CASES = [
    ("gpu.lost", "Xid 79", True),
    ("gpu.lost", "PCI configuration reads 0xff", True),
    ("gpu.driver_hang", "nvmlInit blocked for 31 s", True),
    ("gpu.xid", "Xid 95: Uncontained memory error", True),
    ("gpu.xid", "Xid 64, Xid 48: GPU memory remapping failure", True),
    ("gpu.xid", "Xid 145: NVLINK: RLW Error", True),
    ("gpu.xid", "SXid 20034: LTSSM Fault Up", True),
    ("gpu.xid", "Xid 154: the driver asks for gpu_reset", True),
    ("gpu.xid", "Xid 154: the driver asks for drain_and_reset", False),
    ("gpu.xid", "Xid 64: GPU memory remapping failure", False),
    ("gpu.xid", "Xid 156: Resource Retirement Event", False),
    ("gpu.xid", "Xid 145: NVLINK: RLW Error; not known to be harmless", False),
    ("gpu.recovery", "the driver asks for Node Reboot", True),
    ("gpu.recovery", "the driver asks for Drain P2P", False),
    ("gpu.recovery", "the driver asks for Drain and Reset", False),
    ("gpu.telemetry", "nvmlDeviceGetMemoryInfo: NVML_ERROR_RESET_REQUIRED, and 3 more", True),
    ("gpu.telemetry", "nvmlDeviceGetTemperature: NVML_ERROR_UNKNOWN", False),
    ("gpu.pcie", "PCIe x8, the slot can x16", False),
    ("gpu.retired_pages", "64 pages retired (3 for double bit errors), and the card can retire 64", False),
    ("gpu.row_remap", "row remapping failed", False),
    ("gpu.nvlink", "10 links up, most GPUs here have 18; down: 3", False),
    ("gpu.count", "7 found, expected 8", False),
    ("gpu.ecc_uncorrectable", "1 uncorrectable errors since the driver was loaded, limit 0", False),
    ("host.memory", "2 uncorrected errors", False),
]


@pytest.mark.parametrize(("check", "evidence", "expected"), CASES)
def test_by_evidence_and_by_reason(check: str, evidence: str, expected: bool) -> None:
    finding = Finding(check, Status.FAIL, "GPU3 0000:8f:00", evidence)
    assert pushing.pushes(check, evidence) is expected
    assert pushing.reason_pushes(drain_reason(finding, node="gpu1", boot_id="b")) is expected


def test_other_peoples_reasons_never_push() -> None:
    assert not pushing.reason_pushes("gpu.lost GPU3")
    assert not pushing.reason_pushes("")


def test_every_fatal_code_is_decided_once() -> None:
    """A new fatal row of xid.toml must be put in one of the two lists."""
    row = pushing.load_table().push["gpu.xid"]
    stays = {int(code) for code in row.stays}
    rows = xid_table.load_table()
    assert not row.xids & stays
    assert {code for code, xid in rows.items() if xid.fatal} <= row.xids | stays
    for code in row.xids:
        assert (rows[code].kind in ("fatal", "by_word"), rows[code].action in ("gpu_reset", "reboot")) == (True, True)
