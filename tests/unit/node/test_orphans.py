from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

from aistation_slurm.node import clean
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.orphans import EndedJob, judge
from aistation_slurm.node.processes import ProcessFacts, live_jobs, read_process, start_ticks
from aistation_slurm.probes.nvml import GpuProcess, GpuSnapshot

PROTECT = ("nvidia-cuda-mps*", "nv-hostengine*", "dcgm*")
ALICE, BOB = 20001, 20002
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of other users")


def process(**fields: object) -> ProcessFacts:
    facts: dict[str, object] = {"pid": 500, "uid": ALICE, "start": 1, "name": "python", "program": "python3.11"}
    return ProcessFacts(**{**facts, **fields})  # type: ignore[arg-type]


ALONE = EndedJob(501, ALICE)
BESIDE = EndedJob(501, ALICE, others=frozenset({502}), live=frozenset({502, 700}))


@pytest.mark.parametrize(
    ("facts", "job", "end", "why"),
    [
        (process(env_job=501), ALONE, True, "this job's SLURM_JOB_ID"),
        (process(env_job=501), BESIDE, True, "this job's SLURM_JOB_ID"),
        (process(cgroup_jobs=frozenset({501})), BESIDE, True, "by Slurm for this job"),
        (process(ancestor_jobs=frozenset({501})), BESIDE, True, "by Slurm for this job"),
        (process(), ALONE, True, "no other job of its user"),
        (process(env_job=400), ALONE, True, "no other job of its user"),
        (process(), BESIDE, False, "may belong to another job of the same user"),
        (process(env_job=400), BESIDE, False, "may belong to another job"),
        (process(env_job=502), BESIDE, False, "SLURM_JOB_ID=502"),
        (process(env_job=700), EndedJob(501, ALICE, live=frozenset({700})), False, "SLURM_JOB_ID=700"),
        (process(uid=BOB, env_job=501), ALONE, False, f"uid {BOB}"),
        (process(uid=0, env_job=501), ALONE, False, "uid 0"),
        (process(uid=0, env_job=501), EndedJob(501, 0), False, "root's processes"),
        (process(uid=-1, env_job=501), EndedJob(501, -1), False, "root's processes"),
        (process(name="nvidia-cuda-mps", env_job=501), ALONE, False, "protected"),
        (process(name="x", program="nv-hostengine", env_job=501), ALONE, False, "protected"),
        # what Slurm says counts more than what the process says
        (process(cgroup_jobs=frozenset({502}), env_job=501), BESIDE, False, "cgroup of job 502"),
        (process(ancestor_jobs=frozenset({502}), env_job=501), BESIDE, False, "below a step of job 502"),
        (process(cgroup_jobs=frozenset({501, 502})), BESIDE, False, "cgroup of job 502"),
    ],
)
def test_who_may_be_ended(facts: ProcessFacts, job: EndedJob, end: bool, why: str) -> None:
    verdict = judge(facts, job, PROTECT)
    assert verdict.end is end
    assert why in verdict.why


def test_other_jobs_come_from_records_and_from_slurmstepd() -> None:
    own = JobRecord(501, ALICE, 0, frozenset({0}), "auto", 1.0)
    records = {501: own, 502: JobRecord(502, BOB, 0, frozenset({1}), "", 1.0)}
    records[503] = JobRecord(503, ALICE, 0, frozenset({2}), "", 1.0)
    job = clean.ended_job(own, records, frozenset({501, 502, 600}))
    assert job.live == {502, 503, 600}
    assert job.others == {503, 600}, "bob's job is not alice's; of 600 nothing is known, so it may be"


# ---- /proc


def fake_process(
    proc: Path,
    pid: int,
    ppid: int = 1,
    uid: int = ALICE,
    name: str = "python",
    cmdline: bytes = b"python\0",
    environ: bytes = b"",
    cgroup: str = "0::/\n",
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "stat").write_text(f"{pid} ({name}) S {ppid} " + " ".join(["0"] * 17) + " 4242 0 0\n")
    (folder / "cmdline").write_bytes(cmdline)
    (folder / "environ").write_bytes(environ)
    (folder / "cgroup").write_text(cgroup)
    os.chown(folder, uid, uid)


@pytest.mark.parametrize(
    ("cgroup", "jobs"),
    [
        ("0::/system.slice/slurmstepd.scope/job_501/step_0/user/task_0\n", {501}),
        ("0::/system.slice/gpu1_slurmstepd.scope/job_501/step_batch\n", {501}),
        ("11:devices:/slurm/uid_20001/job_501/step_0\n3:cpuset:/slurm/uid_20001/job_501\n", {501}),
        ("0::/user.slice/user-20001.slice/session-3.scope\n", set()),
        ("0::/docker/job_x/my_job_501_cache\n", set()),
        ("", set()),
    ],
)
@root_only
def test_jobs_of_a_cgroup_path(tmp_path: Path, cgroup: str, jobs: set[int]) -> None:
    fake_process(tmp_path, 9, cgroup=cgroup)
    facts = read_process(9, str(tmp_path))
    assert facts is not None
    assert facts.cgroup_jobs == jobs


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (b"PATH=/bin\0SLURM_JOB_ID=501\0", 501),
        (b"SLURM_JOB_ID=501", 501),
        (b"XSLURM_JOB_ID=501\0", None),
        (b"SLURM_JOB_ID=501x\0", None),
        (b"SLURM_JOB_ID=\0", None),
        (b"A=SLURM_JOB_ID=501\0", None),
        (b"", None),
    ],
)
@root_only
def test_job_of_an_environment(tmp_path: Path, environ: bytes, job: Optional[int]) -> None:
    fake_process(tmp_path, 9, environ=environ)
    facts = read_process(9, str(tmp_path))
    assert facts is not None
    assert facts.env_job == job


@root_only
def test_only_roots_slurmstepd_counts_and_at_any_depth(tmp_path: Path) -> None:
    fake_process(tmp_path, 5, uid=0, name="slurmstepd", cmdline=b"slurmstepd: [501.batch]\0")
    fake_process(tmp_path, 6, ppid=5, name="bash) S 1 (")
    fake_process(tmp_path, 7, ppid=6)
    fake_process(tmp_path, 8, uid=ALICE, cmdline=b"slurmstepd: [502.0]\0")
    fake_process(tmp_path, 9, ppid=8)
    inner, faked = read_process(7, str(tmp_path)), read_process(9, str(tmp_path))
    assert inner is not None
    assert inner.ancestor_jobs == {501}
    assert faked is not None
    assert faked.ancestor_jobs == frozenset()
    assert live_jobs(str(tmp_path)) == {501}


@root_only
def test_a_ring_of_parents_ends(tmp_path: Path) -> None:
    fake_process(tmp_path, 5, ppid=6)
    fake_process(tmp_path, 6, ppid=5)
    assert read_process(5, str(tmp_path)) is not None


def test_a_process_that_is_gone_or_a_zombie_is_none(tmp_path: Path) -> None:
    assert read_process(5, str(tmp_path)) is None
    child = subprocess.Popen(["/bin/true"])
    deadline = time.monotonic() + 30
    while read_process(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_process(child.pid) is None
    child.wait()


# ---- real processes


class Started:
    """Processes of this test, ended with it."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def __call__(self, code: str, uid: int = ALICE, **env: str) -> int:
        run = subprocess.Popen(
            [sys.executable, "-S", "-c", f"{code}\nprint('up', flush=True)\nimport time\ntime.sleep(600)"],
            user=uid,
            group=uid,
            extra_groups=[],
            env=env,
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
        )
        self.all.append(run)
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        return run.pid

    def ended(self, pid: int) -> Optional[int]:
        """Exit code as Popen gives it; None while it runs."""
        (run,) = [r for r in self.all if r.pid == pid]
        return run.poll()


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for run in started.all:
        run.kill()
        run.wait()
        if run.stdout is not None:
            run.stdout.close()


def gpu(*pids: int) -> GpuSnapshot:
    return GpuSnapshot(index=0, pci="0000:18:00.0", minor=0, processes=tuple(GpuProcess(pid) for pid in pids))


@root_only
def test_the_jobs_orphan_is_ended_and_everyone_else_lives(start: Started) -> None:
    own = start("", SLURM_JOB_ID="501")
    beside = start("", SLURM_JOB_ID="502")
    other_user = start("", uid=BOB, SLURM_JOB_ID="501")
    service = start("import ctypes; ctypes.CDLL(None).prctl(15, b'nv-hostengine', 0, 0, 0)", SLURM_JOB_ID="501")
    job = EndedJob(501, ALICE, others=frozenset({502}), live=frozenset({502}))
    found = clean.orphans([gpu(own, beside, other_user, service, 999_999_999)], job, PROTECT)
    assert [p.pid for p in found] == [own]
    assert clean.end_processes(found, 20.0) == []
    assert start.ended(own) == -signal.SIGTERM
    assert [start.ended(p) for p in (beside, other_user, service)] == [None, None, None]


@root_only
def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(start: Started) -> None:
    stubborn = start("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)", SLURM_JOB_ID="501")
    facts = read_process(stubborn)
    assert facts is not None
    assert clean.end_processes([facts], 0.3) == []
    assert start.ended(stubborn) == -signal.SIGKILL


@root_only
def test_a_polite_process_may_finish_within_the_grace(start: Started) -> None:
    polite = start("import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", SLURM_JOB_ID="501")
    facts = read_process(polite)
    assert facts is not None
    assert clean.end_processes([facts], 30.0) == []
    assert start.ended(polite) == 7


@root_only
def test_a_pid_that_was_used_again_is_never_hit(start: Started) -> None:
    pid = start("", SLURM_JOB_ID="501")
    facts = read_process(pid)
    assert facts is not None
    older = ProcessFacts(pid=pid, uid=facts.uid, start=facts.start - 1, name=facts.name)
    assert clean.end_processes([older], 0.1) == []
    assert start.ended(pid) is None
    assert start_ticks(pid) == facts.start
