"""RoCE: GIDs, MTU, flow control settings; firmware; the ports that are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from aistation_slurm.config import Expect
from aistation_slurm.detectors import fabric
from aistation_slurm.detectors.fabric.mtu import rdma_mtu
from aistation_slurm.findings import Scope, Status
from aistation_slurm.probes.rdma import PortSnapshot
from aistation_slurm.probes.roce import Gid, Netdev
from tests.unit.detectors.test_fabric import DOWN, LONG_UP, port

LOCAL = (Gid(0, "fe80::1", "IB/RoCE v1", "eth0"), Gid(1, "fe80::1", "RoCE v2", "eth0"))


def mapped(index: int, address: str = "10.0.0.1") -> tuple[Gid, Gid]:
    return (
        Gid(index - 1, f"::ffff:{address}", "IB/RoCE v1", "eth0"),
        Gid(index, f"::ffff:{address}", "RoCE v2", "eth0"),
    )


def roce(number: int, **changes: Any) -> PortSnapshot:
    facts: dict[str, Any] = {"link_layer": "Ethernet", "lid": 0, "gids": (*LOCAL, *mapped(3, f"10.0.{number}.1"))}
    facts["netdev"] = Netdev(f"eth{number}", mtu=9000, admin_up=True, carrier_ups=1)
    return port(f"mlx5_{number}", **{**facts, **changes})


def bad(check: str, *ports: PortSnapshot, **want: Any) -> list[tuple[Status, str]]:
    found = fabric.findings(ports, Expect(**want), LONG_UP)
    assert all(f.scope is Scope.SHARED for f in found)
    return [(f.status, f.subject) for f in found if f.status is not Status.OK and f.check == check]


FOUR = [roce(i) for i in range(4)]


def test_a_healthy_roce_node() -> None:
    found = fabric.findings(FOUR, Expect(), LONG_UP)
    assert {f.status for f in found} == {Status.OK}
    checks = {f.check for f in found}
    assert checks == {"fabric.port_state", "fabric.roce_gid", "fabric.mtu", "fabric.firmware"} - {"fabric.firmware"}


def test_a_lost_address() -> None:
    assert bad("fabric.roce_gid", *FOUR[:3], roce(3, gids=LOCAL)) == [(Status.WARN, "mlx5_3/1")]
    only_v1 = (*LOCAL, Gid(2, "::ffff:10.0.3.1", "IB/RoCE v1", "eth3"))
    assert bad("fabric.roce_gid", *FOUR[:3], roce(3, gids=only_v1)) == [(Status.WARN, "mlx5_3/1")]


def test_another_index_than_most() -> None:
    assert bad("fabric.roce_gid", *FOUR[:3], roce(3, gids=(*LOCAL, *mapped(5)))) == [(Status.WARN, "mlx5_3/1")]
    both = (*LOCAL, *mapped(3), *mapped(5, "192.168.0.9"))
    assert bad("fabric.roce_gid", *FOUR[:3], roce(3, gids=both)) == []
    halves = [*FOUR[:1], roce(3, gids=(*LOCAL, *mapped(5)))]
    assert bad("fabric.roce_gid", *halves) == [], "no majority says nothing"
    assert bad("fabric.roce_gid", *halves, roce_gid_index=3) == [(Status.WARN, "mlx5_3/1")]


def test_front_end_cards_are_compared_with_their_like() -> None:
    front = [roce(i, board_id="MT_2", gids=(*LOCAL, *mapped(5))) for i in (8, 9)]
    assert bad("fabric.roce_gid", *FOUR, *front) == []
    unused = [roce(i, board_id="MT_2", gids=LOCAL) for i in (8, 9)]
    assert bad("fabric.roce_gid", *FOUR, *unused) == []
    assert bad("fabric.roce_gid", *unused) == [(Status.WARN, f"mlx5_{i}/1") for i in (8, 9)]
    assert bad("fabric.roce_gid", *FOUR, front[0], unused[1]) == [(Status.WARN, "mlx5_9/1")]


def test_global_ipv6_addresses_are_addresses() -> None:
    gids = (*LOCAL, Gid(3, "fd00::1", "RoCE v2", "eth0"))
    assert bad("fabric.roce_gid", roce(0, gids=gids)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"gids": ()},
        {"gids": (Gid(0, "fe80::1"),)},  # types cannot be read: nothing can be told
        {"node_type": "4: RNIC", "gids": LOCAL},
        {"link_layer": "Unspecified", "gids": LOCAL, "driver": "efa"},
        {"state": "DOWN", "phys_state": "Disabled", "gids": LOCAL},
    ],
    ids=["no table", "no types", "iWARP", "EFA", "down"],
)
def test_gids_that_are_not_judged(changes: dict[str, Any]) -> None:
    found = fabric.findings([roce(0, **changes)], Expect(), LONG_UP)
    assert [f for f in found if f.check == "fabric.roce_gid"] == []


def test_ethernet_beside_infiniband_is_not_what_jobs_use() -> None:
    bond = roce(9, gids=LOCAL, netdev=Netdev("bond0", mtu=1500, slaves=("e0", "e1"), slaves_down=("e1",)))
    assert {f.status for f in fabric.findings([port(), port("mlx5_1"), bond], Expect(), LONG_UP)} == {Status.OK}


def test_mtu() -> None:
    low = roce(3, netdev=Netdev("eth3", mtu=1500))
    assert bad("fabric.mtu", *FOUR[:3], low) == [(Status.WARN, "mlx5_3/1")]
    assert bad("fabric.mtu", FOUR[0], low) == []
    assert bad("fabric.mtu", low, mtu=4200) == [(Status.WARN, "mlx5_3/1")]
    assert bad("fabric.mtu", *FOUR, mtu=4200) == []
    other = roce(3, board_id="MT_2", netdev=Netdev("eth3", mtu=1500))
    assert bad("fabric.mtu", *FOUR[:3], other) == [], "a card of another kind"
    assert [rdma_mtu(n) for n in (1500, 9000, 4200, 4096, 2200, 576, 300)] == [1024, 4096, 4096, 2048, 2048, 256, 256]


def test_a_bond_that_lost_a_slave() -> None:
    bond = roce(0, netdev=Netdev("bond0", mtu=9000, slaves=("e0", "e1"), slaves_down=("e1",)))
    assert bad("fabric.port_state", bond) == [(Status.WARN, "mlx5_0/1")]


def test_flow_control_settings_that_differ() -> None:
    on, off = {"ecn roce_np": "priorities 3", "traffic class": "Global tclass=106"}, {"ecn roce_np": "off"}
    ports = [roce(i, settings=on) for i in range(3)]
    assert bad("fabric.pfc", *ports, roce(3, settings=off)) == [(Status.WARN, "mlx5_3/1")]
    assert bad("fabric.pfc", *ports, roce(3)) == [], "a driver that does not show them"
    assert bad("fabric.pfc", ports[0], roce(3, settings=off)) == []


def test_firmware() -> None:
    cards = [port(f"mlx5_{i}", firmware="28.41.1000") for i in range(4)]
    odd = port("mlx5_9", firmware="28.39.1002")
    assert bad("fabric.firmware", *cards) == []
    assert bad("fabric.firmware", *cards, odd) == [(Status.WARN, "mlx5_9")]
    assert bad("fabric.firmware", cards[0], odd) == [(Status.WARN, "HCAs")]
    assert bad("fabric.firmware", *cards, port("mlx5_9", firmware="1", board_id="MT_2")) == []
    ports = [port(firmware="1"), PortSnapshot(**{**vars(port(firmware="1")), "port": 2})]
    assert bad("fabric.firmware", *ports) == [], "two ports of one card"


UNPLUGGED = {"link_layer": "Ethernet", "lid": 0, "driver": "irdma", "board_id": "", **DOWN}


@pytest.mark.parametrize(
    ("changes", "left_alone"),
    [
        ({"counters": {"ip4InOctets": 0, "ip4OutOctets": 0}}, True),
        ({"counters": {"ip4InOctets": 7}}, False),
        ({"netdev": Netdev("eno1", carrier_ups=0)}, True),
        ({"netdev": Netdev("eno1", carrier_ups=2)}, False),
        ({"netdev": Netdev("eno1", admin_up=False, carrier_ups=2)}, True),
        ({"netdev": Netdev("eno1", admin_up=False), "counters": {"ip4InOctets": 7}}, False),
        ({}, True),
    ],
)
def test_a_servers_own_network_chip_that_can_do_rdma(changes: dict[str, Any], left_alone: bool) -> None:
    chip = port("irdma0", **{**UNPLUGGED, **changes})
    assert bad("fabric.port_state", roce(0, driver="mlx5_core"), chip) == (
        [] if left_alone else [(Status.FAIL, "irdma0/1")]
    )


def test_a_port_without_any_sign_is_judged_with_its_like() -> None:
    down = port("mlx5_1", **{**UNPLUGGED, "driver": "mlx5_core", "board_id": "MT_1"})
    assert bad("fabric.port_state", roce(0, driver="mlx5_core"), down) == [(Status.FAIL, "mlx5_1/1")]


@pytest.mark.parametrize("pattern", ["mlx5_3", "mlx5_3/1", "0000:5e:00.?", "MT_9", "eth3"])
def test_ports_are_ignored_by_any_of_their_names(pattern: str) -> None:
    down = {"state": "DOWN", "phys_state": "Disabled", "netdev": Netdev("eth3", carrier_ups=4)}
    sick = roce(3, pci="0000:5e:00.0", board_id="MT_9", **down)
    assert bad("fabric.port_state", *FOUR[:3], sick) == [(Status.FAIL, "mlx5_3/1")]
    assert bad("fabric.port_state", *FOUR[:3], sick, ignore_hcas=(pattern,)) == []


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({}, "ib"),
        ({"link_layer": "Ethernet"}, "roce"),
        ({"link_layer": "Unspecified"}, "efa"),
        ({"link_layer": "Ethernet", "node_type": "4: RNIC"}, "iwarp"),
        ({"link_layer": "Loopback"}, "other"),
    ],
)
def test_kinds(facts: dict[str, Any], kind: str) -> None:
    assert port(**facts).kind == kind
