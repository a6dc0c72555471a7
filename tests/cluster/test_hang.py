"""Jobs that asked with --ais-hang-timeout, on a real Slurm: the hung one is requeued once, with its stacks kept; others are not.

A "minute" is a second here, and nothing is measured against the clock: a job that must be left alone runs until another,
started later with the same timeout, has been found hung.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

# Prints, then sleeps for ever; the second attempt ends by itself.
HANGS = """#!/bin/bash
echo step 1
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exit 0
exec srun --output=/dev/null /opt/aistation/.venv/bin/python -c 'import time; time.sleep(600)'
"""
# Says one thing, and then only saves.
SAVES = """#!/bin/bash
echo start
mkdir -p checkpoints
for i in $(seq 600); do mkdir -p checkpoints/step-$i; echo $i >checkpoints/step-$i/weights; sleep 1; done
"""
# Sends its output to a file that Slurm does not know of.
LOGS = """#!/bin/bash
exec >train.log 2>&1
for i in $(seq 600); do echo step $i; sleep 1; done
"""
# In the place of py-spy, which is not among what the tests install: says of which process, and as whom.
PY_SPY = """#!/bin/sh
echo "$1 of process $3 as uid $(id -u)"
"""
SETTINGS = {
    "hang": {
        "py_spy": "/shared/py-spy",
        "minute_s": 1.0,
        "poll_s": 0.5,
        "startup_grace_s": 3.0,
        "checkpoint_allowance_s": 0.0,
        "spin_timeout_s": 4.0,
    },
    "watchdog": {"poll_s": 5.0},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, gpus=2, hcas=2, aistation=True, config=SETTINGS) as up:
        py_spy = up.dir / "shared/py-spy"
        py_spy.write_text(PY_SPY, encoding="utf-8")
        py_spy.chmod(0o755)
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.reset()


def submit(cluster: Cluster, script: str, *options: str, timeout_s: int = 6) -> int:
    return cluster.submit(script, "--ais-resume", f"--ais-hang-timeout={timeout_s}", *options, user="alice")


def stacks(cluster: Cluster, job_id: int) -> list[Path]:
    return sorted((cluster.dir / "shared/alice").glob(f"aistation-hang-{job_id}-*"))


def restarts(cluster: Cluster, job_id: int) -> int:
    return int(cluster.show_job(job_id)["Restarts"])


def agents(cluster: Cluster) -> str:
    return "".join(cluster.logs(f"agent.{name}") for name in cluster.names)


def test_a_hung_job_is_requeued_once_and_its_stacks_are_kept(cluster: Cluster) -> None:
    job_id = submit(cluster, HANGS, "--nodes=2")
    cluster.wait_for(lambda: restarts(cluster, job_id) == 1, 90, "the hung job is requeued")
    [kept] = stacks(cluster, job_id)
    info = kept.stat()
    assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (20001, 0o600)
    text = kept.read_text()
    assert f"job {job_id} made no progress" in text
    assert "Why: no progress of output for" in text
    assert "(python)\nState: S (sleeping)" in text
    here, _, there = text.partition("==== gpu2\n")
    assert here.count("as uid 20001") == there.count("as uid 20001") == 1, text
    comment = cluster.show_job(job_id)["AdminComment"]
    assert f"fault=job.hang@{cluster.names[0]}@" in comment
    assert not any("DRAIN" in cluster.node(name)["flags"] for name in cluster.names)
    cluster.wait_job(job_id, "COMPLETED", timeout=90)
    assert agents(cluster).count(f"job {job_id} requeued") == 1
    assert cluster.show_job(job_id)["ExcNodeList"] == "(null)"


def test_jobs_that_save_log_or_are_suspended_are_left_alone(cluster: Cluster) -> None:
    saves = submit(cluster, SAVES, "--nodes=1", "--gpus-per-node=1", "--ais-ckpt-dir=checkpoints", timeout_s=20)
    logs = submit(cluster, LOGS, "--nodes=1", "--gpus-per-node=1", timeout_s=20)
    suspended = submit(cluster, HANGS, "--nodes=1", "--gpus-per-node=1", timeout_s=30)
    for job_id in (saves, logs, suspended):
        cluster.wait_job(job_id, "RUNNING", timeout=60)
    cluster.run(["scontrol", "suspend", str(suspended)])
    hangs = submit(cluster, HANGS, "--nodes=1", "--gpus-per-node=1", timeout_s=30)
    cluster.wait_for(lambda: restarts(cluster, hangs) == 1, 150, "the other job is found hung")
    alone = (saves, logs, suspended)
    assert [cluster.show_job(job_id)["JobState"] for job_id in alone] == ["RUNNING", "RUNNING", "SUSPENDED"]
    assert [restarts(cluster, job_id) for job_id in alone] == [0, 0, 0]
    assert [stacks(cluster, job_id) for job_id in alone] == [[], [], []]


def test_gpus_that_are_busy_at_idle_power_make_it_shorter_where_configured(cluster: Cluster) -> None:
    idle = submit(cluster, HANGS, "--nodes=1", "--gpus-per-node=2", timeout_s=10000)
    cluster.wait_job(idle, "RUNNING", timeout=60)
    spins = submit(cluster, HANGS, "--nodes=1", "--gpus-per-node=2", timeout_s=10000)
    node = cluster.wait_job(spins, "RUNNING", timeout=60)["nodes"]
    nvml = cluster.hardware[node].nvml
    for gpu in range(2):
        nvml.set(f"gpu.{gpu}.utilization", 100)
    nvml.write()
    try:
        cluster.wait_for(lambda: restarts(cluster, spins) == 1, 90, "the spinning job is requeued")
    finally:
        for gpu in range(2):
            nvml.unset(f"gpu.{gpu}.utilization")
        nvml.write()
    [kept] = stacks(cluster, spins)
    assert "all its GPUs here are busy at idle power" in kept.read_text()
    assert "GPU load: 100 % busy, 72 W of 700 W." in kept.read_text()
    assert (cluster.show_job(idle)["JobState"], restarts(cluster, idle)) == ("RUNNING", 0)
