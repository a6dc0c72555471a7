"""The site's own checks: the executables of ``check.plugins_dir``, in the order of their names.

Each runs in its own process group with a deadline, from ``/``, with a clean environment (PATH, LC_ALL, AISTATION_NODE). What
root runs must be root's: folder and file belong to root (or to whoever runs this), and nobody else may write to them.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from aistation_slurm.config import Check
from aistation_slurm.detectors.site_checks import SiteResult
from aistation_slurm.probes.command import ENVIRONMENT, run, unsafe

__all__ = ["run_site_checks"]

_NOT_A_CHECK = re.compile(r"^\.|~$|\.(rpm\w+|dpkg-\w+|bak|orig|swp|disabled)$")


def run_site_checks(settings: Check, node: str) -> list[SiteResult]:
    """Empty where the folder does not exist. Files that are not executable, hidden ones and package leftovers are left out."""
    folder = Path(settings.plugins_dir)
    try:
        paths = sorted(path for path in folder.iterdir() if not _NOT_A_CHECK.search(path.name))
    except FileNotFoundError:
        return []
    except OSError as exc:
        return [SiteResult("checks", error=f"{folder}: {exc.strerror}")] if settings.plugins_dir else []
    until, found = time.monotonic() + settings.plugins_budget_s, []
    for path in paths:
        if not (path.is_file() and os.access(path, os.X_OK)):
            continue
        name, wrong = re.sub(r"[^\w.-]", "_", path.stem), unsafe(folder) or unsafe(path)
        left = until - time.monotonic()
        if wrong:
            found.append(SiteResult(name, error=f"not run: {wrong}"))
        elif left <= 0:
            found.append(SiteResult(name, error=f"not run: the others took all {settings.plugins_budget_s:g} s"))
        else:
            found.append(_run(name, path, min(settings.plugin_deadline_s, left), node))
    return found


def _run(name: str, path: Path, deadline_s: float, node: str) -> SiteResult:
    ended = run([str(path)], deadline_s, {**ENVIRONMENT, "AISTATION_NODE": node}, stderr=True)
    line = next((line.strip() for line in ended.output.splitlines() if line.strip()), "")
    return SiteResult(name, ended.code, line, ended.error)
