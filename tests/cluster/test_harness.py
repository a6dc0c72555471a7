"""The test cluster itself: boots a real Slurm, runs jobs as users, cuts the power of nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster, ClusterError, CommandError, gpu_lost

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, aistation=False) as c:
        yield c


def test_is_up_soon(cluster: Cluster) -> None:
    assert cluster.startup_s < 15
    assert {cluster.node(name)["state"] for name in cluster.names} == {"IDLE"}


def test_two_node_job_as_alice(cluster: Cluster) -> None:
    job = cluster.submit('id -un; echo "gpus $CUDA_VISIBLE_DEVICES"; srun hostname', "--nodes=2", "--gres=gpu:8")
    done = cluster.wait_job(job, "COMPLETED")
    assert done["user_name"] == "alice"
    output = (cluster.dir / f"shared/alice/slurm-{job}.out").read_text()
    assert output.split("\n")[:2] == ["alice", "gpus 0,1,2,3,4,5,6,7"]
    assert set(output.split()[-2:]) == {"gpu1", "gpu2"}


def test_jobs_stay_below_one_leaf_switch(cluster: Cluster) -> None:
    one = cluster.submit("sleep 60", "--nodes=1", "--nodelist=gpu2", "--gres=gpu:8")
    cluster.wait_job(one, "RUNNING")
    two = cluster.submit("sleep 60", "--nodes=2", "--gres=gpu:8")
    assert cluster.wait_job(two, "RUNNING")["nodes"] == "gpu[3-4]"
    cluster.run(["scancel", str(one), str(two)])
    cluster.wait_job(two, "CANCELLED")


def test_hosts_see_only_their_own(cluster: Cluster) -> None:
    assert cluster.run(["hostname"], host="gpu3").stdout == "gpu3\n"
    assert cluster.run(["id", "-u"], user="bob", host="gpu3").stdout == "20002\n"
    commands = cluster.run(["ps", "-e", "-o", "comm="], host="gpu3").stdout.split()
    assert commands.count("slurmd") == 1
    assert "slurmctld" not in commands
    assert cluster.run(["sh", "-c", "ls /dev/nvidia?"], host="gpu3").stdout.count("\n") == 8
    boots = {cluster.run(["cat", "/proc/sys/kernel/random/boot_id"], host=h).stdout for h in [*cluster.names, "ctl"]}
    assert len(boots) == 5


def test_command_failure_and_time_limit(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match=r"exit code 3\nstdout: here"):
        cluster.run(["sh", "-c", "echo here; exit 3"])
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run(["sh", "-c", "sleep 54321 & wait"], host="gpu4", timeout=0.5)
    assert "54321" not in cluster.run(["ps", "-e", "-o", "args="], host="gpu4").stdout
    with pytest.raises(ClusterError, match="there are ctl, gpu1"):
        cluster.run(["true"], host="gpu9")


def test_show_job_and_unknown_job(cluster: Cluster) -> None:
    job = cluster.submit("true", "--comment=two words JobState=FAILED [ais a=b]", "--hold", "--job-name=n Priority=7")
    record = cluster.show_job(job)
    assert (record["JobState"], record["Comment"]) == ("PENDING", "two words JobState=FAILED [ais a=b]")
    assert (record["JobName"], record["Priority"]) == ("n Priority=7", "0")
    assert cluster.job(job)["job_state"] == "PENDING"  # type: ignore[index]
    assert cluster.job(job + 1000) is None
    cluster.run(["scancel", str(job)])


def test_power_cut_requeues_the_job_and_the_node_comes_back(cluster: Cluster) -> None:
    job = cluster.submit("sleep 300", "--nodes=1", "--nodelist=gpu4", "--requeue")
    cluster.wait_job(job, "RUNNING")
    before = cluster.node("gpu4")["boot_time"]
    boot_id = cluster.run(["cat", "/proc/sys/kernel/random/boot_id"], host="gpu4").stdout
    cluster.kill_node("gpu4")
    with pytest.raises(ClusterError, match="switched off"):
        cluster.run(["true"], host="gpu4")
    cluster.start_node("gpu4")
    # Slurm sees the new boot time, so it does not believe that the job still runs there.
    cluster.wait_for(lambda: (cluster.job(job) or {})["job_state"] == "PENDING", 60, "the requeue")
    cluster.run(["scancel", str(job)])
    assert cluster.run(["cat", "/proc/sys/kernel/random/boot_id"], host="gpu4").stdout != boot_id
    node = cluster.node("gpu4")
    assert node["boot_time"] > before
    cluster.reset()
    assert cluster.node("gpu4")["state"] == "IDLE"


def test_reset_repairs_reboots_and_gives_back(cluster: Cluster) -> None:
    boot = ["cat", "/proc/sys/kernel/random/boot_id"]
    before = {name: cluster.run(boot, host=name).stdout for name in cluster.names}
    running = cluster.submit("sleep 300", "--nodes=4", "--gpus-per-node=8")
    held = cluster.submit("true", "--hold", user="bob")
    cluster.wait_job(running, "RUNNING")
    cluster.inject("gpu2", gpu_lost(3))
    cluster.run(["scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=broken"])
    cluster.run(["scontrol", "update", "NodeName=gpu3", "State=DRAIN", "Reason=service"])
    cluster.kill_node("gpu1")
    cluster.reset()
    assert [cluster.node(n)["state"] for n in cluster.names] == ["IDLE"] * 4
    assert [cluster.node(n)["flags"] for n in cluster.names] == [[]] * 4
    assert [cluster.node(n)["reason"] for n in cluster.names] == [""] * 4
    assert [cluster.job(j)["job_state"] for j in (running, held)] == ["CANCELLED"] * 2  # type: ignore[index]
    rebooted = [name for name in cluster.names if cluster.run(boot, host=name).stdout != before[name]]
    assert rebooted == ["gpu1", "gpu2"]
    assert "Xid" not in cluster.run(["cat", "/run/aisim/kmsg"], host="gpu2").stdout


def test_slurmctld_restart_keeps_jobs(cluster: Cluster) -> None:
    job = cluster.submit("sleep 300", "--nodes=1")
    cluster.wait_job(job, "RUNNING")
    cluster.stop_slurmctld()
    assert cluster.run(["scontrol", "ping"], check=False).returncode != 0
    cluster.start_slurmctld()
    assert cluster.wait_job(job, "RUNNING")["restart_cnt"] == 0
    cluster.run(["scancel", str(job)])


def test_killed_slurmd_leaves_the_job_running(cluster: Cluster) -> None:
    job = cluster.submit("sleep 98765", "--nodes=1", "--nodelist=gpu1")

    def commands() -> str:
        return cluster.run(["ps", "-e", "-o", "args="], host="gpu1").stdout

    # Slurm says RUNNING before the script has started.
    cluster.wait_for(lambda: "sleep 98765" in commands(), 60, "the job's process")
    cluster.kill_slurmd("gpu1")
    assert "sleep 98765" in commands()
    assert "slurmd -D" not in commands()
    cluster.start_slurmd("gpu1")
    cluster.run(["scancel", str(job)])
    cluster.wait_job(job, "CANCELLED")
