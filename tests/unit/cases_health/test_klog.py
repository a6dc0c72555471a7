"""``aistation klog scan`` beyond the public cases."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tests.unit.cases_health.commands import aistation

LOST = "[12.5] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
FAULT = "[13.5] NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=py[red]th\x1b[31mon, Ch 1\n"


def test_files_standard_input_and_packed_files_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text(LOST)
    (tmp_path / "dmesg.gz").write_bytes(gzip.compress(LOST.encode()))
    answers = [
        aistation("klog", "scan", "-", "--json", input=LOST),
        aistation("klog", "scan", "--json", input=LOST),
        aistation("klog", "scan", tmp_path / "dmesg", "--json"),
        aistation("klog", "scan", tmp_path / "dmesg.gz", "--json"),
    ]
    assert all(a.exit_code == 1 for a in answers)
    assert len({a.output for a in answers}) == 1
    assert answers[0].json["events"][0]["xid"] == 79


def test_nothing_found_is_fine() -> None:
    answer = aistation("klog", "scan", "-", "--json", input="")
    assert (answer.exit_code, answer.json["events"]) == (0, [])
    assert aistation("klog", "scan", input="[1.0] usb\n").output == "no events\n"


def test_bytes_that_are_no_text_are_read_past() -> None:
    answer = aistation("klog", "scan", "-", "--json", input=b"\xff\xfe\x00\n" + LOST.encode())
    assert [e["xid"] for e in answer.json["events"]] == [79]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(LOST.encode() * 50)[:-20])
    for path in (tmp_path / "none", tmp_path, tmp_path / "cut.gz"):
        answer = aistation("klog", "scan", path)
        assert answer.exit_code == 3
        assert answer.error.startswith(f"{path}: cannot be read: ")
        assert answer.error.endswith("name a log file, or - for standard input")


def test_the_table_for_people_is_safe_to_print() -> None:
    shown = aistation("klog", "scan", input=LOST + FAULT).output
    assert "Xid 79" in shown
    assert "reboot" in shown
    assert "py[red]th?[31mon" in shown
    assert "\x1b" not in shown


def test_earlier_boots_only_where_asked_for() -> None:
    log = LOST + "-- Reboot --\n" + FAULT
    last = aistation("klog", "scan", "--json", input=log)
    assert ([e["xid"] for e in last.json["events"]], last.exit_code) == ([31], 0)
    every = aistation("klog", "scan", "--json", "--all-boots", input=log)
    assert ([e["xid"] for e in every.json["events"]], every.exit_code) == ([79, 31], 1)


def test_what_does_not_count_is_counted() -> None:
    forged = LOST.replace("[12.5]", "Nov 02 09:10:44 gpu1 someuser:")
    answer = aistation("klog", "scan", "--json", input=forged * 3 + "\n")
    assert (answer.json["events"], answer.json["lines_ignored"], answer.exit_code) == ([], 3, 0)


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg may not be read here")
def test_the_kernels_own_device_is_read_without_waiting() -> None:
    answer = aistation("klog", "scan", "/dev/kmsg", "--json")
    assert answer.exit_code in (0, 1, 3)
    assert "cannot be read" in answer.error if answer.exit_code == 3 else "events" in answer.json
