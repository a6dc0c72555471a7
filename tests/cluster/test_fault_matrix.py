"""Every kind of fault that the test cluster can show, on a real Slurm: who is drained, for what, and who is not.

Many at a time, each on a node of its own, beside a node that stays healthy.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster import Cluster, faults
from tests.cluster.faults import Fault

pytestmark = pytest.mark.cluster

CONFIG = {
    "node": {"poll_s": 2.0},
    "probe": {"hang_confirm_s": 5.0},
    # so many faults on so few nodes would open the breaker; what nodes publish is settled soon
    "breaker": {"least": 1000, "look_s": 1.0, "spread_s": 1.0, "settle_s": 4.0},
}


@dataclass(frozen=True)
class Kind:
    """drain: what the node's reason begins with, "" for none. finding: (check, status) that `aistation check` then shows."""

    fault: Fault
    drain: str = ""
    finding: tuple[str, str] = ("", "")


KINDS = {
    "GPU lost": Kind(faults.gpu_lost(3), "ais:gpu.(lost|xid) GPU3 ", ("gpu.lost", "fail")),
    "GPU missing": Kind(faults.gpu_missing(3), "ais:gpu.count GPUs 7 found", ("gpu.count", "fail")),
    "uncorrectable ECC": Kind(
        faults.ecc_uncorrectable(4), "ais:gpu.(xid|ecc_uncorrectable) GPU4 ", ("gpu.ecc_uncorrectable", "fail")
    ),
    "row remapping failed": Kind(
        faults.row_remap(2, failed=True), "ais:gpu.(xid|row_remap|recovery) GPU2 ", ("gpu.row_remap", "fail")
    ),
    "NVLink down": Kind(faults.nvlink_down(5, 3), "ais:gpu.(xid|nvlink) GPU5 ", ("gpu.nvlink", "fail")),
    "narrow PCIe link": Kind(faults.pcie_link(2, 8), "ais:gpu.pcie GPU2 .* x8", ("gpu.pcie", "fail")),
    "blocked driver": Kind(faults.nvml_block("dstate"), "ais:gpu.driver_hang "),
    "fatal Xid": Kind(faults.xid(6, 95), "ais:gpu.xid GPU6 .* Xid 95", ("gpu.xid", "fail")),
    "port down": Kind(faults.ib_down("mlx5_2"), "ais:fabric.port_state mlx5_2/1 ", ("fabric.port_state", "fail")),
    "slow port": Kind(faults.ib_rate("mlx5_1", 100), "ais:fabric.rate mlx5_1/1 ", ("fabric.rate", "fail")),
    "retired pages": Kind(
        faults.gpu_facts(1, retired__dbe=64), "ais:gpu.retired_pages GPU1 ", ("gpu.retired_pages", "fail")
    ),
    "the driver asks for a reset": Kind(
        faults.gpu_facts(1, recovery_action=1), "ais:gpu.recovery GPU1 ", ("gpu.recovery", "fail")
    ),
    "host memory": Kind(
        faults.host_file("sys/devices/system/edac/mc/mc0/ue_count", "3\n"),
        "ais:host.memory_errors mc0 ",
        ("host.memory_errors", "fail"),
    ),
    "throttled": Kind(faults.throttle(1, "hw_thermal", temperature=85), finding=("gpu.throttle", "warn")),
    "row remapping pending": Kind(faults.row_remap(1, pending=True), finding=("gpu.row_remap", "warn")),
    "Xid of an application": Kind(faults.xid(1, 13, pid=7)),
    "unknown Xid": Kind(faults.xid(1, 999), finding=("gpu.xid", "warn")),
    "other firmware": Kind(faults.hca_firmware("mlx5_4", "20.1.1"), finding=("fabric.firmware", "warn")),
    "little memory": Kind(faults.memory_low(1.0), finding=("host.memory", "warn")),
    "other VBIOS": Kind(faults.gpu_text(2, "vbios", "90.00"), finding=("gpu.versions", "warn")),
    "a process on a GPU": Kind(faults.gpu_process(2, 1)),
    "driver not loaded": Kind(faults.nvml_error(9), finding=("gpu.count", "unknown")),
    # of a node that has just booted, links may still come up
    "links that come up": Kind(faults.link_flaps("mlx5_3", 5)),
    "errors while links come up": Kind(faults.ib_errors("mlx5_3", "symbol_error", 1000)),
    "a cable in the log": Kind(faults.kernel_log("mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged")),
}  # fmt: skip
OF_ROCE = ("roce_mtu", "roce_no_address")
"""Kinds for ports that this cluster does not have; tests/unit/detectors and tests/unit/cases_health have them."""
AT_ONCE = 7


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=AT_ONCE + 1, aistation=True, config=CONFIG) as up:
        yield up


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[None]:
    """Every test starts with healthy, undrained nodes."""
    yield
    cluster.reset()


def test_no_kind_is_left_out() -> None:
    known = {
        name for name, made in inspect.getmembers(faults, inspect.isfunction) if made.__module__ == faults.__name__
    }
    tried = set(re.findall(r"faults\.(\w+)\(", inspect.getsource(inspect.getmodule(Kind) or faults)))
    assert {name for name in known if not name.startswith("_")} == (tried & known) | set(OF_ROCE)


def looks(cluster: Cluster, node: str) -> float:
    """When the node's agent last wrote its state (by its own clock); 0 where it has not."""
    words = cluster.run(["cat", "/run/aistation/state"], host=node, check=False).stdout.split(None, 4)
    return float(words[3]) if len(words) > 4 else 0.0


def found(cluster: Cluster, node: str) -> set[tuple[str, str]]:
    """(check, status) of what `aistation check` says there."""
    shown = cluster.run(["aistation", "check", "--json"], host=node, check=False).stdout
    return {(finding["check"], finding["status"]) for finding in json.loads(shown)["findings"]}


@pytest.mark.parametrize("first", range(0, len(KINDS), AT_ONCE), ids=lambda first: f"from {list(KINDS)[first]}")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("clean")
def test_each_fault_has_its_own_consequence(cluster: Cluster, first: int) -> None:
    kinds = list(KINDS.items())[first : first + AT_ONCE]
    nodes = {name: (kind, node) for (name, kind), node in zip(kinds, cluster.names)}
    for node in cluster.names:
        cluster.wait_for(lambda node=node: looks(cluster, node), 90, f"the first look of {node}")  # type: ignore[misc]
    began = {node: looks(cluster, node) for node in cluster.names}
    for kind, node in nodes.values():
        cluster.inject(node, kind.fault)
    for name, (kind, node) in nodes.items():
        if kind.drain:
            reason = cluster.wait_for(
                lambda node=node: "DRAIN" in cluster.node(node)["flags"] and cluster.node(node)["reason"],  # type: ignore[misc]
                90,
                f"{node} to be drained: {name}",
            )
            assert re.match(kind.drain, str(reason)), (name, reason)
        if kind.finding[0]:
            cluster.wait_for(
                lambda kind=kind, node=node: kind.finding in found(cluster, node),  # type: ignore[misc]
                90,
                f"{kind.finding} on {node}: {name}",
            )
    for node in [cluster.names[-1], *(node for kind, node in nodes.values() if not kind.drain)]:
        cluster.wait_for(lambda node=node: looks(cluster, node) > began[node] + 8, 90, f"{node} to look again")  # type: ignore[misc]
    time.sleep(6)  # longer than what is published waits for others
    blamed = {node: cluster.node(node)["reason"] for node in cluster.names if "DRAIN" in cluster.node(node)["flags"]}
    assert set(blamed) == {node for kind, node in nodes.values() if kind.drain}, blamed


@pytest.mark.usefixtures("clean")
def test_checks_while_the_controller_is_away_drain_nobody_and_do_not_hang(cluster: Cluster) -> None:
    sick, well = cluster.names[0], cluster.names[1]
    cluster.stop_slurmctld()
    try:
        cluster.inject(sick, faults.xid(6, 95))
        for node, code in ((sick, 1), (well, 0)):
            done = cluster.run(["aistation", "check", "--act", "--json"], host=node, check=False, timeout=60)
            assert done.returncode == code, done.stdout + done.stderr
    finally:
        cluster.start_slurmctld()
    cluster.wait_for(lambda: cluster.node(sick)["reason"].startswith("ais:gpu.xid GPU6 "), 90, "the drain after all")
    assert all("DRAIN" not in cluster.node(node)["flags"] for node in cluster.names if node != sick)
