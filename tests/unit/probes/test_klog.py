"""The live reader, on a growing file of /dev/kmsg's form and on the real device where it may be read."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from aistation_slurm.probes.klog import KernelLog


def append(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a", encoding="utf-8") as out:
        out.write("\n".join(lines) + end)


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    append(path, "5,0,1000000,-;Linux version 6.1.0", "6,1,1500000,-;two")
    return path


def texts(log: KernelLog) -> list[str]:
    return [r.text for r in log.read_new()]


def test_each_record_is_returned_once(kmsg: Path) -> None:
    log = KernelLog(str(kmsg))
    assert texts(log) == ["Linux version 6.1.0", "two"]
    assert texts(log) == []
    append(kmsg, "3,2,1600000,-;three", " SUBSYSTEM=pci", "3,3,1600001,-;four")
    assert texts(log) == ["three", "four"]
    log.close()


def test_a_line_is_not_taken_before_its_end_is_there(kmsg: Path) -> None:
    log = KernelLog(str(kmsg))
    log.read_new()
    append(kmsg, "3,2,1600000,-;NVRM: Xid (PCI:0000:3b:00): 7", end="")
    assert texts(log) == []
    append(kmsg, "9, pid=1, name=x, GPU has fallen")
    assert texts(log) == ["NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen"]
    log.close()


def test_a_restart_goes_on_where_it_was(kmsg: Path) -> None:
    first = KernelLog(str(kmsg))
    first.read_new()
    append(kmsg, "3,2,1600000,-;three")
    second = KernelLog(str(kmsg), seen=first.seen)
    assert texts(second) == ["three"]
    first.close()
    second.close()


@pytest.mark.parametrize("way", ["cut short", "replaced"])
def test_a_new_log_in_the_same_place_is_read_from_its_beginning(kmsg: Path, way: str) -> None:
    log = KernelLog(str(kmsg))
    log.read_new()
    if way == "replaced":
        kmsg.rename(kmsg.with_name("kmsg.old"))
    else:
        kmsg.write_text("")
    append(kmsg, "5,0,10,-;new boot")
    assert texts(log) == ["new boot"]
    log.close()


def test_a_log_that_is_gone_for_a_moment_loses_nothing(kmsg: Path) -> None:
    log = KernelLog(str(kmsg))
    log.read_new()
    append(kmsg, "3,2,1600000,-;three")
    kmsg.rename(kmsg.with_name("away"))
    assert texts(log) == ["three"]
    assert texts(log) == []
    log.close()


def test_records_of_users_are_left_out_and_do_not_move_the_position_back(kmsg: Path) -> None:
    log = KernelLog(str(kmsg))
    log.read_new()
    append(kmsg, "11,2,1600000,-;NVRM: Xid (PCI:0000:3b:00): 79, forged", "3,3,1600001,-;real")
    assert texts(log) == ["real"]
    assert log.seen == 3
    log.close()


def test_a_missing_log_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KernelLog(str(tmp_path / "none"))


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg may not be read here")
def test_the_real_device_never_blocks() -> None:
    try:
        log = KernelLog("/dev/kmsg")
    except PermissionError:
        pytest.skip("the kernel restricts its log (dmesg_restrict)")
    records = log.read_new()
    assert log.pollable
    assert all(r.seq >= 0 for r in records)
    assert [r.seq for r in records] == sorted({r.seq for r in records})
    readable, _, _ = select.select([log], [], [], 0)
    assert readable in ([], [log])
    log.close()
