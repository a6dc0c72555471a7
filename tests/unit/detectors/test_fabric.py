"""Ports, rates and device files: what no public case covers."""

from __future__ import annotations

from typing import Any

import pytest

from aistation_slurm.config import Expect
from aistation_slurm.detectors import ALL, fabric
from aistation_slurm.findings import Scope, Status
from aistation_slurm.probes.rdma import PortSnapshot

LONG_UP = 1e6


def port(hca: str = "mlx5_0", **changes: Any) -> PortSnapshot:
    facts: dict[str, Any] = {"state": "ACTIVE", "phys_state": "LinkUp", "rate_gbps": 400.0, "lanes": 4, "speed": "NDR"}
    facts.update(link_layer="InfiniBand", lid=7, board_id="MT_1")
    return PortSnapshot(hca, 1, **{**facts, **changes})


def bad(*ports: PortSnapshot, uptime_s: float = LONG_UP, **want: Any) -> list[tuple[str, Status, str]]:
    found = fabric.findings(ports, Expect(**want), uptime_s)
    return [(f.check, f.status, f.subject) for f in found if f.status is not Status.OK]


DOWN = {"state": "DOWN", "phys_state": "Polling", "rate_gbps": 10.0}
UNUSED = {**DOWN, "lid": 0, "counters": {"port_rcv_data": 0, "link_downed": 0}}


def test_no_fabric_finding_drains_by_itself() -> None:
    found = fabric.findings([port(**DOWN), port("mlx5_1", rate_gbps=100.0)], Expect(rate_gbps=400), LONG_UP)
    assert [f.status for f in found].count(Status.FAIL) == 2
    assert all(f.scope is Scope.SHARED and not f.drains for f in found)


@pytest.mark.parametrize(
    "sign",
    [{"lid": 868}, {"counters": {"port_rcv_data": 12}}, {"counters": {"link_downed": 1}}, {"phys_state": "LinkUp"}],
    ids=["lid", "traffic", "went down", "link"],
)
def test_any_sign_of_use_makes_a_down_port_a_fault(sign: dict[str, Any]) -> None:
    assert bad(port(**{**UNUSED, **sign})) == [("fabric.port_state", Status.FAIL, "mlx5_0/1")]
    assert bad(port(**UNUSED)) == []


def test_a_multicast_lid_is_no_sign_of_use() -> None:
    assert bad(port(**{**UNUSED, "lid": 0xFFFF})) == []


def test_expected_ports_are_looked_for_among_the_used_ones_first() -> None:
    used, spare = port("mlx5_1", **DOWN), port("mlx5_2", **UNUSED)
    assert bad(port(), used, spare, hca_ports=2) == [("fabric.port_state", Status.FAIL, "mlx5_1/1")]
    assert bad(port(), spare, hca_ports=2) == [("fabric.port_state", Status.FAIL, "mlx5_2/1")]
    assert bad(port(), used, spare, hca_ports=1) == []
    assert ("fabric.port_state", Status.FAIL, "HCAs") in bad(port(), hca_ports=2)
    assert bad(hca_ports=1) == [("fabric.port_state", Status.FAIL, "HCAs")]
    assert bad(hca_ports=0) == []


def test_on_a_roce_node_the_expected_ports_are_ethernet() -> None:
    roce = {"link_layer": "Ethernet", "lid": 0}
    assert bad(port(**roce), hca_ports=1, rate_gbps=800.0) == []
    down = port("mlx5_1", **{**roce, **DOWN, "lid": 0})
    assert bad(port(**roce), down, hca_ports=2) == [("fabric.port_state", Status.FAIL, "mlx5_1/1")]


@pytest.mark.parametrize("layer", ["Unspecified", "Ethernet"])
def test_other_link_layers_are_judged_by_state_only(layer: str) -> None:
    ports = [port(rate_gbps=100.0, link_layer=layer), port("mlx5_1"), port("mlx5_2")]
    assert bad(*ports, rate_gbps=400.0) == []


def test_ignored_devices() -> None:
    assert bad(port("mlx5_4", **DOWN), port("mlx5_5"), ignore_hcas=("mlx5_4", "ib*")) == []


@pytest.mark.parametrize("state", ["INIT", "ARMED", "INITIALIZING"])
def test_settling_after_boot(state: str) -> None:
    assert bad(port(state=state), uptime_s=60)[0][1] is Status.WARN
    assert bad(port(state=state), uptime_s=600)[0][1] is Status.FAIL


def test_cards_of_another_kind_have_their_own_rate() -> None:
    storage = [port(f"mlx5_{i}", board_id="MT_2", rate_gbps=200.0) for i in (8, 9)]
    assert bad(port(), port("mlx5_1"), *storage) == []


def test_what_cannot_be_read_is_unknown() -> None:
    assert bad(port(state="", phys_state=""))[0][:2] == ("fabric.port_state", Status.UNKNOWN)
    assert bad(port(rate_gbps=None))[0][:2] == ("fabric.rate", Status.UNKNOWN)


def test_a_link_in_error_recovery_is_a_warning() -> None:
    assert bad(port(phys_state="LinkErrorRecovery"))[0][1] is Status.WARN


def test_every_finding_has_a_listed_check() -> None:
    seen = {f.check for f in fabric.findings([port(), port("x", verbs=False)], Expect(hca_ports=9), LONG_UP)}
    assert seen <= set(ALL)
    assert seen >= {"fabric.port_state", "fabric.rate", "fabric.device_files"}


def test_several_ports_at_one_lower_speed_with_all_lanes_are_rather_the_storage_network() -> None:
    compute = [port(f"mlx5_{i}") for i in range(8)]
    storage = [port(f"mlx5_{i}", rate_gbps=200.0, lanes=4, speed="HDR") for i in (8, 9)]
    assert bad(*compute, *storage) == [("fabric.rate", Status.WARN, f"mlx5_{i}/1") for i in (8, 9)]
    assert bad(*compute, storage[0]) == [("fabric.rate", Status.FAIL, "mlx5_8/1")]
    narrow = [port(f"mlx5_{i}", rate_gbps=200.0, lanes=2) for i in (8, 9)]
    assert bad(*compute, *narrow) == [("fabric.rate", Status.FAIL, f"mlx5_{i}/1") for i in (8, 9)]
    assert bad(*compute, *storage, rate_gbps=400.0) == [("fabric.rate", Status.FAIL, f"mlx5_{i}/1") for i in (8, 9)]
    assert bad(*compute, *storage, ignore_hcas=("mlx5_[89]",)) == []


@pytest.mark.parametrize("state", ["", "ACTIVE", "DOWN"])
def test_a_card_that_fell_off_the_bus(state: str) -> None:
    assert bad(port(state=state, alive=False)) == [("fabric.port_state", Status.FAIL, "mlx5_0/1")]
