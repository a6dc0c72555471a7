"""Making a node report known on its node: the state file for the gate, ``report.json`` for people and exporters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from aistation_slurm.config import Config
from aistation_slurm.errors import StateFileError
from aistation_slurm.node import state
from aistation_slurm.node.health import NodeReport
from aistation_slurm.probes.gres import gpu_minors

__all__ = ["gres_indices", "publish"]


def publish(report: NodeReport, config: Config) -> str:
    """Write both files; the path of the state file. Raises StateFileError."""
    path = state.write_state(report, config, gres_indices(report, config), sys.executable)
    beside = os.path.join(os.path.dirname(path), "report.json")
    try:
        state.write_file(beside, msgspec.json.encode(report.as_json()))
    except OSError as exc:
        raise StateFileError(f"{beside}: cannot be written: {exc.strerror}") from exc
    return path


def gres_indices(report: NodeReport, config: Config) -> dict[int, int]:
    """Device minor -> index in Slurm's gres, which is what SLURM_JOB_GPUS counts.

    From gres.conf's ``File=`` lines; without them (AutoDetect) Slurm orders GPUs by their device file. A GPU behind one that is
    missing then is left out: whether slurmd began with the missing one is not known, unless ``expect.gpus`` tells that none is.
    """
    minors = gpu_minors(Path(config.node.gres_conf), report.node)
    if minors is not None:
        return {minor: index for index, minor in enumerate(minors)}
    found = sorted(gpu.minor for gpu in report.gpus if gpu.minor >= 0)
    complete = len(found) == config.expect.gpus
    return {minor: index for index, minor in enumerate(found) if complete or minor == index}
