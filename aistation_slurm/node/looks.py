"""The looks of the last minutes, kept over processes for rates: ``<state_dir>/looks.json`` of this boot.

Best effort: without it there is no rate, and nothing else is lost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aistation_slurm.detectors.rates import WINDOW_S, Look

__all__ = ["MOST", "keep", "load"]

MOST = 60
"""Looks kept; a hasty caller loses the oldest."""
FILE = "looks.json"


class _File(msgspec.Struct, frozen=True):
    boot: str
    looks: list[Look]


def load(state_dir: Path, boot_id: str, now: float) -> list[Look]:
    """Oldest first: those of this boot and of the window, and none from the future (a clock that was set back)."""
    try:
        kept = msgspec.json.decode((state_dir / FILE).read_bytes(), type=_File)
    except (OSError, msgspec.MsgspecError, ValueError):
        return []
    if kept.boot != boot_id:
        return []
    return sorted((k for k in kept.looks if now - WINDOW_S <= k.time <= now), key=lambda look: look.time)


def keep(state_dir: Path, boot_id: str, earlier: Sequence[Look], look: Look) -> None:
    """Write ``earlier`` and this look, by rename."""
    data = msgspec.json.encode(_File(boot_id, [*earlier, look][-MOST:]))
    fresh = state_dir / f".{FILE}.{os.getpid()}"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(data)
        fresh.replace(state_dir / FILE)
    except OSError:
        _forget(fresh)


def _forget(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
