"""A function in a child that may never come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from aistation_slurm.probes import child, pending
from aistation_slurm.probes.child import process_state, run_child

Step = Callable[[str], None]


def test_value_steps_and_error_come_back() -> None:
    def good(step: Step) -> Any:
        step("one")
        step("two")
        return {"big": "x" * 300_000}

    result = run_child(good, 30)
    assert (result.value["big"][:2], result.step, result.error, result.late) == ("xx", "two", "", False)

    def bad(step: Step) -> Any:
        step("asking")
        raise ValueError("no such thing")

    result = run_child(bad, 30)
    assert (result.value, result.step, result.error) == (None, "asking", "ValueError: no such thing")


def test_a_child_that_crashes_is_an_error_with_its_step() -> None:
    def crash(step: Step) -> Any:
        step("nvmlInit")
        os.kill(os.getpid(), signal.SIGSEGV)

    assert run_child(crash, 30).error == "the child ended without an answer at step nvmlInit"


def test_a_child_that_sleeps_is_ended_at_the_deadline_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def hang(step: Step) -> Any:
        step("nvmlDeviceGetCount")
        helper = subprocess.Popen(["/bin/sleep", "600"])
        note.write_text(f"{os.getpid()} {helper.pid}")
        time.sleep(600)

    began = time.monotonic()
    result = run_child(hang, 1.5)
    assert time.monotonic() - began < 20
    assert (result.late, result.step, result.pid) == (True, "nvmlDeviceGetCount", 0)
    assert "did not return within 1.5 s" in result.error
    own, helper = (int(word) for word in note.read_text().split())
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(process_state(p)[0] not in ("", "Z") for p in (own, helper)):
        time.sleep(0.05)
    assert process_state(own)[0] == ""
    assert process_state(helper)[0] in ("", "Z")


def test_a_child_holds_nothing_of_its_parent(tmp_path: Path) -> None:
    def list_files(step: Step) -> Any:
        return [os.readlink(f"/proc/self/fd/{fd}") for fd in range(4096) if os.path.lexists(f"/proc/self/fd/{fd}")]

    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        held = run_child(list_files, 30).value
    assert str(tmp_path / "lock") not in held
    assert sum(1 for target in held if target.startswith("pipe:")) == 1


def test_state_of_processes() -> None:
    state, ticks = process_state(os.getpid())
    assert state == "R"
    assert ticks > 0
    assert process_state(2**22 + 1) == ("", 0)
    assert child.switches(os.getpid()) > 0
    assert child.switches(2**22 + 1) == -1


HANG = """
#include <unistd.h>
void hang(void) { if (vfork() == 0) for (;;) pause(); }
"""


@pytest.fixture(scope="module")
def hang_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hang(): the caller sits in state D, as in a blocked ioctl, since a vfork parent waits for its child."""
    folder = tmp_path_factory.mktemp("hang")
    (folder / "hang.c").write_text(HANG)
    argv = ["cc", "-shared", "-fPIC", "-w", "-o", str(folder / "hang.so"), str(folder / "hang.c")]
    try:
        subprocess.run(argv, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return folder / "hang.so"


@pytest.fixture
def left_behind() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def blocking(library: Path) -> Callable[[Step], Any]:
    def call(step: Step) -> Any:
        import ctypes

        step("nvmlInit")
        ctypes.CDLL(str(library)).hang()

    return call


def test_a_child_in_state_d_is_left_and_never_waited_for(hang_library: Path, left_behind: list[int]) -> None:
    began = time.monotonic()
    result = run_child(blocking(hang_library), 2.0)
    left_behind.append(result.pid)
    assert time.monotonic() - began < 20
    assert (result.late, result.step) == (True, "nvmlInit")
    assert process_state(result.pid) == ("D", result.start_ticks)
    assert 0 < result.blocked_s < 20


def test_a_blocked_call_is_looked_at_again_and_not_repeated(
    hang_library: Path, left_behind: list[int], tmp_path: Path
) -> None:
    function = blocking(hang_library)
    result, first = pending.call("nvml", function, 2.0, tmp_path / "run", "boot-1")
    left_behind.append(result.pid)
    assert first is not None
    assert (first.looks, first.step) == (1, "nvmlInit")
    time.sleep(0.3)
    began = time.monotonic()
    again, second = pending.call("nvml", function, 60.0, tmp_path / "run", "boot-1")
    assert time.monotonic() - began < 20, "a second look waits for nothing"
    assert second is not None
    assert (second.looks, second.pid, again.pid) == (2, first.pid, first.pid)
    assert second.blocked_s > first.blocked_s
    assert second.still_s == pytest.approx(second.blocked_s, abs=0.01), "it did not move"
    assert "nvmlInit is blocked" in again.error


def test_a_call_that_moved_starts_its_time_anew(hang_library: Path, left_behind: list[int], tmp_path: Path) -> None:
    result, first = pending.call("nvml", blocking(hang_library), 2.0, tmp_path, "boot-1")
    left_behind.append(result.pid)
    assert first is not None
    memo = tmp_path / "nvml-child"
    fields = memo.read_text().split(maxsplit=7)
    fields[4] = str(int(fields[4]) - 5)  # five context switches ago
    memo.write_text(" ".join(fields))
    _, second = pending.call("nvml", blocking(hang_library), 2.0, tmp_path, "boot-1")
    assert second is not None
    assert second.still_s < 1.0 < second.blocked_s


def test_a_call_that_came_back_is_asked_again(hang_library: Path, tmp_path: Path) -> None:
    result, first = pending.call("nvml", blocking(hang_library), 2.0, tmp_path, "boot-1")
    assert first is not None
    os.killpg(result.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while process_state(result.pid)[0] == "D" and time.monotonic() < deadline:
        time.sleep(0.05)
    answer, blocked = pending.call("nvml", lambda step: "fine", 30.0, tmp_path, "boot-1")
    assert (answer.value, blocked) == ("fine", None)
    assert not (tmp_path / "nvml-child").exists()


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3\n", "1 x 0 0 0 1 boot-1 step\n", "\x00" * 40])
def test_a_broken_memo_is_forgotten(tmp_path: Path, text: str) -> None:
    (tmp_path / "nvml-child").write_text(text)
    answer, blocked = pending.call("nvml", lambda step: 1, 30.0, tmp_path, "boot-1")
    assert (answer.value, blocked) == (1, None)


def test_a_memo_of_another_boot_or_of_another_process_with_the_same_pid_is_ignored(tmp_path: Path) -> None:
    _, ticks = process_state(os.getpid())
    for boot, started in (("boot-0", ticks), ("boot-1", ticks + 1)):
        (tmp_path / "nvml-child").write_text(f"{os.getpid()} {started} 0.0 0.0 1 5 {boot} nvmlInit\n")
        answer, blocked = pending.call("nvml", lambda step: 1, 30.0, tmp_path, "boot-1")
        assert (answer.value, blocked) == (1, None)


def test_python_that_warns_of_fork_beside_threads_does_not_fail() -> None:
    script = (
        "import threading, time, warnings\n"
        "warnings.simplefilter('error')\n"
        "threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n"
        "from aistation_slurm.probes.child import run_child\n"
        "print(run_child(lambda step: 41 + 1, 30).value)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "42\n"
