"""ClusterShell's part, with real processes in place of ssh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aistation_slurm.config import Sweep
from aistation_slurm.sweep.fanout import Answer, Fanout
from aistation_slurm.sweep.targets import Target

SCRIPT = """#!/bin/sh
case $1 in
  well) echo "{\\"node\\": \\"$1\\"}"; echo note >&2 ;;
  gone) echo "no route" >&2; exit 255 ;;
  slow) sleep 300 & echo $! >"$0.child"; wait ;;
  big) head -c 6000000 /dev/zero | tr '\\0' 'x' | fold -w 1000 ;;
esac
"""


@pytest.fixture
def reach(tmp_path: Path) -> Path:
    path = tmp_path / "reach it"
    path.write_text(SCRIPT, encoding="ascii")
    path.chmod(0o755)
    return path


def ask(reach: Path, *names: str, timeout_s: float = 60.0) -> dict[str, Answer]:
    settings = Sweep(via="command", command=(str(reach), "{node}"), timeout_s=timeout_s, connect_timeout_s=1)
    return Fanout(settings).ask([Target(name, name) for name in names], ["check", "--json"])


def test_every_node_has_its_own_answer(reach: Path) -> None:
    found = ask(reach, "well", "gone", "big")
    assert (found["well"].out, found["well"].err, found["well"].rc) == (b'{"node": "well"}', b"note", 0)
    assert (found["gone"].out, found["gone"].err, found["gone"].rc) == (b"", b"no route", 255)
    assert "more than 4 MiB" in found["big"].lost
    assert sum(len(answer.out) for answer in found.values()) < 6_000_000


def test_what_does_not_answer_is_ended_with_its_children(reach: Path) -> None:
    found = ask(reach, "slow", "well", timeout_s=1.0)
    assert found["slow"].lost == "no answer within 1 s"
    assert found["well"].lost == ""
    await_end(reach)


def await_end(reach: Path) -> None:
    child = int(Path(f"{reach}.child").read_text(encoding="ascii"))
    for _ in range(200):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("the child of the command lives on")


def test_nobody_to_ask(reach: Path) -> None:
    assert ask(reach) == {}


def test_ssh_is_called_with_a_deadline_and_never_asks_for_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "$@"\n', encoding="ascii")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    target = [Target("gpu1", "host1")]
    fanout = Fanout(Sweep(ssh_options="-i /root/key"))
    for _ in range(2):  # the second time over the same task of ClusterShell
        said = fanout.ask(target, ["check", "--json"])["gpu1"].out.decode()
        assert said.startswith("-i /root/key ")
        assert "-oBatchMode=yes" in said
        assert "-oConnectTimeout=10" in said
        assert said.endswith("host1 timeout --kill-after=5 120 /usr/bin/aistation check --json")


INTERRUPTED = """
import os, signal, sys, threading, time
from aistation_slurm.config import Sweep
from aistation_slurm.sweep.fanout import Fanout
from aistation_slurm.sweep.targets import Target

def interrupt():
    while not os.path.exists(sys.argv[1] + ".child"):
        time.sleep(0.05)
    os.kill(os.getpid(), int(sys.argv[2]))

threading.Thread(target=interrupt, daemon=True).start()
try:
    Fanout(Sweep(via="command", command=(sys.argv[1], "{node}"))).ask([Target("slow", "slow")], ["check"])
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_nothing_behind(reach: Path, number: int) -> None:
    argv = [sys.executable, "-c", INTERRUPTED, str(reach), str(int(number))]
    assert subprocess.run(argv, timeout=120, check=False).returncode == 130
    await_end(reach)
