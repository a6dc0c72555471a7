"""The Xid table (xid.toml) as typed rows."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Literal

import msgspec

__all__ = ["XidRow", "load_table"]

XidClass = Literal[
    "fatal", "application", "info", "warn", "unknown", "software", "cascade", "by_word", "recovery_action"
]


class XidRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One code: what it means, how it is treated here, what to do, and the vendor's own immediate / later action."""

    meaning: str
    kind: XidClass = msgspec.field(name="class")
    action: Literal["none", "restart_app", "gpu_reset", "reboot", "inspect", "replace_gpu", "update_software"]
    vendor: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    checked: object
    xid: dict[str, XidRow]


@lru_cache(maxsize=1)
def load_table() -> dict[int, XidRow]:
    """Code -> row. A table that does not decode is a defect of the package and raises."""
    text = resources.files(__package__).joinpath("xid.toml").read_text(encoding="utf-8")
    return {int(code): row for code, row in msgspec.toml.decode(text, type=_File).xid.items()}
