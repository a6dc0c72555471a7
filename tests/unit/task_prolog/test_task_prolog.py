"""TaskProlog: at once for everything but the batch script, and within its limit whatever the file system does.

The script finds its helper beside itself, so these tests put it into a folder of their own with a helper of their own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "prolog/aistation-task-prolog"
PATH = "/usr/local/bin:/usr/bin:/bin"

NOTHING = [
    "export AISTATION_ATTEMPT=0",
    "export AISTATION_RESUME_ARGS=",
    "export AISTATION_RESUME_PATH=",
    "export AISTATION_RESUME_STEP=",
    "export AISTATION_EXCLUDED_NODES=",
]

# Sits in state D: the parent of a vfork waits for its child uninterruptibly by any signal that it could handle.
VFORK = """
#include <unistd.h>
int main(void) { if (vfork() == 0) { for (;;) pause(); } return 0; }
"""


class Installation:
    """A copy of the script with a helper of the test's own in the place of AIStation's interpreter."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.script = root / "prolog/aistation-task-prolog"
        self.script.parent.mkdir(parents=True)
        shutil.copy(SCRIPT, self.script)
        self.python = root / ".venv/bin/python"
        self.python.parent.mkdir(parents=True)
        self.pids = root / "pids"

    def helper(self, body: str) -> None:
        """A shell script that runs where AIStation's Python would."""
        self.python.write_text(f"#!/bin/sh\necho $$ >>{shlex.quote(str(self.pids))}\n{body}\n", encoding="utf-8")
        self.python.chmod(0o755)

    def start(self, **env: str) -> subprocess.CompletedProcess[str]:
        """Run it as slurmstepd does: in a group of its own, which is killed at the end; reads until the pipe has no holder."""
        job = {
            "PATH": PATH,
            "SLURM_JOB_ID": "7",
            "SLURMD_NODENAME": "gpu1",
            "SLURM_SPANK_AISTATION_RESUME": "auto",
            "SLURM_SPANK_AISTATION_CKPT_DIR": "/shared/ckpt",
            **env,
        }
        argv = [str(self.script)]
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, env=job, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
            try:
                out, err = process.communicate(timeout=60)
            finally:
                kill_group(process.pid)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def helpers(self) -> list[int]:
        return [int(pid) for pid in self.pids.read_text().split()] if self.pids.exists() else []


def kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    made = Installation(tmp_path)
    made.helper("echo 'export AISTATION_ATTEMPT=0'; echo 'print aistation: hello'")
    return made


def leftovers() -> set[Path]:
    return set(Path("/tmp").glob("aistation.*"))


def test_the_helpers_answer_is_passed_on(installation: Installation) -> None:
    result = installation.start()
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "export AISTATION_ATTEMPT=0\nprint aistation: hello\n"


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_STEP_ID": "0"},
        {"SLURM_STEP_ID": "12"},
        {"SLURM_STEP_ID": "4294967290"},  # interactive step
        {"SLURM_SPANK_AISTATION_RESUME": ""},
        {"SLURM_SPANK_AISTATION_RESUME": "none"},
    ],
    ids=str,
)
def test_it_leaves_at_once_without_starting_a_process(installation: Installation, env: dict[str, str]) -> None:
    job = {"SLURM_SPANK_AISTATION_RESUME": "auto", "SLURM_SPANK_AISTATION_CKPT_DIR": "/x", **env}
    trace = subprocess.run(
        ["/bin/sh", "-x", str(installation.script)], env=job, capture_output=True, text=True, timeout=30, check=False
    )
    assert (trace.returncode, trace.stdout) == (0, "")
    steps = trace.stderr.splitlines()
    assert steps[-1] == "+ exit 0"
    assert all(step.startswith(("+ LIMIT_S=", "+ FAILED=", "+ BUSY=", "+ exit 0")) for step in steps)
    assert installation.helpers() == []


@pytest.mark.parametrize("step", ["", "4294967291", "-5"])
def test_a_batch_script_has_no_step_id_or_slurms_own_number(installation: Installation, step: str) -> None:
    assert "hello" in installation.start(SLURM_STEP_ID=step).stdout


@pytest.mark.parametrize("body", ["exec sleep 300", "echo broken >&2; exit 1"])
def test_without_a_checkpoint_directory_nothing_stops_the_start(installation: Installation, body: str) -> None:
    assert "hello" in installation.start(SLURM_SPANK_AISTATION_CKPT_DIR="").stdout
    installation.helper(body)
    result = installation.start(SLURM_SPANK_AISTATION_CKPT_DIR="", AISTATION_STARTUP_TIMEOUT="1")
    assert result.returncode == 0
    assert [line for line in result.stdout.splitlines() if line.startswith("export")] == NOTHING


def test_a_busy_directory_stops_the_start_whatever_the_user_asked_for(installation: Installation) -> None:
    installation.helper("echo '/shared/ckpt is in use: job 6 runs on it'; exit 76")
    result = installation.start(AISTATION_IF_UNREADABLE="start")
    assert result.returncode == 75
    assert result.stdout.splitlines() == [
        "print aistation: /shared/ckpt is in use: job 6 runs on it",
        "print aistation: the job is not started (exit code 75)",
    ]


@pytest.mark.parametrize(
    ("count", "attempt"), [("3", "3"), ("", "0"), ("1;x", "0"), ("1\nexport X=y", "0"), ("9" * 30, "0")]
)
def test_the_attempt_is_slurms_restart_count(installation: Installation, count: str, attempt: str) -> None:
    installation.helper("exit 1")
    result = installation.start(SLURM_RESTART_COUNT=count, AISTATION_IF_UNREADABLE="start")
    exports = [line for line in result.stdout.splitlines() if not line.startswith("print ")]
    assert exports == [f"export AISTATION_ATTEMPT={attempt}", *NOTHING[1:]]


@pytest.mark.parametrize("way", ["sleeps", "traps signals", "in state D"])
def test_a_hung_file_system_does_not_hang_the_start(installation: Installation, way: str) -> None:
    before = leftovers()
    if way == "in state D":
        source = installation.root / "hang.c"
        source.write_text(VFORK, encoding="utf-8")
        subprocess.run(["cc", "-w", "-o", str(installation.root / "hang"), str(source)], check=True, timeout=60)
        installation.helper(f"exec {shlex.quote(str(installation.root / 'hang'))}")
    else:
        trap = "trap '' TERM INT HUP; " if way == "traps signals" else ""
        installation.helper(f"{trap}echo partial; exec sleep 300")
    began = time.monotonic()
    result = installation.start(AISTATION_STARTUP_TIMEOUT="1")
    assert time.monotonic() - began < 20
    assert result.returncode == 75
    first, second = result.stdout.splitlines()
    assert first == "print aistation: /shared/ckpt did not answer within 1 s on gpu1: check its file system"
    assert "the job is not started (exit code 75)" in second
    assert leftovers() == before


def test_a_stopped_helper_is_left_behind(installation: Installation) -> None:
    """Nobody waits for it: a stopped process stands for one that even SIGKILL does not end."""
    installation.helper("kill -STOP $$; echo never")
    assert installation.start(AISTATION_STARTUP_TIMEOUT="1").returncode == 75


@pytest.mark.parametrize(
    ("asked", "limit"), [("2", 2), ("31", 30), ("600", 30), ("0", 30), ("-1", 30), ("x", 30), ("", 30)]
)
def test_a_user_may_only_shorten_the_limit(installation: Installation, asked: str, limit: int) -> None:
    installation.helper("sleep 0.2; echo done")
    trace = subprocess.run(
        ["/bin/sh", "-x", str(installation.script)],
        env={
            "PATH": PATH,
            "SLURM_SPANK_AISTATION_RESUME": "auto",
            "SLURM_SPANK_AISTATION_CKPT_DIR": "/x",
            "AISTATION_STARTUP_TIMEOUT": asked,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [line for line in trace.stderr.splitlines() if "limit=" in line][-1] == f"+ limit={limit}"


def test_an_unusable_directory_stops_the_start_and_says_why(installation: Installation) -> None:
    installation.helper("echo '/shared/ckpt: none of its 3 checkpoints can be used'; exit 75")
    result = installation.start()
    assert result.returncode == 75
    assert result.stdout.splitlines()[0] == "print aistation: /shared/ckpt: none of its 3 checkpoints can be used"
    assert "AISTATION_IF_UNREADABLE=start" in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.startswith("export")]


@pytest.mark.parametrize("body", ["echo gone; exit 75", "exec sleep 300", "exit 1"])
def test_a_user_can_ask_to_start_in_any_case(installation: Installation, body: str) -> None:
    installation.helper(body)
    result = installation.start(AISTATION_IF_UNREADABLE="start", AISTATION_STARTUP_TIMEOUT="1")
    assert result.returncode == 0
    assert [line for line in result.stdout.splitlines() if not line.startswith("print ")] == NOTHING
    assert "starting from the beginning, as AISTATION_IF_UNREADABLE=start asks for" in result.stdout


def test_a_helper_that_breaks_does_not_start_from_step_0(installation: Installation) -> None:
    installation.helper(
        "echo 'export AISTATION_RESUME_ARGS=half'; echo 'Traceback' >&2; echo 'OSError: \033[2Jbad' >&2; exit 1"
    )
    result = installation.start()
    assert result.returncode == 75
    assert result.stdout.splitlines()[0] == "print aistation: the start-up helper failed: OSError: [2Jbad"
    assert "half" not in result.stdout


@pytest.mark.parametrize("directory", ["ckpt", "/a\nexport X=y", "/a\rb"])
def test_a_forged_directory_is_refused(installation: Installation, directory: str) -> None:
    result = installation.start(SLURM_SPANK_AISTATION_CKPT_DIR=directory)
    assert result.returncode == 75
    assert result.stdout.startswith("print aistation: --ais-ckpt-dir: the path ")
    assert not [line for line in result.stdout.splitlines() if line.startswith("export")]
    assert installation.helpers() == []


def test_nothing_of_the_users_environment_reaches_the_helper(installation: Installation, tmp_path: Path) -> None:
    """A PATH, a library path and PYTHON* of a conda environment are for the script."""
    (tmp_path / "mktemp").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (tmp_path / "mktemp").chmod(0o755)
    installation.helper('echo "print $1 $2 <$LD_LIBRARY_PATH> <$PATH>"')
    result = installation.start(PATH=str(tmp_path), LD_LIBRARY_PATH="/theirs", PYTHONHOME="/theirs")
    assert (result.returncode, result.stdout) == (0, "print -I -S <> </usr/bin:/bin>\n")


def test_a_link_to_the_script_finds_its_installation(installation: Installation, tmp_path: Path) -> None:
    link = tmp_path / "task-prolog"
    link.symlink_to(installation.script)
    installation.script = link
    assert "hello" in installation.start().stdout
