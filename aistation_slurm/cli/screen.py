"""The one way in which commands print tables: for people on a terminal, unwrapped for a pipe or a log."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["console", "table"]

PIPE_WIDTH = 240
"""Columns where nobody's terminal sets them: an id must never be cut by a line break that grep cannot see."""


def console() -> Console:
    out = Console(soft_wrap=True)
    return out if out.is_terminal else Console(soft_wrap=True, width=PIPE_WIDTH)


def table(*columns: str, fixed: int = 1, **options: Any) -> Table:
    """A table whose first ``fixed`` columns are never wrapped."""
    made = Table(**options)
    for index, name in enumerate(columns):
        made.add_column(name, no_wrap=index < fixed)
    return made
