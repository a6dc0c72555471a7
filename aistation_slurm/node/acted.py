"""Findings for which this node was drained already, ``<state_dir>/acted``: one ``check<TAB>subject`` a line.

Each is acted on once until it goes away, so that an administrator who gives a node back is not argued with, also not
after a restart of the agent.
"""

from __future__ import annotations

from aistation_slurm.node.state import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Key", "read", "write"]

Key = tuple[str, str]
"""Check id and subject of a finding."""


def read(state_dir: str) -> frozenset[Key]:
    """Empty where nothing was written in this boot."""
    try:
        with open(f"{state_dir}/acted", encoding="utf-8", errors="replace") as file:
            lines = file.read(65536).splitlines()
    except OSError:
        return frozenset()
    return frozenset((check, subject) for check, tab, subject in (line.partition("\t") for line in lines) if tab)


def write(state_dir: str, keys: Iterable[Key]) -> None:
    """Raises OSError."""
    text = "".join(f"{check}\t{subject}\n" for check, subject in sorted(keys))
    write_file(f"{state_dir}/acted", text.encode("utf-8", "replace"))
