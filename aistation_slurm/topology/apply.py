"""Put a new topology file in force: write, reconfigure, look whether slurmctld has it, and go back if it has not."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import SlurmError, TopologyError
from aistation_slurm.slurm.command import run
from aistation_slurm.topology.diff import Difference, compare
from aistation_slurm.topology.model import Topology
from aistation_slurm.topology.sources import ask_slurm
from aistation_slurm.topology.write import replace_file

__all__ = ["put_in_force"]

RECONFIGURE_S = 60.0
VERIFY_S = 30.0
POLL_S = 0.5


def put_in_force(path: Path, text: str, wanted: Topology, *, verify_s: float = VERIFY_S) -> Optional[Path]:
    """Replace ``path``, run ``scontrol reconfigure`` and compare ``scontrol show topology`` with ``wanted``.

    Returns where the old file is kept, None where there was none. Raises TopologyError when slurmctld does not show the new
    topology within ``verify_s`` seconds; the old file is then back in its place and slurmctld was told again. The text must have
    passed ``validate``: a running slurmctld ends with a file that it takes for fatal.
    """
    kept = replace_file(path, text)
    why = ""
    try:
        run(("scontrol", "reconfigure"), timeout_s=RECONFIGURE_S)
        why = _await(wanted, verify_s)
    except SlurmError as exc:
        why = str(exc)
    if not why:
        return kept
    _restore(path, kept)
    again = "slurmctld was told to read it again"
    try:
        run(("scontrol", "reconfigure"), timeout_s=RECONFIGURE_S)
    except SlurmError as exc:
        again = f"but scontrol reconfigure failed: {exc}"
    raise TopologyError(f"{path}: {why}; the old file is back in its place, {again}")


def _await(wanted: Topology, verify_s: float) -> str:
    """Why slurmctld does not have it; "" when it has."""
    deadline = time.monotonic() + verify_s
    while True:
        try:
            difference = compare(wanted, ask_slurm().topology)
        except (SlurmError, TopologyError) as exc:
            why = f"scontrol show topology: {exc}"
        else:
            if not _matters(difference):
                return ""
            why = "slurmctld shows something else: " + "; ".join(difference.lines()[:3])
        if time.monotonic() > deadline:
            return why
        time.sleep(POLL_S)


def _matters(difference: Difference) -> bool:
    """Nodes that Slurm does not know are missing from what it shows; it was told so, and validate warned."""
    ours = Difference(nodes_removed=difference.nodes_removed, block_sizes=difference.block_sizes)
    return difference != ours


def _restore(path: Path, kept: Optional[Path]) -> None:
    real = Path(os.path.realpath(path))
    if kept is not None:
        os.replace(kept, real)
    else:
        with contextlib.suppress(FileNotFoundError):
            real.unlink()
