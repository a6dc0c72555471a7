"""The drain reason: one line, printable, stable for the same fault, recognisable as ours."""

from __future__ import annotations

from aistation_slurm.findings import REASON_MAX, Finding, Scope, Status, drain_reason, is_our_reason, worst

LOST = Finding("gpu.lost", Status.FAIL, "GPU3 0000:8f:00.0", "PCI config reads 0xff")


def test_reason_says_what_and_on_what_evidence() -> None:
    text = drain_reason(LOST, node="gpu2", boot_id="b1")
    assert text.startswith("ais:gpu.lost GPU3 0000:8f:00.0 PCI config reads 0xff [")
    assert is_our_reason(text)


def test_same_fault_same_text_and_another_boot_another_id() -> None:
    first = drain_reason(LOST, node="gpu2", boot_id="b1")
    assert first == drain_reason(LOST, node="gpu2", boot_id="b1")
    assert first != drain_reason(LOST, node="gpu2", boot_id="b2")


def test_hostile_evidence_cannot_break_the_line() -> None:
    nasty = Finding("gpu.xid", Status.FAIL, "GPU0", "name='a\nb\";rm -rf\\ \x1b[31m" + "x" * 500)
    text = drain_reason(nasty, node="n", boot_id="b")
    assert len(text) <= REASON_MAX
    assert text.isprintable()
    assert not set(text) & set("\"'`\\\n")
    assert text.endswith("]")


def test_reasons_of_others_are_not_ours() -> None:
    assert not any(is_our_reason(r) for r in (None, "", "none", "Prolog error", "maintenance ais:gpu.lost", "NHC: x"))


def test_worst_of_nothing_is_unknown_and_warn_beats_unknown() -> None:
    assert worst([]) is Status.UNKNOWN
    assert worst([Finding("a", Status.WARN), Finding("b", Status.UNKNOWN)]) is Status.WARN


def test_only_a_failed_local_fact_drains() -> None:
    assert LOST.drains
    assert not Finding("fabric.rate", Status.FAIL, scope=Scope.SHARED).drains
    assert not Finding("gpu.xid", Status.UNKNOWN).drains
