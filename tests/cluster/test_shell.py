"""`python -m tests.cluster`, the cluster for people."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]


def shell(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.cluster", *arguments]
    return subprocess.run(
        argv,
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=REPOSITORY,
        check=False,
        start_new_session=True,
    )


def test_one_command() -> None:
    done = shell("--stock", "--nodes", "1", "--", "sh", "-c", "sinfo -hN -o %N; hostname; exit 7")
    assert done.stdout.split() == ["gpu1", "ctl"]
    assert done.returncode == 7


def test_interactive_shell() -> None:
    typed = [
        "fault gpu1 gpu_lost 3",
        "on gpu1 grep -c 'Xid.*79' /run/aisim/kmsg",
        "fault gpu1 gpu_lost 12",
        "fault gpu1 no_such_fault",
        "fault gpu7 gpu_lost 3",
        "heal gpu1",
        "as alice pwd",
        "power gpu1 off",
        "on gpu1 true || echo it is off",
        "power gpu1 on",
        "on gpu1 hostname",
        "exit 5",
    ]
    done = shell("--stock", "--nodes", "1", typed="\n".join(typed) + "\n")
    assert done.returncode == 5, done.stderr
    out = [line for line in done.stdout.splitlines() if not line.startswith("usage:")]
    assert out[2:] == [
        "gpu1: GPU 3 lost",
        "1",
        "ValueError: gpu1 has GPUs 0 to 7, not 12",
        "ClusterError: no node 'gpu7'; there are gpu1",
        "gpu1 is healthy (its kernel log is as it was)",
        "/shared/alice",
        "gpu1 is off",
        "it is off",
        "gpu1 is on",
        "gpu1",
    ]
    assert done.stdout.count("usage: fault NODE NAME ARGS (NAME: ecc_uncorrectable,") == 3


def test_help_and_wrong_option() -> None:
    assert "--nodes NODES" in shell("--help").stdout
    wrong = shell("--mode", "sometimes")
    assert wrong.returncode == 2
    assert "enforce" in wrong.stderr
