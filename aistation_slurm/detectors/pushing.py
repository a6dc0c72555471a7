"""Which faults take a running job off its node (pushing.toml). One answer for the node's agent and the watchdog. Pure.

Both judge by the same words: the agent by a finding's evidence, the watchdog by the drain reason that was made of it.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from importlib import resources
from typing import Annotated

import msgspec

from aistation_slurm.findings import is_our_reason

__all__ = ["PushRow", "load_table", "pushes", "reason_pushes"]

_XID = re.compile(r"(?<![A-Za-z])Xid ([0-9]{1,4})\b")
Said = Annotated[str, msgspec.Meta(min_length=1)]


class PushRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One check; the head of pushing.toml says what each field means. stays: code -> why a running job is left alone."""

    why: Said
    source: Said
    xids: frozenset[int] = frozenset()
    words: tuple[Said, ...] = ()
    stays: dict[str, Said] = {}

    def fits(self, words: str) -> bool:
        if not self.xids and not self.words:
            return True
        codes = {int(code) for code in _XID.findall(words)}
        return bool(codes & self.xids) or any(text in words for text in self.words)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    checked: date
    never: tuple[Said, ...]
    push: dict[str, PushRow]


@lru_cache(maxsize=1)
def load_table() -> _File:
    """The table that ships with the package. One that does not decode is a defect of the package and raises."""
    text = resources.files(__package__).joinpath("pushing.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=_File)


def pushes(check: str, words: str) -> bool:
    """True where a running job that holds the GPU is to be requeued for it. words: the evidence, with or without subject."""
    table = load_table()
    row = table.push.get(check)
    return row is not None and row.fits(words) and not any(text in words for text in table.never)


def reason_pushes(reason: str) -> bool:
    """The same of a drain reason, ``ais:gpu.xid GPU3 0000:8f:00 Xid 79: ... [46c1fa]``; False for all that is not ours."""
    if not is_our_reason(reason):
        return False
    check, _, words = reason.partition(":")[2].partition(" ")
    return pushes(check, words)
