"""The pyslurm backend against a stand-in for the module: nobody here has Slurm 25.11. The child process is real."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from aistation_slurm.config import Config, Slurm
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm import connect
from aistation_slurm.slurm.cli_backend import CliBackend
from aistation_slurm.slurm.pyslurm_backend import PyslurmBackend, installed, readable_conf
from tests.unit.slurm.replies import recorded

Make = Callable[..., PyslurmBackend]
COMMANDS = """#!/bin/sh
echo "$(basename "$0") $*" >>{calls}
cat {answer}
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """``make(how, required=False)``: a backend beside a pyslurm that misbehaves as told, and commands that answer."""
    module = tmp_path / "module"
    module.mkdir()
    shutil.copy(Path(__file__).parent / "fake_pyslurm.py", module / "pyslurm.py")
    root = str(Path(__file__).resolve().parents[3])
    monkeypatch.syspath_prepend(str(module))
    monkeypatch.setenv("PYTHONPATH", f"{module}:{root}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    conf = tmp_path / "slurm.conf"
    conf.touch()
    answer = tmp_path / "answer"
    answer.write_text(recorded("running.squeue.json"))
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in ("squeue", "sinfo", "scontrol"):
        (bin_dir / name).write_text(COMMANDS.format(calls=tmp_path / "calls", answer=answer))
        (bin_dir / name).chmod(0o755)
    made: list[PyslurmBackend] = []

    def backend(
        how: str = "", required: bool = False, timeout_s: float = 60.0, conf: str = str(conf)
    ) -> PyslurmBackend:
        monkeypatch.setenv("FAKE_PYSLURM", how)
        made.append(PyslurmBackend(Slurm(bin_dir=str(bin_dir), conf=conf, timeout_s=timeout_s), required))
        return made[-1]

    yield backend
    for each in made:
        each.close()


def asked(tmp_path: Path) -> list[str]:
    calls = tmp_path / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_jobs(make: Make, tmp_path: Path) -> None:
    slurm = make()
    jobs = {job.job_id: job for job in slurm.jobs()}
    assert set(jobs) == {1, 2, 3, 4}
    one = jobs[1]
    assert (one.state, one.name, one.user_id, one.nodes, one.restart_cnt) == (
        "RUNNING",
        "train é",
        20001,
        ("gpu1", "gpu2"),
        2,
    )
    assert (one.start_time, one.time_limit_s, one.priority, one.requeue, one.min_nodes) == (
        1796091137,
        5400,
        7,
        True,
        2,
    )
    assert one.gres_detail == ("gpu:a100:8(IDX:0-7)", "gpu:a100:3(IDX:0,3,5)")
    assert (one.comment, one.admin_comment, one.std_out) == ("mine", "[ais resume=auto]", "/shared/alice/slurm-1.out")
    assert (jobs[2].state, jobs[2].name, jobs[2].priority, jobs[2].excluded_nodes) == (
        "PENDING",
        "",
        0,
        ("gpu1", "gpu3"),
    )
    assert (jobs[3].argument, jobs[3].exit_signal, jobs[3].time_limit_s) == ("3_0", 11, None)
    assert (jobs[4].state, jobs[4].completing, jobs[4].requeue, jobs[4].het_job_id) == ("UNKNOWN", True, False, None)
    assert asked(tmp_path) == []


def test_one_job(make: Make) -> None:
    slurm = make()
    assert [job and job.state for job in map(slurm.job, (1, 3, 99))] == ["RUNNING", "FAILED", None]
    task = slurm.job(4)
    assert task is not None
    assert task.argument == "3_1", "not the array's first task"


def test_nodes_and_changes(make: Make, tmp_path: Path) -> None:
    slurm = make()
    one, two = slurm.nodes()
    assert (one.state, one.drained, one.reason, one.reason_user, one.gres) == (
        "IDLE",
        True,
        "by hand",
        "root",
        "gpu:a100:8,nvme:1",
    )
    assert (one.partitions, one.comment, one.extra, one.hostname, one.reason_time) == (
        ("gpu",),
        "c",
        "e",
        "gpu1",
        1796091137,
    )
    assert (two.state, two.responding, two.boot_time, two.gres) == ("DOWN", False, None, "")
    assert asked(tmp_path) == []
    slurm.drain("gpu1", "x")
    slurm.hold(slurm.jobs()[0])
    assert asked(tmp_path) == ["scontrol update NodeName=gpu1 State=DRAIN Reason=x", "scontrol uhold 1"]


@pytest.mark.parametrize(("how", "words"), [("exit", "cannot be imported"), ("older", "pyslurm is of Slurm 24.11")])
def test_where_it_does_not_fit_the_commands_are_asked(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, words: str
) -> None:
    caplog.set_level("INFO")
    slurm = make(how)
    assert [job.name for job in slurm.jobs()] == ["sbatch"]
    assert [job.name for job in slurm.jobs()] == ["sbatch"]
    assert caplog.text.count("pyslurm is not used") == 1
    assert words in caplog.text
    assert len(asked(tmp_path)) == 2
    with pytest.raises(SlurmUnavailable, match=f"slurm.backend = pyslurm: .*{words}.* set it to auto or cli"):
        make(how, required=True).jobs()


def test_without_slurm_conf_it_is_not_even_started(make: Make, tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match=r"no readable slurm\.conf"):
        make(conf=str(tmp_path / "nowhere"), required=True).jobs()
    assert readable_conf(Slurm(conf=str(tmp_path / "slurm.conf"))) == str(tmp_path / "slurm.conf")
    assert readable_conf(Slurm(conf=str(tmp_path / "nowhere"))) == ""


@pytest.mark.parametrize("how", ["down", "down at first"])
def test_a_controller_that_is_away_is_said_and_hides_behind_nothing(make: Make, tmp_path: Path, how: str) -> None:
    slurm = make(how)
    for look in (slurm.jobs, slurm.nodes, lambda: slurm.job(1)):
        with pytest.raises(SlurmUnavailable, match="Unable to contact slurm controller"):
            look()
    assert asked(tmp_path) == []


def test_a_library_that_crashes_or_blocks_costs_one_look(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = make("crash")
    with pytest.raises(SlurmUnavailable, match="the process that runs pyslurm ended"):
        crashing.jobs()
    monkeypatch.setenv("FAKE_PYSLURM", "")
    assert len(crashing.jobs()) == 4
    hanging = make("hang", timeout_s=5.0)
    with pytest.raises(SlurmUnavailable, match="did not answer within 5 s"):
        hanging.jobs()


def is_worker(process: psutil.Process) -> bool:
    try:
        return any("pyslurm_worker" in word for word in process.cmdline())
    except psutil.Error:  # another test's, which has ended
        return False


def test_no_child_stays(make: Make) -> None:
    slurm = make()
    slurm.jobs()
    (child,) = (child for child in psutil.Process().children() if is_worker(child))
    slurm.close()
    deadline = time.monotonic() + 30
    while child.is_running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.is_running()


def test_which_backend_is_chosen(make: Make) -> None:
    def chosen(backend: str) -> type:
        return type(connect(Config(slurm=Slurm(backend=backend))))  # type: ignore[arg-type]

    assert installed()
    assert (chosen("auto"), chosen("cli"), chosen("pyslurm")) == (PyslurmBackend, CliBackend, PyslurmBackend)
