"""Choosing lines by words changes nothing in what is found: compared with every line, in logs of every form, cut anywhere."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Optional

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aistation_slurm.detectors import host_lines
from aistation_slurm.detectors.kernel_events import WORDS, Event, find_events
from aistation_slurm.probes.klog_filter import chosen_lines
from aistation_slurm.probes.klog_text import read_text
from tests.unit.probes.test_klog_text import FORGED, KERNEL_FORMS, TEXT

EXAMPLES = int(os.environ.get("AISTATION_FUZZ", "120"))
"""``make fuzz``: 10,000 of each."""
MANY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def by_every_line(log: bytes, all_boots: bool = False) -> list[Event]:
    lines = (line.decode("utf-8", "replace") for line in log.split(b"\n"))
    return find_events(read_text(lines), all_boots)


def by_words(log: bytes, size: int = 1 << 20, all_boots: bool = False) -> list[Event]:
    chunks = (log[at : at + size] for at in range(0, len(log), size))
    return find_events(read_text(chosen_lines(chunks, WORDS)), all_boots)


def entry(text: str, boot: Optional[str] = None, transport: str = "kernel") -> str:
    return json.dumps(
        {"_TRANSPORT": transport, "SYSLOG_FACILITY": "0", "MESSAGE": text, **({"_BOOT_ID": boot} if boot else {})}
    )


MESSAGES = [
    TEXT,
    "NVRM: Xid (PCI:0000:c5:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x0 0x0 0x0 0x0 0x0 0x0)",
    "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "NVRM: GPU at PCI:0000:3b:00: GPU-aaaaaaaa-c55b-d076-fa0e-000000000001",
    "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x24:0xffff:1220)",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 236",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up",
    "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN",
    "Linux version 6.1.0-18-amd64 (gcc)",
    "usb 1-1: new high-speed USB device number 2",
    "audit: type=1400 -- boot --",
    "Command line: BOOT_IMAGE=/vmlinuz -- quiet",
    "",
]  # fmt: skip
PIECES = [
    *(line for line, _ in KERNEL_FORMS.values()),
    *FORGED.values(),
    *(form.replace(TEXT, message) for form, _ in list(KERNEL_FORMS.values())[::5] for message in MESSAGES),
    *(entry(message, boot) for message in MESSAGES[:4] for boot in (None, "a1", "b2")),
    entry("something else", "b2"),
    entry("a user's", "c3", "syslog"),
    json.dumps({"_TRANSPORT": "kernel", "_BOOT_ID": "b2", "MESSAGE": list(TEXT.encode())}),
    "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
    "                NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "                NVRM: fallen off the bus and is not responding to commands.",
    "-- Reboot --",
    "-- Boot 0123456789abcdef --",
    " -- Reboot --",
    " SUBSYSTEM=pci",
    "\tcontinued",
    "",
    " ",
    "\r",
    "{",
    "}",
    "someuser@gpu1: hello",
    "Nov  2 09:10:44 gpu1 sshd[12]: session opened",
    "\x1e" + entry(TEXT, "a1"),
    "\x00\xff NVRM",
]


@pytest.mark.timeout(300 + EXAMPLES)
@given(st.lists(st.sampled_from(PIECES), max_size=40), st.integers(1, 400), st.booleans())
@MANY
def test_nothing_is_missed_in_mixed_logs(lines: list[str], size: int, all_boots: bool) -> None:
    log = "\n".join(lines).encode("utf-8", "surrogateescape")
    assert by_words(log, size, all_boots) == by_every_line(log, all_boots)


@pytest.mark.timeout(300 + EXAMPLES)
@given(st.sampled_from(sorted(KERNEL_FORMS)), st.lists(st.sampled_from(MESSAGES), max_size=30), st.integers(1, 4000))
@MANY
def test_nothing_is_missed_in_a_log_of_one_form(form: str, messages: list[str], size: int) -> None:
    log = "\n".join(KERNEL_FORMS[form][0].replace(TEXT, message) for message in messages).encode()
    assert by_words(log, size) == by_every_line(log)


@pytest.mark.timeout(300 + EXAMPLES)
@given(st.binary(max_size=2000), st.integers(1, 300))
@MANY
def test_bytes_of_any_kind(log: bytes, size: int) -> None:
    assert by_words(log, size) == by_every_line(log)


@pytest.mark.timeout(300 + EXAMPLES)
@example(["0", "", "     NVRM: fallen off the bus and is not responding to commands."])
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=200)), max_size=20))
@MANY
def test_text_of_any_kind(lines: list[str]) -> None:
    log = "\n".join(lines).encode("utf-8", "surrogatepass")
    assert by_words(log, 64) == by_every_line(log)


@pytest.mark.parametrize("number", range(len(host_lines.PATTERNS)))
def test_every_match_of_a_pattern_has_its_word(number: int) -> None:
    word, text, _ = host_lines.PATTERNS[number]
    pattern = re.compile(text, re.IGNORECASE)
    assert word == word.lower()
    assert word.isascii()

    @given(st.from_regex(pattern, alphabet=st.characters(max_codepoint=0x7E, min_codepoint=0x20)))
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    def has_it(text: str) -> None:
        match = pattern.match(text)
        assert match is None or word in match.group().lower()

    has_it()


def test_a_record_without_an_end_is_bounded() -> None:
    def endless() -> Iterator[bytes]:
        yield b"[1.0] NVRM: x\n"
        for _ in range(40):
            yield b" more and more\n" * 70_000

    kept = sum(len(line) for line in chosen_lines(endless(), ["nvrm"]))
    assert 0 < kept < 20 << 20
    first = sum(len(line) for line in chosen_lines((b"x" * (1 << 20) for _ in range(40)), ["nvrm"]))
    assert first < 20 << 20
