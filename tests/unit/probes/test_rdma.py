"""RDMA sysfs beyond the plain port: RoCE tables, interfaces, counters, ethtool; and trees that nobody has seen."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest

from aistation_slurm.config import Expect, Fabric
from aistation_slurm.detectors import fabric
from aistation_slurm.probes.ethtool import captured_statistics, parse_statistics, read_statistics
from aistation_slurm.probes.rdma import PortSnapshot, read_ports
from aistation_slurm.probes.roce import GIDS_READ
from tests.cluster import faults
from tests.cluster.hardware import Hardware
from tests.unit.cases_health.cases import add_port, put

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


@pytest.fixture
def roce_node(tmp_path: Path) -> Hardware:
    hardware = Hardware(tmp_path / "aisim", "gpu7", gpus=0, hcas=3)
    hardware.folder.mkdir()
    hardware.roce = True
    hardware.make_healthy()
    return hardware


def test_a_roce_port_is_told_in_full(roce_node: Hardware) -> None:
    port = read_ports(roce_node.root)[1]
    assert (port.kind, port.state, port.pci, port.driver) == ("roce", "ACTIVE", "0000:2b:00.0", "mlx5_core")
    v2 = [g for g in port.gids if g.type == "RoCE v2"]
    assert [(g.index, g.address, g.ndev, g.ipv4, g.routable) for g in v2] == [
        (1, "fe80::a288:c2ff:fe2b:0", "ibp43s0", False, False),
        (3, "::ffff:a00:108", "ibp43s0", True, True),
    ]
    assert port.netdev is not None
    assert (port.netdev.name, port.netdev.mtu, port.netdev.admin_up, port.netdev.carrier_downs) == (
        "ibp43s0",
        9000,
        True,
        0,
    )
    assert msgspec.convert(msgspec.to_builtins(port), PortSnapshot) == port, "it crosses a process boundary whole"


@pytest.mark.parametrize(
    ("fault", "bad"),
    [
        (faults.roce_no_address("mlx5_1"), [("fabric.roce_gid", "warn", "mlx5_1/1")]),
        (faults.roce_mtu("mlx5_1", 1500), [("fabric.mtu", "warn", "mlx5_1/1")]),
        (faults.hca_firmware("mlx5_1", "28.39.1002"), [("fabric.firmware", "warn", "mlx5_1")]),
        (faults.ib_down("mlx5_1"), [("fabric.port_state", "fail", "mlx5_1/1")]),
        (faults.link_flaps("mlx5_1", 4), []),
    ],
    ids=lambda value: value.what if isinstance(value, faults.Fault) else "",
)
def test_faults_of_a_roce_node(roce_node: Hardware, fault: faults.Fault, bad: list[tuple[str, str, str]]) -> None:
    fault.apply(roce_node)
    found = fabric.findings(read_ports(roce_node.root), Expect(), 1e6)
    assert [(f.check, f.status.value, f.subject) for f in found if f.status.value != "ok"] == bad


def test_flaps_between_two_looks_of_a_roce_node(roce_node: Hardware) -> None:
    histories = fabric.counted(read_ports(roce_node.root), Expect(), {}, 1000.0, 1e6, Fabric())
    faults.link_flaps("mlx5_1", 4).apply(roce_node)
    ports = read_ports(roce_node.root)
    histories = fabric.counted(ports, Expect(), histories, 1030.0, 1e6, Fabric())
    found = fabric.findings(ports, Expect(), 1e6, histories)
    assert [(f.check, f.status.value, f.subject) for f in found if f.status.value != "ok"] == [
        ("fabric.flap", "warn", "mlx5_1/1")
    ]


def test_a_gid_table_with_holes_and_one_with_rubbish(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", link_layer="Ethernet")
    base = "sys/class/infiniband/mlx5_0/ports/1"
    for index in range(200):
        put(tmp_path, f"{base}/gids/{index}", f"{ZERO}\n")
    put(tmp_path, f"{base}/gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0001\n")
    put(tmp_path, f"{base}/gids/7", "0000:0000:0000:0000:0000:ffff:0a00:0002\n")
    put(tmp_path, f"{base}/gids/199", "0000:0000:0000:0000:0000:ffff:0a00:0003\n")
    assert [g.index for g in read_ports(tmp_path)[0].gids] == [2, 7]
    for index, text in enumerate(["", "x", "::1::", "\xff", "1" * 300]):
        (tmp_path / f"{base}/gids/{index}").write_bytes(text.encode("latin-1"))
    assert [g.index for g in read_ports(tmp_path)[0].gids] in ([], [7])
    assert GIDS_READ < 199


def test_the_interface_is_the_one_of_the_port_and_no_representor(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", link_layer="Ethernet", device="0000:3b:00.0")
    net = "sys/devices/pci0000:00/0000:3b:00.0/net"
    put(tmp_path, f"{net}/ens1f0np0/dev_port", "0\n")
    for name, phys in {"a_eth0": "pf0vf0", "a_eth1": "c1pf0vf1", "ens1f0np0": "p0"}.items():
        put(tmp_path, f"{net}/{name}/phys_port_name", f"{phys}\n")
        put(tmp_path, f"sys/class/net/{name}/mtu", "4200\n")
    netdev = read_ports(tmp_path)[0].netdev
    assert netdev is not None
    assert (netdev.name, netdev.mtu, netdev.carrier_downs, netdev.slaves) == ("ens1f0np0", 4200, None, ())


def test_a_bond_and_its_slaves(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_bond_0", link_layer="Ethernet")
    base = "sys/class/infiniband/mlx5_bond_0/ports/1"
    put(tmp_path, f"{base}/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n")
    put(tmp_path, f"{base}/gid_attrs/ndevs/0", "bond0\n")
    put(tmp_path, "sys/class/net/bond0/bonding/slaves", "e0 e1\n")
    for name, carrier in {"e0": 1, "e1": 0}.items():
        put(tmp_path, f"sys/class/net/{name}/carrier", f"{carrier}\n")
    netdev = read_ports(tmp_path)[0].netdev
    assert netdev is not None
    assert (netdev.slaves, netdev.slaves_down) == (("e0", "e1"), ("e1",))


def test_flow_control_settings_of_vendor_drivers(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", link_layer="Ethernet", device="0000:3b:00.0")
    put(tmp_path, "sys/devices/pci0000:00/0000:3b:00.0/net/eth0/mtu", "9000\n")
    for priority in range(8):
        put(tmp_path, f"sys/class/net/eth0/ecn/roce_np/enable/{priority}", f"{int(priority == 3)}\n")
    put(tmp_path, "sys/class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=106\n")
    expected = {"ecn roce_np": "priorities 3", "traffic class": "Global tclass=106"}
    assert read_ports(tmp_path)[0].settings == expected


def test_virtual_and_software_devices_are_known_as_such(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_9", virtual=True, counters={"link_downed": 3})
    put(tmp_path, "sys/class/infiniband/rxe0/parent", "eth0\n")
    put(tmp_path, "sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
    ports = {p.hca: p for p in read_ports(tmp_path)}
    assert (ports["mlx5_9"].virtual, ports["mlx5_9"].counters, ports["rxe0"].software) == (True, {}, True)
    assert fabric.judged(list(ports.values()), Expect()) == []


def test_a_copy_that_followed_links_still_tells_the_pci_address(tmp_path: Path) -> None:
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    put(tmp_path, "sys/class/infiniband/mlx5_0/device/uevent", "DRIVER=mlx5_core\nPCI_SLOT_NAME=0000:3b:00.0\n")
    assert read_ports(tmp_path)[0].pci == "0000:3b:00.0"


def test_counters_of_an_active_port_are_those_of_faults_and_else_of_use(tmp_path: Path) -> None:
    all_of_them = {"link_downed": 2, "symbol_error": 3, "port_rcv_data": 4, "port_xmit_wait": 5}
    add_port(tmp_path, "mlx5_0", counters=all_of_them)
    add_port(tmp_path, "mlx5_1", 1, counters=all_of_them, state="1: DOWN")
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/hw_counters/rx_icrc_encapsulated", "6\n")
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors", "N/A (no PMA)\n")
    active, down = read_ports(tmp_path)
    assert active.counters == {"link_downed": 2, "symbol_error": 3, "port_rcv_data": 4, "rx_icrc_encapsulated": 6}
    assert down.counters == {"link_downed": 2, "port_rcv_data": 4}


def test_a_fifo_in_a_captured_tree_does_not_hang(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0")
    state = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/state"
    state.unlink()
    os.mkfifo(state)
    assert read_ports(tmp_path)[0].state == ""


def test_ethtool_statistics(tmp_path: Path) -> None:
    text = "NIC statistics:\n     rx_packets: 10\n     tx_prio3_pause: 12\n     [0]: rx_ucast: 3\n     odd: -1\n     x: 1e9\n"
    put(tmp_path, "sos_commands/networking/ethtool_-S_eth0", text)
    expected = {"rx_packets": 10, "tx_prio3_pause": 12}
    assert {k: v for k, v in captured_statistics(tmp_path, "eth0").items() if "[" not in k} == expected
    assert captured_statistics(tmp_path, "eth1") == parse_statistics("") == {}
    # the loopback interface has none, and an interface that is not there is left out
    assert read_statistics(["lo", "nowhere0", "x" * 40], ".*") in ({}, {"lo": {}})


def test_trees_of_rubbish_never_raise(tmp_path: Path) -> None:
    dice = random.Random(4)
    texts = [
        "",
        "4: ACTIVE",
        "1: DOWN",
        "Ethernet",
        "InfiniBand",
        "99999999999999999999999999",
        "-1",
        "0x",
        "0xzz",
        ": :",
        "\n\n",
    ]
    texts += [
        "400 Gb/sec (4X NDR)",
        "1e999 Gb/sec",
        "\u0664\u0665",
        "a" * 5000,
        "4: ACTIVE\nx\ty",
        "fe80::1",
        "::ffff:1.2.3.4",
        "RoCE v2",
    ]
    files = [
        "state",
        "phys_state",
        "rate",
        "link_layer",
        "lid",
        "gids/0",
        "gids/1",
        "gid_attrs/types/0",
        "gid_attrs/ndevs/0",
    ]
    files += ["counters/link_downed", "counters/symbol_error", "hw_counters/rx_pkts"]
    for number in range(60):
        root = tmp_path / str(number)
        for name in ("mlx5_0", "\u0664", "x_9_9"):
            for file in files:
                if dice.random() < 0.8:
                    put(root, f"sys/class/infiniband/{name}/ports/1/{file}", dice.choice(texts))
        for file in ("mtu", "flags", "carrier_up_count", "carrier_down_count", "bonding/slaves"):
            put(root, f"sys/class/net/RoCE v2/{file}", dice.choice(texts))
        ports = read_ports(root)
        histories = fabric.counted(ports, Expect(), {}, 1.0, 1e6, Fabric())
        found = fabric.findings(ports, Expect(), 1e6, histories)
        assert all("\n" not in f.evidence for f in found), [f.evidence for f in found]


def test_a_card_that_fell_off_the_bus_reads_all_ones(tmp_path: Path) -> None:
    hardware = Hardware(tmp_path / "aisim", "gpu1", gpus=0, hcas=2)
    hardware.folder.mkdir()
    hardware.make_healthy()
    hardware.fall_off_bus(hardware.hcas[1].pci)
    assert [p.alive for p in read_ports(hardware.root)] == [True, False]
