"""``python -m aistation_slurm.node.refresh PROFILE SECONDS``: check this node now, write its state, print where.

Where it cannot be written, the state itself is printed.

Started by the gate (stale state) and the epilog (no agent), which kill it at their own deadline; internal, not a
command for people (that is ``aistation check``). Exit 0 when the state was written, else 3 with one line.
"""

from __future__ import annotations

import sys
import time

import msgspec

from aistation_slurm.config import load
from aistation_slurm.errors import AistationError, StateFileError
from aistation_slurm.node import history
from aistation_slurm.node.bounded import forks_end_with_us
from aistation_slurm.node.health import check_node
from aistation_slurm.node.publish import gres_indices, publish
from aistation_slurm.node.state import render

__all__ = ["main"]

LEFT_FOR_WRITING_S = 0.7
"""Of the deadline: importing (about 0.3 s), the checks that follow NVML, and writing."""


def main(arguments: list[str]) -> int:
    """Exit code; see the module."""
    try:
        profile, deadline_s = arguments[0], float(arguments[1])
        config = load()
        # NVML that blocks is then reported as unknown in the state, instead of no state at all
        nvml_s = max(min(config.probe.nvml_deadline_s, deadline_s - LEFT_FOR_WRITING_S), 0.2)
        probe = msgspec.structs.replace(config.probe, nvml_deadline_s=nvml_s)
        config = msgspec.structs.replace(config, probe=probe)
        report = check_node(config, profile=profile, now=time.time(), events=history.events(config))
        try:
            print(publish(report, config))
        except StateFileError as exc:
            # /run is full or read-only: the gate that asked is answered all the same
            print(exc, file=sys.stderr)
            print(render(report, config, gres_indices(report, config), sys.executable), end="", flush=True)
    except (AistationError, ValueError, IndexError) as exc:
        print(f"{exc}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    forks_end_with_us()
    sys.exit(main(sys.argv[1:]))
