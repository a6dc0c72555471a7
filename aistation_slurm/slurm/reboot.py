"""Reboots through Slurm, by its own commands whatever the backend.

Measured on 22.05.8 with a drained node: ``scontrol reboot NODE`` alone keeps DRAIN and reason over the reboot and only appends
``" : reboot issued"``. ``nextstate=DOWN`` loses DRAIN (the node is DOWN, ``" : reboot complete"`` appended); ``ASAP`` adds nothing
on a node that is drained already; ``nextstate=RESUME`` gives the node back as it registers, unchecked and without its reason.
Not registered within ResumeTimeout: DOWN, DRAIN lost, ``" : reboot timed out"`` appended, the rest of the reason kept; with
ReturnToService=2 it is then in service, without a reason, as soon as it does register.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm.command import run

__all__ = ["RebootSettings", "reboot", "reboot_settings"]


@dataclass(frozen=True)
class RebootSettings:
    """Of slurm.conf. program: RebootProgram, "" where there is none. resume_timeout_s: a node has to register within it.

    returns_any: ReturnToService=2, by which a node that was set DOWN for whatever reason is in service as soon as it registers.
    """

    program: str
    resume_timeout_s: int
    returns_any: bool


def reboot_settings(settings: Slurm) -> RebootSettings:
    """Raises SlurmUnavailable and SlurmRefused."""
    text = _scontrol(settings, "show", "config")
    program = re.search(r"^RebootProgram\s*=\s*(.*?)\s*$", text, re.MULTILINE)
    if program is None:
        raise SlurmUnavailable("scontrol show config printed no RebootProgram")
    timeout = re.search(r"^ResumeTimeout\s*=\s*(\d+)", text, re.MULTILINE)
    returns = re.search(r"^ReturnToService\s*=\s*2", text, re.MULTILINE)
    named = "" if program.group(1) == "(null)" else program.group(1)
    return RebootSettings(named, int(timeout.group(1)) if timeout else 60, returns is not None)


def reboot(settings: Slurm, node: str) -> None:
    """Ask for it; Slurm's RebootProgram runs as soon as the node is idle. For a drained node only: the drain stays."""
    _scontrol(settings, "reboot", node)


def _scontrol(settings: Slurm, *words: str) -> str:
    path = str(Path(settings.bin_dir) / "scontrol")
    return run([path, *words], timeout_s=settings.timeout_s, conf=settings.conf)
