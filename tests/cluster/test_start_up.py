"""The start of a job on a real Slurm: which checkpoint after failed attempts, who may write, what its Comment says."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, suite
from tests.cluster.host_root import USERS

pytestmark = pytest.mark.cluster

TASK_PROLOG = "/opt/aistation/prolog/aistation-task-prolog"
SLEEP = "exec sleep 300"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2) as up:
        if suite.has_command("watchdog"):
            up.stop_watchdog()  # nobody but the tests restarts a job
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.reset()


def folder(cluster: Cluster, name: str) -> Path:
    """A folder of alice's on the shared file system; /shared/alice/<name> inside."""
    return cluster.dir / "shared/alice" / name


def save(cluster: Cluster, name: str, step: int) -> str:
    """A checkpoint as transformers' Trainer writes it; its path inside the cluster."""
    path = folder(cluster, name) / f"checkpoint-{step}"
    path.mkdir(parents=True)
    header = b'{"w":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}}'
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + os.urandom(256))
    (path / "trainer_state.json").write_text(f'{{"global_step": {step}, "epoch": 1.0}}', encoding="utf-8")
    for made in (path, *path.iterdir(), path.parent):
        os.chown(made, USERS["alice"], USERS["alice"])
    return f"/shared/alice/{name}/checkpoint-{step}"


def submit(cluster: Cluster, name: str, script: str, *options: str) -> int:
    return cluster.submit(script, "--ais-resume=hf", f"--ais-ckpt-dir={name}", "--open-mode=append", *options)


def output(cluster: Cluster, job_id: int) -> str:
    return (cluster.dir / f"shared/alice/slurm-{job_id}.out").read_text(encoding="utf-8")


def requeue(cluster: Cluster, job_id: int) -> None:
    """By hand, then a start time that does not wait for Slurm's 121 s."""
    cluster.run(["scontrol", "requeue", str(job_id)])
    cluster.wait_job(job_id, "PENDING")
    cluster.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now+2seconds"])


def comment(cluster: Cluster, job_id: int, has: str) -> str:
    """The job's Comment, as soon as it has this text."""

    def text() -> str:
        found = cluster.show_job(job_id).get("Comment", "")
        return found if has in found else ""

    found: str = cluster.wait_for(text, 60, f"{has!r} in the Comment of job {job_id}")
    return found


def attempts(cluster: Cluster, name: str, count: int) -> list[dict[str, object]]:
    """The records of the attempts file, as soon as there are so many."""
    path = folder(cluster, name) / ".aistation-attempts"

    def records() -> list[dict[str, object]]:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines] if len(lines) >= count else []

    found: list[dict[str, object]] = cluster.wait_for(records, 60, f"{count} attempts in {name}")
    return found


def test_a_checkpoint_that_failed_twice_is_rolled_back(cluster: Cluster) -> None:
    save(cluster, "poisoned", 100)
    save(cluster, "poisoned", 200)
    job_id = submit(cluster, "poisoned", "echo given $AISTATION_RESUME_STEP; exit 1")
    for _ in range(4):
        cluster.wait_job(job_id, "FAILED")
        requeue(cluster, job_id)
        assert cluster.wait_job(job_id, "FAILED", timeout=90)
    said = output(cluster, job_id)
    assert [line for line in said.splitlines() if line.startswith("given")] == [
        "given 200",
        "given 200",
        "given 100",
        "given 100",
    ]
    assert "skipped /shared/alice/poisoned/checkpoint-200: 2 attempts of this job were given it" in said
    # the last one: nothing is left, and it did not train from step 0
    assert "every valid checkpoint in /shared/alice/poisoned was given to two attempts" in said
    assert cluster.show_job(job_id)["ExitCode"] == "75:0"
    assert comment(cluster, job_id, "[ais-run") == "[ais-run a=4 s=- v=unusable]"
    assert [record["verdict"] for record in attempts(cluster, "poisoned", 4)] == ["ok", "ok", "back", "back"]
    # a newer one clears it
    newer = save(cluster, "poisoned", 300)
    requeue(cluster, job_id)
    cluster.wait_for(lambda: "given 300" in output(cluster, job_id), 60, "the newer checkpoint to be given")
    assert f"attempt 5 resumes from {newer}, step 300" in output(cluster, job_id)


def test_an_attempt_that_ended_for_the_machines_says_nothing_about_its_checkpoint(cluster: Cluster) -> None:
    save(cluster, "innocent", 100)
    save(cluster, "innocent", 200)
    job_id = submit(cluster, "innocent", "echo given $AISTATION_RESUME_STEP; exit 1")
    for restart in (1, 2, 3):
        cluster.wait_job(job_id, "FAILED", timeout=90)
        tag = f"[ais resume=hf attempt={restart} act=requeue last=infra]"
        cluster.run(["scontrol", "requeue", str(job_id)])
        cluster.wait_job(job_id, "PENDING")
        cluster.run(["scontrol", "update", f"JobId={job_id}", f"AdminComment={tag}", "StartTime=now+2seconds"])
        cluster.wait_for(lambda n=restart: len(attempts(cluster, "innocent", 1)) > n, 60, f"restart {restart}")
    assert [record["step"] for record in attempts(cluster, "innocent", 4)] == [200, 200, 200, 200]
    assert [record["last"] for record in attempts(cluster, "innocent", 4)] == ["", "infra", "infra", "infra"]


def test_a_second_job_on_the_same_directory_is_refused_while_the_first_runs(cluster: Cluster) -> None:
    save(cluster, "shared-dir", 100)
    first = submit(cluster, "shared-dir", SLEEP)
    comment(cluster, first, "[ais-run a=0 s=100 v=ok]")
    lease = folder(cluster, "shared-dir") / ".aistation-lease"
    held = json.loads(lease.read_text(encoding="utf-8"))
    assert (held["job"], held["attempt"], held["nodes"]) == (str(first), 0, cluster.show_job(first)["NodeList"])
    assert lease.stat().st_mode & 0o777 == 0o644
    # what a user asks for in case of unreadable checkpoints does not overrule it
    second = submit(cluster, "shared-dir", "echo trained", "--export=ALL,AISTATION_IF_UNREADABLE=start")
    cluster.wait_job(second, "FAILED")
    assert cluster.show_job(second)["ExitCode"] == "75:0"
    said = output(cluster, second)
    assert f"/shared/alice/shared-dir is in use: job {first} runs on it" in said
    assert "trained" not in said
    assert comment(cluster, second, "[ais-run") == "[ais-run a=0 s=- v=busy]"
    assert json.loads(lease.read_text(encoding="utf-8")) == held
    cluster.run(["scancel", str(first)])
    cluster.wait_job(first, "CANCELLED")
    third = submit(cluster, "shared-dir", "echo trained")
    cluster.wait_job(third, "COMPLETED")
    assert json.loads(lease.read_text(encoding="utf-8"))["job"] == str(third)


def test_a_directory_that_is_empty_stays_so_and_still_has_one_writer(cluster: Cluster) -> None:
    folder(cluster, "fresh").mkdir()
    os.chown(folder(cluster, "fresh"), USERS["alice"], USERS["alice"])
    first = submit(cluster, "fresh", SLEEP)
    text = comment(cluster, first, "[ais-run a=0 s=- v=fresh ")
    assert len(text.encode()) <= 256
    second = submit(cluster, "fresh", "echo trained")
    cluster.wait_job(second, "FAILED")
    assert f"/shared/alice/fresh is in use: job {first} runs on it" in output(cluster, second)
    other = submit(cluster, "fresh-too", "echo trained")
    cluster.wait_job(other, "COMPLETED")
    assert list(folder(cluster, "fresh").iterdir()) == []


@pytest.mark.parametrize("writes", [True, False], ids=["its processes write", "all is quiet"])
def test_a_node_that_slurm_lost_may_still_be_writing(cluster: Cluster, writes: bool) -> None:
    """The very first attempt, which had no lease; slurmd is gone, the job's processes are not."""
    name = f"lost-{writes}"
    folder(cluster, name).mkdir()
    os.chown(folder(cluster, name), USERS["alice"], USERS["alice"])
    write = f"while :; do date >{name}/log; sleep 0.2; done" if writes else SLEEP
    script = f'echo started $AISTATION_RESUME_STEP.\n[ "$AISTATION_ATTEMPT" = 0 ] || exit 0\n{write}'
    job_id = submit(cluster, name, script, "--nodelist=gpu2")
    comment(cluster, job_id, "[ais-run a=0 s=- v=fresh ")
    saved = save(cluster, name, 100)
    cluster.kill_slurmd("gpu2")
    cluster.run(["scontrol", "update", "NodeName=gpu2", "State=DOWN", "Reason=test"])
    cluster.wait_job(job_id, "PENDING")
    cluster.run(["scontrol", "update", f"JobId={job_id}", "ReqNodeList=", "ExcNodeList=gpu2", "StartTime=now+2seconds"])
    try:
        cluster.wait_job(job_id, "FAILED" if writes else "COMPLETED", timeout=90)
        said = output(cluster, job_id)
        assert f"attempt 0 of job {job_id} ran on gpu2, which Slurm cannot reach" in said
        if writes:
            assert "somebody still writes to it" in said
            assert said.count("started .") == 1
            assert comment(cluster, job_id, "[ais-run") == "[ais-run a=1 s=- v=busy]"
        else:
            assert "nothing was written to" in said
            assert f"attempt 1 resumes from {saved}, step 100" in said
            assert comment(cluster, job_id, "[ais-run") == "[ais-run a=1 s=100 v=ok]"
    finally:
        cluster.kill_node("gpu2")  # the processes that nobody controls
        cluster.start_node("gpu2")


def test_the_comment_keeps_what_others_wrote(cluster: Cluster) -> None:
    save(cluster, "said", 100)
    theirs = 'my "run" a=1; 50% [ais: restart 1 of at most 3: gpu.lost]'
    job_id = submit(cluster, "said", SLEEP, f"--comment={theirs}")
    assert comment(cluster, job_id, "[ais-run") == f"{theirs} [ais-run a=0 s=100 v=ok]"
    (record,) = attempts(cluster, "said", 1)
    start = cluster.run(["squeue", "-h", f"--jobs={job_id}", "-o", "%S"], env={"SLURM_TIME_FORMAT": "%s"}).stdout
    assert (record["start"], record["tag"]) == (int(start), "resume=hf")


def test_each_task_of_an_array_and_the_leader_of_a_het_job_have_their_own(cluster: Cluster) -> None:
    for step in (1, 2):
        save(cluster, f"task-{step}", 100 * step)
    array = cluster.submit(SLEEP, "--array=1-2", "--ais-resume=hf", "--ais-ckpt-dir=task-1")
    texts = cluster.wait_for(lambda: _comments(cluster, array, 2), 60, "both tasks to say something")
    # sbatch takes one directory for all tasks: one holds it, the other one may not
    assert sorted(text.split(" v=")[1] for text in texts.values()) == ["busy]", "ok]"]
    assert set(texts) == {f"{array}_1", f"{array}_2"}
    cluster.run(["scancel", str(array)])
    argv = ["sbatch", "--parsable", "--ais-resume=hf", "--ais-ckpt-dir=task-2", "-n1", ":", "-n1"]
    het = int(cluster.run(argv, "alice", input=f"#!/bin/sh\n{SLEEP}\n").stdout.split(";")[0])
    texts = cluster.wait_for(lambda: _comments(cluster, het, 1), 60, "the leader to say something")
    assert texts == {f"{het}+0": "[ais-run a=0 s=200 v=ok]"}
    lease = json.loads((folder(cluster, "task-2") / ".aistation-lease").read_text(encoding="utf-8"))
    assert sorted(cluster.expand(lease["nodes"])) == ["gpu1", "gpu2"]


def _comments(cluster: Cluster, job_id: int, count: int) -> dict[str, str]:
    """Comment by task, as soon as so many bear ours."""
    lines = cluster.run(["squeue", "-h", "--states=all", f"--jobs={job_id}", "-o", "%i %k"]).stdout.splitlines()
    found = dict(line.split(" ", 1) for line in lines if "[ais-run" in line)
    return found if len(found) >= count else {}


def test_the_excluded_nodes_are_told_to_the_script(cluster: Cluster) -> None:
    save(cluster, "excluded", 100)
    for options in (["--ais-ckpt-dir=excluded"], []):
        job_id = cluster.submit('echo "not on $AISTATION_EXCLUDED_NODES."', "--ais-resume", "--exclude=gpu2", *options)
        cluster.wait_job(job_id, "COMPLETED")
        assert "not on gpu2." in output(cluster, job_id)


def test_without_slurms_answer_the_job_starts_all_the_same(cluster: Cluster) -> None:
    path = save(cluster, "alone", 100)
    (folder(cluster, "alone") / ".aistation-lease").write_text(
        json.dumps({"job": "4711", "cluster": "aistest", "attempt": 3, "nodes": "gpu2", "boot": {}, "time": 1}),
        encoding="utf-8",
    )
    job = {
        "SLURM_JOB_ID": "4712",
        "SLURM_JOB_NODELIST": "gpu1",
        "SLURM_CLUSTER_NAME": "aistest",
        "SLURM_SPANK_AISTATION_RESUME": "hf",
        "SLURM_SPANK_AISTATION_CKPT_DIR": "/shared/alice/alone",
    }
    cluster.stop_slurmctld()
    try:
        began = time.monotonic()
        result = cluster.run([TASK_PROLOG], "alice", host="gpu1", env=job)
        assert time.monotonic() - began < 25
    finally:
        cluster.start_slurmctld()
    assert f"export AISTATION_RESUME_PATH={path}" in result.stdout
    assert "warning: Slurm did not say whether attempt 3 of job 4711 has ended" in result.stdout
