from __future__ import annotations

import os
from pathlib import Path

import pytest

from aistation_slurm.node.hang_processes import JobProcesses, Process, job_processes


class Proc:
    """A /proc of files. Owners are the test's own user, root's in the test suite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").mkdir()

    def add(self, pid: int, parent: int, name: str, state: str = "S", title: str = "") -> None:
        base = self.folder / str(pid)
        base.mkdir()
        (base / "stat").write_text(f"{pid} ({name}) {state} {parent} {pid} 0 0\n")
        (base / "cmdline").write_bytes((title or name).encode() + b"\0")

    def ids(self, found: tuple[Process, ...]) -> list[int]:
        return [process.pid for process in found]


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    if os.geteuid() != 0:
        pytest.skip("a slurmstepd is root's")
    made = Proc(tmp_path)
    made.add(1, 0, "systemd")
    made.add(22, 1, "slurmstepd", title="slurmstepd: [4711.batch]")
    made.add(26, 22, "bash")
    made.add(30, 26, "srun")
    made.add(48, 1, "slurmstepd", title="slurmstepd: [4711.0]")
    made.add(53, 48, "python3")
    made.add(54, 53, "pt_data (0) x")
    return made


def test_the_processes_below_each_step(proc: Proc) -> None:
    found = job_processes(str(proc.folder))
    assert list(found) == [4711]
    assert proc.ids(found[4711].batch) == [26, 30]
    assert proc.ids(found[4711].steps) == [53, 54]
    assert found[4711].steps[1].name == "pt_data (0) x"


def test_other_jobs_and_everything_that_is_no_job(proc: Proc) -> None:
    proc.add(60, 1, "slurmstepd", title="slurmstepd: [4712.extern]")
    proc.add(61, 60, "sleep")
    proc.add(62, 1, "slurmstepd", title="slurmstepd: [4713+0.batch]")
    proc.add(63, 62, "bash")
    proc.add(64, 1, "sshd")
    proc.add(65, 62, "bash", state="Z")
    found = job_processes(str(proc.folder))
    assert sorted(found) == [4711, 4713]
    assert proc.ids(found[4713].batch) == [63]


def test_a_users_process_with_a_stepds_title_is_none(proc: Proc) -> None:
    proc.add(70, 1, "slurmstepd", title="slurmstepd: [9999.batch]")
    proc.add(71, 70, "bash")
    os.chown(proc.folder / "70", 20001, 20001)
    assert list(job_processes(str(proc.folder))) == [4711]


def test_a_stepd_that_forks_is_not_the_users_program(proc: Proc) -> None:
    proc.add(80, 22, "slurmstepd", title="slurmstepd: [4711.batch]")
    assert proc.ids(job_processes(str(proc.folder))[4711].batch) == [26, 30]


@pytest.mark.parametrize(("states", "stopped"), [("TT", True), ("Tt", True), ("TS", False), ("SS", False), ("", False)])
def test_stopped_means_every_process(states: str, stopped: bool) -> None:
    processes = tuple(Process(n, "python3", state) for n, state in enumerate(states))
    assert JobProcesses(processes[:1], processes[1:]).stopped is stopped


def test_this_machines_own_proc_can_be_read() -> None:
    assert all(job_id > 0 for job_id in job_processes())
