"""One Xid in every form in which kernel logs are kept, and the same text where the kernel did not write it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from aistation_slurm.probes.klog_text import log_chunks, read_text

TEXT = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, name=python, GPU has fallen off the bus."

KERNEL_FORMS = {
    # name: (line, time that it tells)
    "bare": (TEXT, ""),
    "dmesg": (f"[ 1843.308145] {TEXT}", "1843.308145"),
    "dmesg with caller": (f"[ 1843.308145][ T1234] {TEXT}", "1843.308145"),
    "dmesg -T": (f"[Fri Aug 30 11:43:09 2024] {TEXT}", "2024-08-30T11:43:09"),
    "dmesg -T, day of one digit": (f"[Mon Sep  2 01:02:03 2024] {TEXT}", "2024-09-02T01:02:03"),
    "dmesg -d": (f"[ 1843.308145 <    0.000010>] {TEXT}", "1843.308145"),
    "dmesg -H": (f"[Aug30 11:43] {TEXT}", ""),
    "dmesg -H, later": (f"[  +0.000005] {TEXT}", ""),
    "dmesg -x": (f"kern  :err   : [ 1843.308145] {TEXT}", "1843.308145"),
    "dmesg -x iso": (f"kern  :err   : 2025-01-25T10:34:54,859532+00:00 {TEXT}", "2025-01-25T10:34:54.859532+00:00"),
    "dmesg iso": (f"2025-01-25T10:34:54,859532+00:00 {TEXT}", "2025-01-25T10:34:54.859532+00:00"),
    "dmesg -r": (f"<3>[ 1843.308145] {TEXT}", "1843.308145"),
    "kmsg": (f"3,1234,1843308145,-;{TEXT}", "1843.308145"),
    "kmsg with caller": (f"3,1234,1843308145,-,caller=T12;{TEXT}", "1843.308145"),
    "journald short": (f"Nov 02 09:10:44 gpu1 kernel: {TEXT}", "Nov 02 09:10:44"),
    "journald short-precise": (f"Nov 02 09:10:44.123456 gpu1 kernel: {TEXT}", "Nov 02 09:10:44.123456"),
    "journald short-iso": (f"2025-11-02T09:10:44+0100 gpu1 kernel: {TEXT}", "2025-11-02T09:10:44+0100"),
    "journald short-full": (f"Sun 2025-11-02 09:10:44 UTC gpu1 kernel: {TEXT}", "2025-11-02T09:10:44"),
    "journald short-monotonic": (f"[ 1843.308145] gpu1 kernel: {TEXT}", "1843.308145"),
    "journald short-unix": (f"1762074644.123456 gpu1 kernel: {TEXT}", "1762074644.123456"),
    "syslog": (f"Nov  2 09:10:44 gpu1 kernel: [ 1843.308145] {TEXT}", "Nov  2 09:10:44"),
    "syslog without host": (f"Nov  2 09:10:44 kernel: {TEXT}", "Nov  2 09:10:44"),
    "rsyslog iso": (f"2025-11-02T09:10:44.123456+00:00 gpu1 kernel: [18.5] {TEXT}", "2025-11-02T09:10:44.123456+00:00"),
    "syslog with priority": (f"<3>Nov  2 09:10:44 gpu1 kernel: {TEXT}", "Nov  2 09:10:44"),
    "RFC 5424": (f"<3>1 2025-11-02T09:10:44.1Z gpu1 kernel - - - {TEXT}", "2025-11-02T09:10:44.1Z"),
    "RFC 5424 with data": (f'<3>1 2025-11-02T09:10:44Z gpu1 kernel - - [m s="1"] {TEXT}', "2025-11-02T09:10:44Z"),
    "pdsh": (f"gpu1: [ 1843.308145] {TEXT}", "1843.308145"),
}

FORGED = {
    "kmsg of facility user": f"11,1234,1843308145,-;{TEXT}",
    "dmesg -r of facility daemon": f"<27>[ 1843.308145] {TEXT}",
    "dmesg -x of facility daemon": f"daemon:err   : [ 1843.308145] {TEXT}",
    "syslog of a program": f"Nov 02 09:10:44 gpu1 someuser: {TEXT}",
    "syslog of a program with pid": f"Nov 02 09:10:44 gpu1 someuser[88]: {TEXT}",
    "logger -t kernel in the journal": f"Nov 02 09:10:44 gpu1 kernel[4711]: {TEXT}",
    "iso journal of a program": f"2025-11-02T09:10:44+0100 gpu1 python[3]: {TEXT}",
    "monotonic journal of a program": f"[ 1843.308145] gpu1 python[3]: {TEXT}",
    "RFC 5424 of facility user": f"<11>1 2025-11-02T09:10:44Z gpu1 kernel - - - {TEXT}",
    "RFC 5424 of a program": f"<3>1 2025-11-02T09:10:44Z gpu1 app 12 - - {TEXT}",
    "JSON without transport": json.dumps({"SYSLOG_IDENTIFIER": "kernel", "MESSAGE": TEXT}),
    "JSON of syslog": json.dumps({"_TRANSPORT": "syslog", "SYSLOG_FACILITY": "0", "MESSAGE": TEXT}),
    "JSON of the kernel's ring, not its facility": json.dumps(
        {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "3", "MESSAGE": TEXT}
    ),
    "JSON cut short": json.dumps({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": TEXT})[:-10],
}


@pytest.mark.parametrize("name", KERNEL_FORMS)
def test_every_form_gives_the_same_text(name: str) -> None:
    line, time = KERNEL_FORMS[name]
    (record,) = read_text([line + "\n"])
    assert (record.text, record.time, record.raw) == (TEXT, time, line)


@pytest.mark.parametrize("name", FORGED)
def test_what_the_kernel_did_not_write_is_no_record(name: str) -> None:
    real = "[1.0] usb 1-1: new device"
    assert [r.text for r in read_text([FORGED[name], real])] == ["usb 1-1: new device"]


@pytest.mark.parametrize(
    "text",
    ["nvme nvme0: I/O 23 QID 4 timeout, aborting", "EXT4-fs (sda1): Remounting filesystem read-only", "a b: c"],
)
@pytest.mark.parametrize("form", ["2025-01-25T10:34:54,859532+00:00 {}", "[ 18.5] {}", "kern  :warn  : [ 18.5] {}"])
def test_two_words_and_a_colon_are_a_sender_only_where_one_stands(form: str, text: str) -> None:
    assert [r.text for r in read_text([form.format(text)])] == [text]


def journal(**fields: object) -> str:
    entry = {
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "MESSAGE": TEXT,
        "__REALTIME_TIMESTAMP": "1762074644123456",
    }
    return json.dumps({**entry, **fields})


@pytest.mark.parametrize("wrap", ["{}", "\x1e{}", "data: {}"], ids=["json", "json-seq", "json-sse"])
def test_journal_json(wrap: str) -> None:
    (record,) = read_text([wrap.format(journal())])
    assert (record.text, record.time) == (TEXT, "2025-11-02T09:10:44.123456+00:00")


def test_journal_json_of_a_message_that_is_not_utf8() -> None:
    message = list(b"NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=\xff\xfe, Ch 8")
    (record,) = read_text([journal(MESSAGE=message)])
    assert record.text.startswith("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=")


@pytest.mark.parametrize(
    "message", [None, 5, {"a": 1}, [None, "x"], [300, -1]], ids=["null", "number", "object", "mixed", "no bytes"]
)
def test_journal_json_of_odd_messages_does_not_fail(message: object) -> None:
    assert all(isinstance(r.text, str) for r in read_text([journal(MESSAGE=message), "[1.0] end"]))


def test_pretty_json_and_dmesg_json() -> None:
    pretty = json.dumps(json.loads(journal()), indent=8).splitlines()
    dmesg = json.dumps(
        {
            "dmesg": [
                {"pri": 3, "time": 1843.308145, "msg": TEXT},
                {"pri": 30, "time": 1844.0, "msg": "systemd[1]: hello"},
                {"fac": "daemon", "pri": "err", "time": 1845.0, "msg": TEXT},
            ]
        },
        indent=3,
    ).splitlines()
    assert [(r.text, r.time) for r in read_text([*pretty, *dmesg])] == [
        (TEXT, "2025-11-02T09:10:44.123456+00:00"),
        (TEXT, "1843.308145"),
    ]


def test_a_stray_brace_in_a_text_log_swallows_nothing() -> None:
    assert [r.text for r in read_text(["[1.0] x", "{", "[2.0] y"])] == ["x", "y"]


def test_deeply_nested_json_is_refused_and_the_rest_is_read() -> None:
    assert [r.text for r in read_text(["{" + '"a":[' * 100_000, "[1.0] x"])] == ["x"]


def test_continuation_lines_belong_to_their_record() -> None:
    lines = [
        "6,10,1000000,-;one",
        " SUBSYSTEM=pci",
        " DEVICE=+pci:0000:3b:00.0",
        r"6,11,1000001,-;first\x0asecond \x5c",
        "14,12,1000002,-;of a user",
        " of a user too",
        "6,13,1000003,-;last",
    ]
    assert [r.text for r in read_text(lines)] == ["one", "first\nsecond \\", "last"]


def test_an_indented_paste_is_read_as_if_it_were_not() -> None:
    lines = ["", "    [1.0] one", "    [2.0] two", "      more of two", "    [3.0] three"]
    assert [r.text for r in read_text(lines)] == ["one", "two\nmore of two", "three"]


@pytest.mark.parametrize(
    "marker",
    [
        "-- Reboot --",
        "-- Boot 8e0f6c2a2ac14a5ea4f6b1a1d1f9ad52 --",
        "-- current boot (btime 2025-11-02T04:00:00) --",
    ],
)
def test_a_boot_marker_begins_another_boot(marker: str) -> None:
    seen = list(read_text(["[9.0] old", marker, "[1.0] new", "[2.0] newer"]))
    assert [(r.text, r.new_boot) for r in seen] == [("old", False), ("new", True), ("newer", False)]


def test_other_dashes_are_no_boot_marker() -> None:
    seen = read_text(["-- Logs begin at Mon 2025-01-06 09:00:00 UTC. --", "[1.0] -- Reboot --", "[2.0] x"])
    assert not any(r.new_boot for r in seen)


def test_a_new_boot_id_or_the_kernels_first_line_begins_another_boot() -> None:
    lines = [journal(_BOOT_ID="a"), journal(_BOOT_ID="a"), journal(_BOOT_ID="b"), "[0.000000] Linux version 6.1.0 (x)"]
    assert [r.new_boot for r in read_text(lines)] == [False, False, True, True]


def test_a_packed_log_is_read_as_it_is(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "kern.log.1.gz", "wb") as out:
        out.write(b"[1.0] one\n[2.0] tw\xff\n")
    lines = b"".join(log_chunks(tmp_path / "kern.log.1.gz", 4)).decode("utf-8", "replace").splitlines()
    assert [r.text for r in read_text(lines)] == ["one", "tw\ufffd"]


def test_nothing_makes_the_reader_fail() -> None:
    lines = [
        "",
        " ",
        "\x00",
        "{",
        "}",
        "<",
        "<999999>x",
        "[",
        "[]",
        "[ ]",
        ";;;",
        "1,2,3;x",
        "\x1e",
        "data: ",
        "-- --",
        "é: x",
    ]
    assert isinstance([r.text for r in read_text(lines * 2)], list)
