"""AIStation as the test cluster puts it in force: every hook set, every daemon running, restarted with its host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.cluster.suite import HOOKS, INSTALLED

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, mode="observe", config={"node": {"poll_s": 1.0}}) as up:
        yield up


def processes(cluster: Cluster, host: str) -> str:
    return cluster.run(["ps", "-e", "-o", "user=,args="], host=host).stdout


def test_nothing_is_left_out(cluster: Cluster) -> None:
    assert cluster.notes == []
    config = cluster.run(["scontrol", "show", "config"]).stdout
    for key, path in HOOKS.items():
        assert f"{INSTALLED}/{path}" in [
            line.rpartition(" ")[2] for line in config.splitlines() if line.startswith(key)
        ]
    assert "--ais-resume" in cluster.run(["sbatch", "--help"], user="alice").stdout


def test_configuration_reaches_every_host(cluster: Cluster) -> None:
    for host in ["ctl", *cluster.names]:
        toml = cluster.run(["cat", "/etc/aistation/aistation.toml"], user="bob", host=host).stdout
        assert toml.startswith('mode = "observe"\n')
        assert "poll_s = 1.0\n" in toml


def test_daemons_run_as_they_should(cluster: Cluster) -> None:
    assert "root     /opt/aistation/.venv/bin/python -m aistation_slurm agent" in processes(cluster, "gpu1")
    assert "slurm    /opt/aistation/.venv/bin/python -m aistation_slurm watchdog run" in processes(cluster, "ctl")
    cluster.kill_watchdog()
    assert "watchdog" not in processes(cluster, "ctl")
    cluster.start_watchdog()
    cluster.wait_for(lambda: "watchdog run" in processes(cluster, "ctl"), 30, "the watchdog")


def test_agent_comes_back_with_its_node_unless_it_was_stopped(cluster: Cluster) -> None:
    cluster.stop_agent("gpu2")
    for name in cluster.names:
        cluster.kill_node(name)
    cluster.reset()
    cluster.wait_for(lambda: "aistation_slurm agent" in processes(cluster, "gpu1"), 30, "gpu1's agent")
    assert "agent" not in processes(cluster, "gpu2")
    cluster.start_agent("gpu2")
    cluster.wait_for(lambda: "aistation_slurm agent" in processes(cluster, "gpu2"), 30, "gpu2's agent")


def test_the_product_is_found_where_it_is_installed_not_where_it_was_built(cluster: Cluster) -> None:
    where = "import aistation_slurm; print(aistation_slurm.__file__)"
    argv = ["/opt/aistation/.venv/bin/python", "-c", where]
    assert cluster.run(argv, user="alice", host="gpu1").stdout == "/opt/aistation/aistation_slurm/__init__.py\n"
    assert cluster.run(["/opt/aistation/.venv/bin/aistation", "--version"], user="alice").stdout.startswith("aistation")
