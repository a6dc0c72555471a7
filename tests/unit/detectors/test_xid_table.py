"""The shipped table, and that a row cannot be half filled."""

from __future__ import annotations

import msgspec
import pytest

from aistation_slurm.detectors.xid_table import load_table, parse_table

ROW = {
    "meaning": '"x"',
    "class": '"fatal"',
    "action": '"reboot"',
    "fatal": "true",
    "vendor": '"RESTART_BM / -"',
    "source": '"docs"',
}


def table(**changes: str) -> str:
    fields = {**ROW, **changes}
    lines = [f"{key} = {value}" for key, value in fields.items() if value]
    return "version = 2\nchecked = 2026-11-30\n[xid.79]\n" + "\n".join(lines) + "\n"


def test_every_row_is_whole() -> None:
    rows = load_table()
    assert len(rows) >= 146
    for code, row in rows.items():
        assert 1 <= code <= 200
        assert row.meaning.strip() == row.meaning
        assert row.vendor.count(" / ") == 1, code
        if row.fatal:
            assert row.action in ("gpu_reset", "reboot", "inspect", "replace_gpu"), code
        if row.kind == "application":
            assert row.action == "restart_app", code
        if row.kind in ("info", "cascade"):
            assert row.action == "none", code


def test_what_sites_must_be_able_to_rely_on() -> None:
    rows = load_table()
    drains = {code for code, row in rows.items() if row.fatal}
    assert {46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158} <= drains
    assert drains.isdisjoint({8, 13, 31, 43, 45, 63, 68, 69, 92, 94, 144, 145, 149, 150, 154, 162})
    assert (rows[79].action, rows[64].action, rows[119].action) == ("reboot", "replace_gpu", "gpu_reset")
    assert all(rows[code].kind == "by_word" for code in range(144, 151))


@pytest.mark.parametrize("field", ROW)
def test_a_row_without_a_field_is_refused(field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        parse_table(table(**{field: ""}))


@pytest.mark.parametrize(
    "changes",
    [
        {"meaning": '""'},
        {"source": '""'},
        {"class": '"fatall"'},
        {"action": '"pray"'},
        {"fatal": "false"},
        {"blame": '"nobody"'},
    ],
)
def test_a_row_with_a_wrong_field_is_refused(changes: dict[str, str]) -> None:
    assert parse_table(table())[79].fatal
    with pytest.raises(msgspec.ValidationError):
        parse_table(table(**changes))
