"""The timer, its service and the cron file."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aistation_slurm.cli.sweep import command
from aistation_slurm.config import Config

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
SERVICE, TIMER = (PACKAGING / f"systemd/aistation-sweep.{kind}" for kind in ("service", "timer"))
CRON = PACKAGING / "cron/aistation-sweep"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_every_line(tmp_path: Path) -> None:
    for unit in (SERVICE, TIMER):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/bin/aistation", "/bin/true"))
    argv = ["systemd-analyze", "verify", "--man=no", str(tmp_path / TIMER.name), str(tmp_path / SERVICE.name)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in done.stderr.splitlines() if "aistation-sweep" in line] == []


def test_the_lock_has_its_folder_and_a_problem_is_no_failure() -> None:
    lines = SERVICE.read_text().splitlines()
    assert f"RuntimeDirectory={Path(Config().node.state_dir).name}" in lines
    assert {"Type=oneshot", "SuccessExitStatus=1", "RuntimeDirectoryPreserve=yes"} <= set(lines)


@pytest.mark.parametrize("path", [SERVICE, CRON])
def test_every_option_is_one_of_the_command(path: Path) -> None:
    known = {name for option in command.params for name in option.opts}
    called = re.findall(r"aistation sweep((?: --[a-z-]+)+)", path.read_text())
    assert called
    assert {word for words in called for word in words.split()} <= known
