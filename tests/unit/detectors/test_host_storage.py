"""Disks, mounts and drives, from values."""

from __future__ import annotations

from typing import Any

import pytest

from aistation_slurm.config import Expect, Mount
from aistation_slurm.detectors import host_events, host_storage
from aistation_slurm.detectors.kernel_events import find_events
from aistation_slurm.findings import Finding, Scope, Status
from aistation_slurm.probes.host import Disk
from aistation_slurm.probes.klog_text import read_text
from aistation_slurm.probes.storage import Answer, MountPoint, NvmeDrive

OK, WARN, FAIL, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.UNKNOWN
HOME = MountPoint("/home", "nfs4", ("rw", "relatime"), "server:/home")
ROOT = MountPoint("/", "ext4", ("rw",), "/dev/sda1")


def mounts(there: Any = (ROOT, HOME), fstab: Any = (), answers: Any = (), **want: Any) -> list[Finding]:
    return list(host_storage.mount_findings(there, fstab, answers, Expect(**want)))


def test_space_and_inodes() -> None:
    want = Expect(disk_free_percent=5)
    disks = [Disk("/tmp", 50, 90), Disk("/a", 4, 90), Disk("/b", 50, 1), Disk("/c", error="statvfs hangs")]
    found = host_storage.disk_findings(disks, want)
    assert [f.status for f in found] == [OK, FAIL, FAIL, UNKNOWN]
    assert "inodes" in found[2].evidence
    assert not [f for f in found if f.drains], "a full disk is often the work of what runs there"


@pytest.mark.parametrize(
    ("mount", "there", "answer", "status", "evidence"),
    [
        (Mount("/home"), HOME, None, OK, "nfs4 from server:/home"),
        (Mount("/home/"), HOME, Answer("/home"), OK, "nfs4"),
        (Mount("/scratch"), HOME, None, FAIL, "is not mounted"),
        (Mount("/home", "lustre"), HOME, None, FAIL, "is nfs4, expected lustre"),
        (Mount("/home"), MountPoint("/home", "nfs4", ("ro",), "s:/h"), None, FAIL, "read-only"),
        (Mount("/home", writable=False), MountPoint("/home", "nfs4", ("ro",), "s:/h"), None, OK, "nfs4"),
        (Mount("/home"), HOME, Answer("/home", "Stale file handle"), FAIL, "Stale file handle"),
        (Mount("/home"), HOME, Answer("/home", "is blocked", late=True), UNKNOWN, "does not answer"),
        (Mount("/home"), HOME, Answer("/home", "is blocked", late=True, twice=True), FAIL, "does not answer"),
    ],
)
def test_a_mount_that_the_site_names(
    mount: Mount, there: MountPoint, answer: Any, status: Status, evidence: str
) -> None:
    (found,) = mounts((ROOT, there), answers=[answer] if answer else (), mounts=(mount,))
    assert (found.status, found.drains, found.scope) == (status, False, Scope.SHARED)
    assert evidence in found.evidence


def test_a_mount_that_only_fstab_names_is_a_warning() -> None:
    fstab = [MountPoint("/", "ext4", ("errors=remount-ro",)), MountPoint("/data", "xfs", ("defaults",))]
    read_only = MountPoint("/", "ext4", ("ro",), "/dev/sda1")
    assert [(f.subject, f.status) for f in mounts((read_only,), fstab)] == [("/", WARN), ("/data", WARN)]
    there = (ROOT, MountPoint("/data", "xfs", ("rw",), "/dev/sdb"))
    assert [(f.subject, f.status) for f in mounts(there, fstab)] == [("/", OK), ("/data", OK)]
    assert mounts(None, fstab) == []
    assert [f.status for f in mounts(None, (), mounts=(Mount("/home"),))] == [UNKNOWN]


def test_a_dead_drive_of_the_node_fails_it_and_one_over_the_network_does_not() -> None:
    drives = [
        NvmeDrive("nvme0", "live", width=4),
        NvmeDrive("nvme1", "dead", model="X"),
        NvmeDrive("nvme2", "dead", "rdma"),
    ]
    drives += [NvmeDrive("nvme3", "resetting"), NvmeDrive("nvme4", "live", width=2)]
    found = list(host_storage.nvme_findings(drives, Expect(nvme=4)))
    seen = [(f.subject, f.status, f.drains) for f in found]
    assert seen == [
        ("nvme0", OK, False),
        ("nvme1", FAIL, True),
        ("nvme2", FAIL, False),
        ("nvme3", WARN, False),
        ("nvme4", WARN, False),
    ]
    (few,) = [f for f in host_storage.nvme_findings(drives, Expect(nvme=5)) if f.subject == "NVMe drives"]
    assert (few.status, few.evidence) == (FAIL, "4 drives, expected 5")
    assert list(host_storage.nvme_findings(None, Expect(nvme=5))) == []


def test_what_the_kernel_log_says_of_storage_is_a_warning() -> None:
    lines = [
        "[1.0] EXT4-fs (sda1): Remounting filesystem read-only",
        "[2.0] nvme nvme0: Removing after probe failure status: -19",
        "[3.0] EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
        "[4.0] EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
        "[5.0] nvme nvme1: I/O 23 QID 4 timeout, aborting",
    ]
    found = list(host_events.findings(find_events(read_text(lines))))
    assert {f.check for f in found} == {"host.mounts", "host.nvme", "host.memory_errors"}
    assert {(f.status, f.drains) for f in found} == {(WARN, False)}
    assert len(found) == 3
