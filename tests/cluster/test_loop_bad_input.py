"""Things that are missing, broken or away: each has a clear message, and none loses a job or drains a node."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster, gpu_lost

pytestmark = pytest.mark.cluster

SHORT = "#!/bin/bash\nsrun hostname\n"
STATE = "/run/aistation/state"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, aistation=True) as up:
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.reset()


def aistation(cluster: Cluster, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    options.setdefault("host", "gpu1")
    return cluster.run(["aistation", *arguments], check=False, **options)  # type: ignore[arg-type]


def runs_and_drains_nothing(cluster: Cluster) -> None:
    job_id = cluster.submit(SHORT, "--nodes=2", "--gpus-per-node=8", "--ais-resume", user="alice")
    cluster.wait_job(job_id, "COMPLETED", timeout=60)
    assert cluster.show_job(job_id)["Restarts"] == "0"
    assert [cluster.node(n)["reason"] for n in cluster.names] == ["", ""]


@pytest.mark.parametrize(
    "spoil",
    [
        "rm -f {state}",
        "head -c 200 {state} > {state}.cut && mv {state}.cut {state}",
        "sed '1s/[0-9a-f]\\{{8\\}}-[0-9a-f-]*/00000000-0000-0000-0000-000000000000/' {state} > {state}.x && mv {state}.x {state}",
        "printf 'garbage\\377\\n' > {state}",
    ],
    ids=["missing", "cut", "another boot", "garbage"],
)
def test_a_state_file_that_cannot_be_used_is_read_again_in_place(cluster: Cluster, spoil: str) -> None:
    for name in cluster.names:
        cluster.stop_agent(name)
        cluster.run(["sh", "-c", spoil.format(state=STATE)], host=name)
    try:
        runs_and_drains_nothing(cluster)
    finally:
        for name in cluster.names:
            cluster.start_agent(name)


def test_a_stale_state_does_not_hide_a_lost_gpu(cluster: Cluster) -> None:
    for name in cluster.names:
        cluster.stop_agent(name)
    try:
        cluster.inject("gpu1", gpu_lost(2))
        cluster.run(["rm", "-f", STATE], host="gpu1")
        cluster.submit(SHORT, "--nodes=1", "--gpus-per-node=8", "--nodelist=gpu1", user="alice")
        cluster.wait_for(lambda: cluster.node("gpu1")["reason"], 60, "gpu1 to be drained")
        assert cluster.node("gpu1")["reason"].startswith("ais:gpu.lost GPU2 ")
    finally:
        for name in cluster.names:
            cluster.start_agent(name)


def test_slurmctld_down_during_a_fault_delays_the_drain_and_loses_nothing(cluster: Cluster) -> None:
    script = '#!/bin/bash\n[ "$AISTATION_ATTEMPT" -gt 0 ] && exit 0\nsrun sleep 600\n'
    job_id = cluster.submit(script, "--nodes=1", "--gpus-per-node=8", "--ais-resume", user="alice")
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    cluster.wait_for(lambda: cluster.show_job(job_id)["Reason"] == "None", 60, "the prolog to end")
    bad = cluster.show_job(job_id)["NodeList"]
    cluster.stop_slurmctld()
    cluster.inject(bad, gpu_lost(3))
    time.sleep(3)
    check = aistation(cluster, "check", "--json", host=bad)
    assert check.returncode == 1, check.stderr
    assert json.loads(check.stdout)["status"] == "fail"
    cluster.start_slurmctld()
    cluster.wait_for(lambda: cluster.node(bad)["reason"].startswith("ais:gpu.lost GPU3 "), 90, f"{bad} to be drained")
    cluster.wait_job(job_id, "COMPLETED", timeout=120)
    assert cluster.show_job(job_id)["Restarts"] == "1"


def test_slurmctld_down_alone_drains_nothing(cluster: Cluster) -> None:
    cluster.stop_slurmctld()
    began = time.monotonic()
    acted = aistation(cluster, "check", "--act", timeout=60)
    assert acted.returncode in (0, 1), acted.stderr
    status = aistation(cluster, "status", host="ctl", timeout=60)
    assert status.returncode == 3
    assert "slurm" in status.stderr.lower()
    assert time.monotonic() - began < 60
    cluster.start_slurmctld()
    runs_and_drains_nothing(cluster)


def test_no_nvml_library_is_unknown_and_never_a_drain(cluster: Cluster) -> None:
    config = (
        "[probe]\nroot = '/run/aisim/root'\nkmsg = '/run/aisim/kmsg'\nnvml_library = '/nowhere/libnvidia-ml.so.1'\n"
    )
    path = "/run/no-nvml.toml"
    cluster.run(["tee", path], host="gpu1", input=config)
    check = aistation(cluster, "check", "--json", "--act", "--config", path)
    found = {f["check"]: f for f in json.loads(check.stdout)["findings"]}
    assert found["gpu.count"]["status"] == "unknown"
    assert "/nowhere/libnvidia-ml.so.1" in found["gpu.count"]["evidence"]
    runs_and_drains_nothing(cluster)


def test_no_rdma_devices_where_none_are_expected_is_fine(cluster: Cluster) -> None:
    cluster.run(["mkdir", "-p", "/run/bare/sys/bus/pci/devices", "/run/bare/proc"], host="gpu1")
    cluster.run(["tee", "/run/bare/none.toml"], host="gpu1", input="# a node without a fabric expects none\n")
    check = aistation(
        cluster,
        "check",
        "--only",
        "fabric.*",
        "--root",
        "/run/bare",
        "--json",
        env={"AISTATION_CONFIG": "/run/bare/none.toml"},
    )
    assert check.returncode in (0, 3), check.stdout
    assert "fail" not in check.stdout


def test_a_broken_configuration_is_one_line_with_its_place_and_nothing_is_done(cluster: Cluster) -> None:
    path = "/run/broken.toml"
    cluster.run(["tee", path], host="gpu1", input="[gate]\nbudjet_s = 3\n")
    for command in (["check", "--act"], ["agent", "--once"]):
        result = aistation(cluster, *command, env={"AISTATION_CONFIG": path})
        assert result.returncode == 3, result.stdout
        assert f"{path}:2: unknown key 'budjet_s' in [gate] (did you mean 'budget_s'?)" in result.stderr
    runs_and_drains_nothing(cluster)


def test_a_missing_slurm_conf_says_so(cluster: Cluster) -> None:
    result = aistation(cluster, "status", host="ctl", env={"SLURM_CONF": "/nowhere/slurm.conf"})
    assert result.returncode == 3
    assert "/nowhere/slurm.conf" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unreadable_checkpoint_directory_fails_the_start_with_a_message(cluster: Cluster) -> None:
    cluster.run(["mkdir", "-p", "/shared/alice/locked/checkpoint-5"], user="alice")
    cluster.run(["chmod", "000", "/shared/alice/locked"], user="alice")
    job_id = cluster.submit(
        SHORT, "--nodes=1", "--ais-resume", "--ais-ckpt-dir=/shared/alice/locked", "--output=locked.out", user="alice"
    )
    cluster.wait_job(job_id, "FAILED", timeout=60)
    text = (cluster.dir / "shared/alice/locked.out").read_text()
    assert "/shared/alice/locked" in text
    assert "cannot be read" in text
    assert all(not cluster.node(n)["reason"] for n in cluster.names)
