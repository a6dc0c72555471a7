"""Priority flow control over netlink."""

from __future__ import annotations

import os
import random
import struct

import pytest

from aistation_slurm.probes.dcb import parse_pfc, read_pfc


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def reply(enabled: int, nested: int = 0) -> bytes:
    """As net/dcb/dcbnl.c answers: IFNAME, then IEEE with ETS (skipped here) and PFC."""
    pfc = struct.pack("=BBBxH2x8Q8Q", 8, enabled, 0, 0, *([0] * 16))
    body = struct.pack("=BBH", 0, 21, 0) + attribute(1, b"eth0\0")
    body += attribute(13 | nested, attribute(1, b"x" * 59) + attribute(2, pfc)) + attribute(14, b"\x0a")
    return struct.pack("=IHHII", 16 + len(body), 79, 0, 1, 0) + body


@pytest.mark.parametrize(("mask", "priorities"), [(0, ()), (0x08, (3,)), (0x18, (3, 4)), (0xFF, tuple(range(8)))])
def test_priorities(mask: int, priorities: tuple[int, ...]) -> None:
    assert parse_pfc(reply(mask)) == priorities
    assert parse_pfc(reply(mask, nested=0x8000)) == priorities


def test_errors_and_rubbish_are_not_told() -> None:
    assert parse_pfc(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -95)) is None
    whole, dice = reply(8), random.Random(3)
    for cut in range(len(whole)):
        assert parse_pfc(whole[:cut]) in (None, (3,))
    for _ in range(2000):
        assert isinstance(parse_pfc(dice.randbytes(dice.randrange(80))), (tuple, type(None)))


def test_this_machines_kernel_answers() -> None:
    """No interface of a test machine has PFC on; the kernel's answer (an error) is read, and nobody waits."""
    assert set(read_pfc([*os.listdir("/sys/class/net"), "nowhere0"]).values()) <= {"off"}
