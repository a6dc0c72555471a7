"""Which command is asked, what its answers and refusals mean, and the fallbacks."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import psutil
import pytest

from aistation_slurm.config import Config, Slurm
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.slurm import connect
from aistation_slurm.slurm.cli_backend import CliBackend
from aistation_slurm.slurm.client import Job
from aistation_slurm.slurm.command import run
from aistation_slurm.slurm.pyslurm_backend import installed
from tests.unit.public_cases import case
from tests.unit.slurm.replies import backend, recorded


def test_one_job_is_found_among_those_that_were_not_asked_for() -> None:
    """095: --json ignores -j and -t before 24.05."""
    known = case("095")
    slurm, replies = backend({"squeue": known["input"].split("\n", 1)[1]})
    job = slurm.job(known["expected"]["selected"][0])
    assert job is not None
    assert (job.job_id, job.user_name, job.state) == (2002, "user2", "RUNNING")
    assert slurm.job(9999) is None
    assert all("--json" in line for line in replies.asked)


def test_one_job_of_very_many_is_asked_for_alone() -> None:
    """As text, since 22.05 prints every job whatever id is given; what the text cannot tell is asked of JSON again."""
    rows = ",".join(f'{{"job_id": {number}, "job_state": "RUNNING"}}' for number in range(1, 1000))
    believed = "JobId=7 JobName=x\n   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)\n\n"
    forged = "JobId=8 JobName=x JobState=FAILED\n   JobState=RUNNING Reason=None Dependency=(null)\n\n"
    slurm, replies = backend(
        {
            "squeue": f'{{"errors": [], "jobs": [{rows}]}}',
            "scontrol show job 7 ": believed,
            "scontrol show job 8 ": forged,
            "scontrol show job 5000 ": SlurmRefused("scontrol: slurm_load_jobs error: Invalid job id specified"),
        }
    )
    assert [job and job.state for job in map(slurm.job, (7, 7, 8, 5000))] == ["RUNNING", "FAILED", "RUNNING", None]
    assert [line.split()[0] for line in replies.asked] == ["squeue", "scontrol", "scontrol", "squeue", "scontrol"]


def test_101_without_json_the_text_is_read_and_json_not_asked_again() -> None:
    missing = SlurmUnavailable(f"squeue: {case('101')['input'].splitlines()[0].replace('sacct', 'squeue')}")
    slurm, replies = backend({"squeue": missing, "scontrol show job": recorded("mixed.jobs.txt")})
    assert {job.job_id for job in slurm.jobs()} == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
    job = slurm.job(6)
    assert job is not None
    assert job.state == "FAILED"
    assert [line.split()[0] for line in replies.asked] == ["squeue", "scontrol", "scontrol"]


def test_101_empty_text_is_not_no_jobs() -> None:
    missing = SlurmRefused("squeue --json: exit code 1 and no message")
    slurm, _ = backend({"squeue": missing, "scontrol show job": ""})
    with pytest.raises(SlurmUnavailable, match="did not say that there is none"):
        slurm.jobs()
    slurm, _ = backend({"squeue": missing, "scontrol show job": "No jobs in the system\n"})
    assert slurm.jobs() == []


def test_114_a_failed_squeue_is_an_error() -> None:
    said = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    slurm, replies = backend({"squeue": SlurmUnavailable(said)})
    with pytest.raises(SlurmUnavailable, match="connect failure"):
        slurm.jobs()
    assert len(replies.asked) == 1, "no fallback hides that the controller is away"


def test_nodes_of_22_05_come_from_sinfo() -> None:
    slurm, replies = backend({"sinfo": recorded("node_down.sinfo.json")})
    assert [node.name for node in slurm.nodes()] == ["gpu1", "gpu2", "gpu3", "gpu4"]
    assert replies.asked == ["sinfo --all --json"]


def test_nodes_of_newer_versions_come_from_scontrol() -> None:
    """sinfo --json prints its table's rows there, not nodes."""
    slurm, replies = backend(
        {
            "sinfo": '{"sinfo": [{"node": {"state": ["IDLE"]}}], "errors": []}',
            "scontrol show nodes --json": '{"nodes": [{"name": "gpu1", "state": ["IDLE", "DRAIN"]}], "errors": []}',
        }
    )
    assert [(node.name, node.drained) for node in slurm.nodes()] == [("gpu1", True)]
    slurm.nodes()
    assert [line.split()[0] for line in replies.asked] == ["sinfo", "scontrol", "scontrol"]


def test_some_nodes_by_name() -> None:
    slurm, replies = backend({"scontrol show node gpu[1-4]": recorded("node_down.nodes.txt")})
    assert [n.state for n in slurm.nodes(["gpu1", "gpu2", "gpu3", "gpu4"])] == ["IDLE", "DOWN", "IDLE", "IDLE"]
    assert len(replies.asked) == 1


@pytest.mark.parametrize(("index", "argument"), list(enumerate(case("120")["expected"]["requeue_argument"])))
def test_120_the_one_array_task_is_requeued(index: int, argument: str) -> None:
    fields = dict(word.split("=") for word in case("120")["input"].splitlines()[index].split() if "=" in word)
    task = fields.get("SLURM_ARRAY_TASK_ID")
    job = Job(
        job_id=int(fields["SLURM_JOB_ID"]),
        state="RUNNING",
        array_job_id=int(fields["SLURM_ARRAY_JOB_ID"]) if task else None,
        array_task_id=int(task) if task else None,
    )
    slurm, replies = backend({"scontrol": ""})
    slurm.requeue(job)
    slurm.release(job)
    slurm.hold(job)
    slurm.update_job(job, StartTime="now", Comment="two words")
    assert replies.asked == [
        f"scontrol requeue {argument}",
        f"scontrol release {argument}",
        f"scontrol uhold {argument}",
        f"scontrol update JobId={argument} StartTime=now Comment=two words",
    ]


def test_111_never_the_whole_array() -> None:
    known = case("111")["expected"]
    job = Job(job_id=80634, state="PENDING", array_job_id=80520, array_task_id=114)
    assert job.argument in known["release_target"]
    assert job.argument != str(known["never_release"]).split()[0]


@pytest.mark.skipif(installed(), reason="pyslurm is installed here")
def test_without_pyslurm_auto_means_the_commands() -> None:
    assert type(connect(Config())) is CliBackend
    with pytest.raises(SlurmUnavailable, match="pyslurm is not installed; set it to auto or cli"):
        connect(Config(slurm=Slurm(backend="pyslurm"))).jobs()


# ---- the processes themselves


def script(folder: Path, text: str, name: str = "squeue") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_command_that_hangs_ends_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    argv = [script(tmp_path, f"sleep 300 & echo $$ $! >{pids}; wait")]
    began = time.monotonic()
    with pytest.raises(SlurmUnavailable, match=r"squeue did not answer within 1 s"):
        run(argv, timeout_s=1.0)
    assert time.monotonic() - began < 30
    for pid in map(int, pids.read_text().split()):
        deadline = time.monotonic() + 20
        while _runs(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_plain_locale_and_slurm_conf(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.touch()
    argv = [script(tmp_path, "echo $LC_ALL $SLURM_CONF")]
    assert run(argv, timeout_s=20, conf=str(conf)).split() == ["C", str(conf)]


def test_a_slurm_conf_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match=r"nowhere/slurm\.conf: no such slurm\.conf"):
        run([script(tmp_path, "sleep 60")], timeout_s=60, conf=str(tmp_path / "nowhere/slurm.conf"))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (
            "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1",
            SlurmUnavailable,
            "connect failure",
        ),
        ("echo 'Unexpected message received for job 5'; exit 1", SlurmUnavailable, "Unexpected message"),
        ("echo 'Job is pending execution for job 4' >&2; exit 1", SlurmRefused, "pending execution"),
        ("kill -9 $$", SlurmUnavailable, "exit code -9"),
        ("exit 1", SlurmRefused, "no message"),
    ],
)
def test_who_is_at_fault(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        run([script(tmp_path, text, "scontrol"), "requeue", "5"], timeout_s=20)
    assert "scontrol" in str(caught.value)


def test_no_slurm_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match="is Slurm's client package installed"):
        CliBackend(Slurm(bin_dir=str(tmp_path))).jobs()


def test_a_command_that_floods_does_not_block(tmp_path: Path) -> None:
    argv = [script(tmp_path, "head -c 3000000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero | tr '\\0' y >&2")]
    assert len(run(argv, timeout_s=60)) == 3_000_000
    assert os.path.exists(argv[0])
