"""The Xid table (xid.toml) as typed rows."""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from importlib import resources
from typing import Annotated, Literal

import msgspec

__all__ = ["XidRow", "load_table", "parse_table"]

XidClass = Literal[
    "fatal", "application", "info", "warn", "unknown", "software", "cascade", "by_word", "recovery_action"
]
Said = Annotated[str, msgspec.Meta(min_length=1)]


class XidRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One code; the head of xid.toml says what each field means. note: why, where the sources disagree."""

    meaning: Said
    kind: XidClass = msgspec.field(name="class")
    action: Literal["none", "restart_app", "gpu_reset", "reboot", "inspect", "replace_gpu", "update_software"]
    fatal: bool
    vendor: Said
    source: Said
    note: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    checked: date
    xid: dict[str, XidRow]


def parse_table(text: str) -> dict[int, XidRow]:
    """Code -> row. Raises msgspec.ValidationError for a row that is half filled or contradicts itself."""
    rows = msgspec.toml.decode(text, type=_File).xid
    for code, row in rows.items():
        if row.fatal != (row.kind == "fatal"):
            raise msgspec.ValidationError(f"xid.{code}: class {row.kind!r} does not go with fatal = {row.fatal}")
    return {int(code): row for code, row in rows.items()}


@lru_cache(maxsize=1)
def load_table() -> dict[int, XidRow]:
    """The table that ships with the package. One that does not decode is a defect of the package and raises."""
    return parse_table(resources.files(__package__).joinpath("xid.toml").read_text(encoding="utf-8"))
