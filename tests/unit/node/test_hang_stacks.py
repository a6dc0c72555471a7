from __future__ import annotations

import doctest
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

import pytest

from aistation_slurm.config import Hang, Slurm
from aistation_slurm.node import hang_nodes
from aistation_slurm.node.hang_nodes import ask_others, srun_argv
from aistation_slurm.node.hang_processes import Process
from aistation_slurm.node.hang_stacks import Kept, find_py_spy, keep_stacks
from aistation_slurm.probes.user import Credentials, of_process
from tests.unit.node.hang_world import GID, UID, USER, UserWorld

pytestmark = pytest.mark.skipif(UID == 0, reason="needs a user other than root")

SPY = """#!/bin/sh
echo "stacks of $3 read by uid $(id -u) with $(env | grep -c .) variables"
"""


@pytest.fixture
def world() -> Iterator[UserWorld]:
    made = UserWorld()
    yield made
    made.close()


def spy(world: UserWorld, script: str = SPY) -> str:
    path = world.work / "py-spy"
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


def python(world: UserWorld) -> subprocess.Popen[bytes]:
    """A Python process of the user's, which has begun when it says so."""
    extra: dict[str, object] = {"user": UID, "group": GID, "extra_groups": []} if os.geteuid() == 0 else {}
    argv = ["/usr/bin/python3", "-c", "import time; print(flush=True); time.sleep(600)"]
    process = subprocess.Popen(argv, cwd="/", stdout=subprocess.PIPE, **extra)  # type: ignore[call-overload]
    process.stdout.readline()
    return process  # type: ignore[no-any-return]


def keep(world: UserWorld, settings: Hang, processes: Sequence[Process] = (), user: Credentials = USER) -> Kept:
    return keep_stacks(settings, user, str(world.work), "aistation-hang-7", ["why it hangs"], processes)


@pytest.mark.parametrize(("run_as", "uid"), [("user", UID), ("root", os.geteuid())])
def test_py_spy_runs_as_the_user_unless_told_otherwise(world: UserWorld, run_as: str, uid: int) -> None:
    process = python(world)
    try:
        settings = Hang(py_spy=spy(world), py_spy_as=run_as)  # type: ignore[arg-type]
        kept = keep(world, settings, [Process(process.pid, "python3", "S"), Process(world.sleeper.pid, "sleep", "S")])
    finally:
        process.kill()
        process.communicate()
    text = Path(kept.path).read_text()
    assert (Path(kept.path).stat().st_uid, stat.S_IMODE(Path(kept.path).stat().st_mode)) == (UID, 0o600)
    assert text.startswith("why it hangs\n")
    assert f"stacks of {process.pid} read by uid {uid} " in text
    assert f"stacks of {world.sleeper.pid}" not in text, "it is no Python process"
    assert f"== process {world.sleeper.pid} (sleep)\nState: S (sleeping)" in text


def test_without_py_spy_the_kernels_side_is_kept(world: UserWorld) -> None:
    kept = keep(world, Hang(py_spy="/nonexistent/py-spy"), [Process(world.sleeper.pid, "sleep", "S")])
    text = Path(kept.path).read_text()
    assert "py-spy is not installed" in text
    assert "1 thread: sleep in " in text


def test_a_py_spy_that_does_not_end_keeps_the_rest(world: UserWorld) -> None:
    process = python(world)
    try:
        settings = Hang(py_spy=spy(world, "#!/bin/sh\nsleep 600\n"), stack_deadline_s=3.0)
        kept = keep(world, settings, [Process(process.pid, "python3", "S")])
    finally:
        process.kill()
        process.communicate()
    assert "py-spy did not finish within" in Path(kept.path).read_text()


def test_another_users_process_is_not_shown(world: UserWorld) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    kept = keep(world, Hang(py_spy=spy(world), py_spy_as="root"), [Process(os.getpid(), "python3", "S")])
    text = Path(kept.path).read_text()
    assert f"process {os.getpid()} is gone" in text
    assert f"stacks of {os.getpid()}" not in text


def test_no_file_is_replaced_and_no_link_followed(world: UserWorld, tmp_path: Path) -> None:
    world.user_file(world.work / "aistation-hang-7.txt", "mine")
    (world.work / "aistation-hang-7-2.txt").symlink_to(tmp_path / "target")
    kept = keep(world, Hang())
    assert Path(kept.path).name == "aistation-hang-7-3.txt"
    assert (world.work / "aistation-hang-7.txt").read_text() == "mine"
    assert not (tmp_path / "target").exists()


def test_a_folder_that_is_not_the_users_is_not_written_to(world: UserWorld) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(world.work, 0, 0)
    kept = keep(world, Hang())
    assert (kept.path, kept.why.split(":")[0]) == ("", "PermissionError")
    assert list(world.work.glob("aistation-hang-*")) == []


@pytest.mark.parametrize("uid", [0, -1])
def test_nothing_is_written_as_root(world: UserWorld, uid: int) -> None:
    kept = keep(world, Hang(), user=Credentials(uid, 0))
    assert kept.path == ""
    assert list(world.work.glob("aistation-hang-*")) == []


def test_no_work_directory(world: UserWorld) -> None:
    assert keep_stacks(Hang(), USER, "", "x", [], []).why == "Slurm shows no work directory of the job"


def test_a_user_without_supplementary_groups(world: UserWorld) -> None:
    process = python(world)
    try:
        found = of_process(process.pid, UID)
    finally:
        process.kill()
        process.communicate()
    assert found is not None
    assert (found.uid, found.gid) == (UID, GID)
    assert os.geteuid() != 0 or found.groups == ()


def test_credentials_are_those_that_the_process_has(world: UserWorld) -> None:
    assert of_process(world.sleeper.pid, UID) == USER
    assert of_process(world.sleeper.pid, UID + 1) is None
    assert of_process(2**22 + 1, UID) is None


@pytest.mark.parametrize(("configured", "found"), [("/nonexistent", ""), (sys.executable, sys.executable)])
def test_the_configured_py_spy_and_no_other(configured: str, found: str) -> None:
    assert find_py_spy(Hang(py_spy=configured)) == found


# ---- other nodes


def srun(world: UserWorld, script: str) -> Slurm:
    path = world.work / "srun"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Slurm(bin_dir=str(world.work), conf="/etc/slurm/x.conf")


def test_lines_of_several_tasks_are_put_together() -> None:
    assert doctest.testmod(hang_nodes).failed == 0
    text = hang_nodes.grouped("10: k\n 2: b\n 2: b: c\n10: \nsrun: error: gpu9: no answer\n")
    assert text == "srun: error: gpu9: no answer\nb\nb: c\nk\n\n"


def test_the_step_is_asked_for_on_the_other_nodes_with_a_clean_environment(world: UserWorld) -> None:
    slurm = srun(world, 'echo "$1 $4 $5"; env | cut -d= -f1 | sort | tr "\\n" " "')
    said = ask_others(slurm, Hang(), 7, "gpu1", 3, 20.0)
    assert "--jobid=7" in said
    assert "--nodes=3" in said
    names = set(said.splitlines()[-1].split())
    assert {"SLURM_CONF", "PYTHONPATH", "PATH", "LC_ALL"} <= names
    assert not names & {"HOME", "SLURM_JOB_ID", "LD_PRELOAD"}


def test_an_srun_that_does_not_answer_is_said(world: UserWorld) -> None:
    said = ask_others(srun(world, "echo begun; sleep 600"), Hang(), 7, "gpu1", 1, 1.0)
    assert said == "begun\n\nsrun did not finish within 1 s\n"


@pytest.mark.parametrize(("others", "limit"), [(1, "900000"), (500, "2000")])
def test_each_node_has_its_share_of_the_text(others: int, limit: str) -> None:
    argv = srun_argv(Slurm(), Hang(py_spy="/opt/py-spy"), 7, "gpu1", others, 57.0)
    assert argv[0] == "/usr/bin/srun"
    assert argv[-5:] == ["aistation_slurm.node.hang_nodes", "7", limit, "57", "/opt/py-spy"]
    assert "--time=1" in argv


def test_the_other_nodes_answer_is_kept_in_the_same_file(world: UserWorld) -> None:
    seen: list[Optional[float]] = []

    def elsewhere(seconds: float) -> str:
        seen.append(seconds)
        return f"==== gpu2, asked as uid {os.getuid()} with {0 < seconds < 60}\n"

    kept = keep_stacks(Hang(), USER, str(world.work), "x", [], [], elsewhere)
    assert Path(kept.path).read_text().endswith(f"The job's other nodes:\n==== gpu2, asked as uid {UID} with True\n")
    assert seen == [], "it ran in the child that became the user"
