"""`make setup` on a machine where it cannot do its work: one clear sentence and what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"


def run(look_below: Path, path: str, user: int) -> subprocess.CompletedProcess[str]:
    env = {"PATH": path, "SETUP_LOOK_BELOW": str(look_below)}
    return subprocess.run(
        ["/bin/sh", str(SCRIPT)], env=env, user=user, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="switches to another user")
def test_not_root_says_which_packages_and_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    result = run(tmp_path, "/usr/bin:/bin", 65534)
    assert result.returncode == 1
    assert result.stderr.startswith("setup: not root, and these packages are missing: slurmctld slurmd")
    assert "Run this as root" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_not_debian_says_what_to_install(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("dirname", "id", "ls"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    result = run(tmp_path, str(tools), 0)
    assert result.returncode == 1
    assert "no apt-get (not Debian or Ubuntu)" in result.stderr
    assert "Install Slurm (22.05 or newer), munge, a C compiler, Lua 5.1 and python3-venv" in result.stderr
    assert result.stderr.count("\n") == 1
