"""Reboots through Slurm, by its own commands whatever the backend.

Measured on 22.05.8 with a drained node: ``scontrol reboot NODE`` alone keeps DRAIN and reason over the reboot and only appends
``" : reboot issued"``. ``nextstate=DOWN`` loses DRAIN (the node is DOWN, ``" : reboot complete"`` appended); ``ASAP`` adds nothing
on a node that is drained already; ``nextstate=RESUME`` gives the node back as it registers, unchecked and without its reason.
Not registered within ResumeTimeout: DOWN, DRAIN lost, ``" : reboot timed out"`` appended, the rest of the reason kept.
"""

from __future__ import annotations

import re
from pathlib import Path

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm.command import run

__all__ = ["reboot", "reboot_settings"]


def reboot_settings(settings: Slurm) -> tuple[str, int]:
    """RebootProgram ("" where slurm.conf has none) and ResumeTimeout in seconds. Raises SlurmUnavailable and SlurmRefused."""
    text = _scontrol(settings, "show", "config")
    program = re.search(r"^RebootProgram\s*=\s*(.*?)\s*$", text, re.MULTILINE)
    timeout = re.search(r"^ResumeTimeout\s*=\s*(\d+)", text, re.MULTILINE)
    if program is None:
        raise SlurmUnavailable("scontrol show config printed no RebootProgram")
    named = "" if program.group(1) == "(null)" else program.group(1)
    return named, int(timeout.group(1)) if timeout else 60


def reboot(settings: Slurm, node: str) -> None:
    """Ask for it; Slurm's RebootProgram runs as soon as the node is idle. For a drained node only: the drain stays."""
    _scontrol(settings, "reboot", node)


def _scontrol(settings: Slurm, *words: str) -> str:
    path = str(Path(settings.bin_dir) / "scontrol")
    return run([path, *words], timeout_s=settings.timeout_s, conf=settings.conf)
