from __future__ import annotations

import pytest

from aistation_slurm.findings import REASON_MAX, Action, Finding, Status, drain_reason
from aistation_slurm.healing import reason

OURS = "ais:gpu.lost GPU3 0000:5d:00 PCI configuration reads 0xff, Xid 79 [a1b2c3]"


@pytest.mark.parametrize(
    ("text", "ident"),
    [
        (OURS, "a1b2c3"),
        ("", None),
        ("memory test [a1b2c3]", None),
        (f"{OURS} card is ordered", None),
        ("ais:gpu.lost leave it to me", None),
        (f"{OURS} : reboot issued", None),
    ],
)
def test_only_a_reason_with_its_id_at_the_end_is_ours(text: str, ident: str) -> None:
    assert reason.ident_of(text) == ident


@pytest.mark.parametrize(
    "added",
    [
        "",
        " : reboot issued",
        " : reboot issued : reboot complete",
        " : reboot issued : reboot timed out",
        " : reboot requested",
    ],
)
def test_what_slurm_appends_on_a_reboot_is_taken_off(added: str) -> None:
    assert reason.without_reboot(OURS + added) == OURS


def test_what_a_person_appends_is_not() -> None:
    for text in (f"{OURS} : reboot issued by me", f"{OURS} : rebooted"):
        assert reason.without_reboot(text) == text


def test_the_inspection_keeps_check_subject_and_id() -> None:
    text = reason.inspect_reason(OURS, "GPU3 0000:5d:00", "2 x reboot did not help")
    assert text == (
        "ais:gpu.lost GPU3 0000:5d:00 inspect: 2 x reboot did not help; PCI configuration reads 0xff, Xid 79 [a1b2c3]"
    )
    assert reason.asks_to_inspect(text)
    assert not reason.asks_to_inspect(OURS)
    assert reason.check_of(text) == "gpu.lost"
    assert reason.ident_of(text) == "a1b2c3"


@pytest.mark.parametrize("subject", ["", "GPU4", "GPU3 0000:5d:0"])
def test_a_subject_that_does_not_stand_there_is_not_cut_off(subject: str) -> None:
    text = reason.inspect_reason(OURS, subject, "why")
    assert text == "ais:gpu.lost inspect: why; GPU3 0000:5d:00 PCI configuration reads 0xff, Xid 79 [a1b2c3]"


def test_the_longest_reason_still_says_inspect_and_keeps_its_id() -> None:
    finding = Finding("gpu.xid", Status.FAIL, "GPU2 0000:3a:00", "x" * 500, Action.GPU_RESET)
    long = drain_reason(finding, node="gpu1", boot_id="b")
    text = reason.inspect_reason(long, finding.subject, "2 x gpu_reset did not help")
    assert len(text) <= REASON_MAX
    assert reason.ident_of(text) == reason.ident_of(long)
    assert reason.asks_to_inspect(text)


def test_nobody_elses_reason_is_made_into_one_of_ours() -> None:
    with pytest.raises(ValueError, match="not a reason of AIStation"):
        reason.inspect_reason("memory test", "", "why")
