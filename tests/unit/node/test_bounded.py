from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from aistation_slurm.node import bounded


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pid: int, within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_output_and_exit_code() -> None:
    outcome = bounded.run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], 30, bounded.PLAIN_ENV)
    assert (outcome.code, sorted(outcome.output.split())) == (3, ["err", "out"])


def test_a_signal_is_a_negative_code() -> None:
    assert bounded.run(["/bin/sh", "-c", "kill -9 $$"], 30, bounded.PLAIN_ENV).code == -9


def test_exactly_the_environment_given(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SECRET", "x")
    assert bounded.run(["/usr/bin/env"], 30, {"A": "1"}).output == "A=1\n"


def test_a_command_that_is_not_there_is_127_with_words() -> None:
    outcome = bounded.run(["/nowhere/scontrol"], 30, {})
    assert outcome.code == 127
    assert "cannot start /nowhere/scontrol: No such file" in outcome.output


def test_no_shell_sees_the_arguments(tmp_path: Path) -> None:
    evil = f"$(touch {tmp_path}/x); `touch {tmp_path}/x`; touch {tmp_path}/x"
    assert bounded.run(["/bin/echo", evil], 30, {}).output == evil + "\n"
    assert not (tmp_path / "x").exists()


def test_the_whole_group_is_killed_at_the_deadline(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; echo started; wait"
    begin = time.monotonic()
    outcome = bounded.run(["/bin/sh", "-c", script], 1.0, bounded.PLAIN_ENV)
    assert outcome.code is None
    assert outcome.output == "started\n"
    assert time.monotonic() - begin < 30
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_closed_output_does_not_end_the_wait_for_the_command() -> None:
    outcome = bounded.run(["/bin/sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 5"], 30, bounded.PLAIN_ENV)
    assert outcome.code == 5


def test_too_much_output_is_cut_and_not_kept() -> None:
    outcome = bounded.run(["/bin/sh", "-c", "head -c 5000000 /dev/zero"], 60, bounded.PLAIN_ENV)
    assert outcome.code == 0
    assert len(outcome.output) <= bounded.MAX_OUTPUT


def block_in_state_d(fifo: Path, note: Path) -> None:
    """A vfork parent waits in state D; its child opens a FIFO that nobody writes."""
    note.write_text(str(os.getpid()))
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, str(fifo), os.O_RDONLY, 0)])


def test_a_child_in_state_d_does_not_hold_us_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    def body(fd: int) -> None:
        os.write(fd, b"one\n")
        block_in_state_d(tmp_path / "fifo", tmp_path / "pid")
        os.write(fd, b"never\n")

    begin = time.monotonic()
    outcome = bounded.call(body, 1.0)
    assert (outcome.code, outcome.output) == (None, "one\n")
    assert time.monotonic() - begin < 30
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_body_that_fails_is_an_end_like_any_other() -> None:
    def body(fd: int) -> None:
        os.write(fd, b"one\n")
        raise ValueError

    outcome = bounded.call(body, 30)
    assert (outcome.code, outcome.output) == (0, "one\n")


def test_the_child_holds_none_of_our_streams() -> None:
    """slurmd reads the prolog's pipes until the last holder is gone, so a blocked child must not have them."""
    code = (
        f"import os, sys, time; sys.path.insert(0, {os.getcwd()!r}); from aistation_slurm.node import bounded;"
        "bounded.call(lambda fd: (print(os.readlink('/proc/self/fd/1')), time.sleep(600)), 0.5); print('parent done')"
    )
    outcome = bounded.run([sys.executable, "-c", code], 60, bounded.PLAIN_ENV)
    assert (outcome.code, outcome.output) == (0, "parent done\n")
