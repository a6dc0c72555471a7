"""Whatever ends a cluster, nothing of it is left: no process, namespace, mount, link or line in /etc/hosts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from tests.cluster import Cluster, ClusterError, nvml_block
from tests.cluster.fleet import remove_stale

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).resolve().parents[2]
KINDS = ("pid", "net", "mnt", "uts", "ipc")

# Says its folder and its hosts' namespaces, then does what the test wants.
OWNER = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would we
from tests.cluster import Cluster
with Cluster(nodes=1, aistation=False) as c:
    c.run(["sh", "-c", "setsid sleep 31557600 >/dev/null 2>&1 &"], user="alice", host="gpu1")
    for name in ("ctl", "gpu1"):
        print(*(os.readlink(f"/proc/{c.host(name).pid}/ns/{kind}") for kind in sys.argv[1].split(",")))
    print(c.dir, flush=True)
    {then}
"""


class Owner:
    """A Python process that holds a cluster."""

    def __init__(self, then: str) -> None:
        argv = [sys.executable, "-c", OWNER.replace("{then}", then), ",".join(KINDS)]
        self.process = subprocess.Popen(
            argv, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().strip() for _ in range(3)]
        assert lines[2].startswith("/tmp/ais-cluster-"), self.process.communicate()[1]
        self.namespaces = set(" ".join(lines[:2]).split())
        self.dir = Path(lines[2])

    def end(self, sig: Optional[int] = None, group: bool = False) -> str:
        """Wait for the end, after a signal where one is given; returns stderr."""
        if sig is not None:
            (os.killpg if group else os.kill)(self.process.pid, sig)
        return self.process.communicate(timeout=60)[1]


def members(namespaces: set[str]) -> list[str]:
    """Processes that are in one of these namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if any(os.readlink(entry / "ns" / kind) in namespaces for kind in KINDS):
                    found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
            except OSError:
                continue  # it has ended meanwhile
    return found


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 90
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def outer_world() -> dict[str, Any]:
    """What a cluster must not change. Mounts and links of other people may come and go: only ours are looked at."""
    netns = Path("/run/netns")
    return {
        "hosts": Path("/etc/hosts").read_text(),
        "netns": sorted(p.name for p in netns.iterdir()) if netns.exists() else [],
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "ais-cluster" in line],
        "links": sorted(p.name for p in Path("/sys/class/net").iterdir()),
        "cgroups": sorted(map(str, Path("/sys/fs/cgroup").glob("*/*slurm*"))),
    }


@pytest.fixture
def untouched() -> Iterator[None]:
    before = outer_world()
    yield
    assert outer_world() == before


@pytest.mark.usefixtures("untouched")
def test_sigkill_of_the_owner() -> None:
    owner = Owner("time.sleep(600)")
    assert len(members(owner.namespaces)) >= 5  # holders, munged, slurmctld, slurmd, alice's sleep
    owner.end(signal.SIGKILL)
    assert eventually(lambda: not members(owner.namespaces)), members(owner.namespaces)
    assert owner.dir.exists()
    remove_stale()
    assert not owner.dir.exists()


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_as_from_a_terminal(sig: signal.Signals) -> None:
    owner = Owner("time.sleep(600)")
    owner.end(sig, group=True)
    assert owner.process.returncode != 0
    assert eventually(lambda: not members(owner.namespaces)), members(owner.namespaces)
    if sig == signal.SIGINT:  # SIGTERM ends Python without a word, so the folder is for the next start to remove
        assert not owner.dir.exists()
    remove_stale()
    assert not owner.dir.exists()


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("then", ["raise RuntimeError('in the body')", "sys.exit(3)", "os._exit(4)", "c.stop()"])
def test_every_way_out_of_the_body(then: str) -> None:
    owner = Owner(then)
    words = owner.end()
    assert eventually(lambda: not members(owner.namespaces)), members(owner.namespaces)
    assert ("in the body" in words) == ("raise" in then)
    assert owner.dir.exists() == ("_exit" in then)
    remove_stale()
    assert not owner.dir.exists()


@pytest.mark.usefixtures("untouched")
def test_failed_start() -> None:
    cluster = Cluster(nodes=1, aistation=False, conf_extra="NoSuchKey=1")
    with pytest.raises(ClusterError, match=r"(?s)slurmctld ended.*NoSuchKey"):
        cluster.start()
    with pytest.raises(ClusterError, match="not running"):
        _ = cluster.dir
    cluster.stop()  # safe to repeat


def test_folder_of_a_living_cluster_is_not_stale() -> None:
    with Cluster(nodes=1, aistation=False) as cluster:
        remove_stale()
        assert (cluster.dir / "owner").exists()


def test_folder_can_be_kept_for_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_KEEP_CLUSTER", "1")
    with Cluster(nodes=1, aistation=False) as cluster:
        folder = cluster.dir
    try:
        remove_stale()
        assert "Running as primary" in (folder / "host/ctl/var/log/slurm/slurmctld.log").read_text()
    finally:
        shutil.rmtree(folder)


def test_node_with_a_call_in_state_d_is_gone_at_once() -> None:
    call = 'import ctypes; ctypes.CDLL("/run/aisim/libnvidia-ml.so.1").nvmlInit_v2()'
    with Cluster(nodes=1, aistation=False) as cluster:
        cluster.inject("gpu1", nvml_block("dstate"))
        blocked = cluster.popen(["python3", "-c", call], host="gpu1")

        def in_state_d() -> bool:
            return "D" in cluster.run(["ps", "-e", "-o", "state="], host="gpu1").stdout.split()

        cluster.wait_for(in_state_d, 30, "the call to block")
        pid = cluster.host("gpu1").pid
        inside = {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS}
        began = time.monotonic()
        cluster.kill_node("gpu1")
        assert time.monotonic() - began < 10
        assert eventually(lambda: not members(inside)), members(inside)
        assert blocked.wait(10) != 0


def test_two_clusters_do_not_meet() -> None:
    with Cluster(nodes=1, aistation=False) as one, Cluster(nodes=2, aistation=False) as two:
        assert one.dir != two.dir
        job = one.submit("sleep 300", "--gpus-per-node=8")
        one.wait_job(job, "RUNNING")
        assert two.run(["squeue", "-h"]).stdout == ""
        assert (
            len(one.run(["sinfo", "-hN"]).stdout.split("\n")),
            len(two.run(["sinfo", "-hN"]).stdout.split("\n")),
        ) == (2, 3)
        credential = one.run(["munge", "-n"]).stdout
        assert one.run(["unmunge"], host="gpu1", input=credential).returncode == 0
        refused = two.run(["unmunge"], input=credential, check=False)
        assert "Invalid credential" in refused.stdout + refused.stderr
        one.stop()
        assert two.node("gpu2")["state"] == "IDLE"
        assert two.run(["hostname"], host="gpu2").stdout == "gpu2\n"
