"""What healing does to a node: reset GPUs, run a site's command, ask Slurm for a reboot. Each with a deadline.

Programs run below timeout(1): it ends them also where this process was killed in between.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from aistation_slurm.config import Config
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.probes import command
from aistation_slurm.slurm.reboot import reboot

__all__ = ["ask_for_reboot", "reset_gpus", "run_command", "unsafe"]

TIMEOUT = "/usr/bin/timeout"
MOST_CHARS = 300


def reset_gpus(config: Config, node: str, addresses: Sequence[str]) -> str:
    """One after the other; the outcome: ``done`` or ``failed: which and why``. addresses: ``0000:8f:00.0``."""
    wrong = []
    for pci in addresses:
        outcome = _run(config, [word.replace("{pci}", pci) for word in config.healing.reset], node, pci)
        if outcome:
            wrong.append(f"{pci}: {outcome}")
    return f"failed: {'; '.join(wrong)}" if wrong else "done"


def run_command(config: Config, node: str, argv: Sequence[str]) -> str:
    """The site's own program."""
    outcome = _run(config, argv, node, "")
    return f"failed: {outcome}" if outcome else "done"


def ask_for_reboot(config: Config, node: str) -> str:
    """``asked``, ``failed: why``, or ``""`` where the controller did not answer, which may have heard it."""
    try:
        reboot(config.slurm, node)
    except SlurmRefused as exc:
        return f"failed: {exc}"[:MOST_CHARS]
    except SlurmUnavailable:
        return ""
    return "asked"


def _run(config: Config, argv: Sequence[str], node: str, pci: str) -> str:
    """Why it failed; "" where it ended with exit code 0."""
    why = unsafe(argv[0])
    if why:
        return why
    deadline = config.healing.deadline_s
    bounded = [TIMEOUT, "--kill-after=2", f"{deadline + 2:g}", *argv] if os.path.exists(TIMEOUT) else [*argv]
    environment = {**command.ENVIRONMENT, "AISTATION_NODE": node, "AISTATION_PCI": pci}
    ended = command.run(bounded, deadline, environment, stderr=True)
    said = " ".join(ended.output.split())
    said = "".join(c if c.isprintable() else "?" for c in said)[:MOST_CHARS]
    if ended.code is None:
        return f"{argv[0]} did not end within {deadline:g} s{': ' + said if said else ''}"
    return "" if ended.code == 0 else f"exit code {ended.code}{': ' + said if said else ''}"


def unsafe(path: str) -> str:
    """Why root should not run it: somebody else could have put it there. "" where only root could."""
    folder = Path(path).parent
    sticky = folder.is_dir() and folder.stat().st_mode & stat.S_ISVTX  # only its owner can replace a file there
    why = command.unsafe(Path(path)) or command.unsafe(folder, 0 if sticky else stat.S_IWOTH)
    if why:
        return why
    return "" if os.access(path, os.X_OK) and os.path.isfile(path) else f"{path} is not an executable file"
