"""The fabric's part of a look: what is remembered from look to look on the node itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aistation_slurm.config import Config, Expect, Fabric, Node, Probe
from aistation_slurm.detectors.fabric.history import CounterHistory
from aistation_slurm.node import fabric_look, fabric_memory
from aistation_slurm.node.fabric_memory import CAPTURES, LIVE, Memory
from aistation_slurm.probes.rdma import PortSnapshot
from aistation_slurm.probes.roce import Netdev
from tests.cluster import faults
from tests.cluster.hardware import Hardware


class World:
    def __init__(self, folder: Path) -> None:
        self.hardware = Hardware(folder / "aisim", "gpu1", gpus=0, hcas=2)
        self.hardware.folder.mkdir()
        self.hardware.make_healthy()
        self.run = folder / "run"
        self.config = Config(probe=Probe(root=str(self.hardware.root)), node=Node(state_dir=str(self.run)))

    def bad(self, boot: str = "boot-1") -> list[tuple[str, str, str]]:
        _, found = fabric_look.look(self.config, boot)
        return [(f.check, f.status.value, f.subject) for f in found if f.status.value != "ok"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # the machine that the tests run on may have booted a minute ago
    monkeypatch.setattr("aistation_slurm.probes.host.uptime_s", _Clock())
    return World(tmp_path)


class _Clock:
    """30 s go by between looks."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self, root: Path = Path("/")) -> float:
        self.now += 30.0
        return self.now


def test_a_flap_is_seen_by_the_next_look_of_any_process(world: World) -> None:
    faults.link_flaps("mlx5_0", 40).apply(world.hardware)
    assert world.bad() == [], "what was counted before the first look proves nothing"
    faults.link_flaps("mlx5_0", 4).apply(world.hardware)
    assert world.bad() == [("fabric.flap", "warn", "mlx5_0/1")]
    assert world.bad() == [("fabric.flap", "warn", "mlx5_0/1")], "it stays for the window"
    faults.link_flaps("mlx5_0", 7).apply(world.hardware)
    assert world.bad() == [("fabric.flap", "fail", "mlx5_0/1")]
    assert world.bad("boot-2") == [], "another boot"
    faults.ib_errors("mlx5_1", "port_rcv_errors", 50).apply(world.hardware)
    assert world.bad("boot-2") == [("fabric.errors", "warn", "mlx5_1/1")]


def test_a_card_that_goes_away(world: World) -> None:
    assert world.bad() == []
    (world.hardware.root / "sys/class/infiniband/mlx5_1").unlink()
    assert world.bad() == [("fabric.port_state", "warn", "mlx5_1/1")]
    world.hardware.write_hca(world.hardware.hca("mlx5_1"))
    assert world.bad() == []


def test_ignored_ports_are_not_counted(world: World) -> None:
    world.config = Config(probe=world.config.probe, node=world.config.node, expect=Expect(ignore_hcas=("mlx5_0",)))
    assert world.bad() == []
    faults.link_flaps("mlx5_0", 40).apply(world.hardware)
    assert world.bad() == []


@pytest.mark.parametrize("spoil", ["others may write", "link", "another version", "rubbish"])
def test_a_memory_that_may_not_be_trusted_is_not_used_and_replaced(world: World, spoil: str, tmp_path: Path) -> None:
    assert world.bad() == []
    path = world.run / LIVE
    if spoil == "others may write":
        path.chmod(0o666)
    elif spoil == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text('{"version": 9}' if spoil == "another version" else "{{")
    faults.link_flaps("mlx5_0", 20).apply(world.hardware)
    assert world.bad() == [], "a first look"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o644
    faults.link_flaps("mlx5_0", 20).apply(world.hardware)
    assert world.bad() == [("fabric.flap", "fail", "mlx5_0/1")]


def test_the_memory_is_one_small_file_of_this_boot(world: World) -> None:
    for boot in ("boot-1", "boot-2", "boot-3"):
        world.bad(boot)
    assert list(json.loads((world.run / LIVE).read_text())["trees"]) == ["boot-3"]
    assert [name for name in os.listdir(world.run) if name.startswith("fabric")] == [LIVE]


def test_only_the_newest_captures_are_remembered(tmp_path: Path) -> None:
    for number in range(40):
        assert fabric_memory.store(str(tmp_path), CAPTURES, f"tree {number}", Memory(asked_at=float(number)))
    assert fabric_memory.load(str(tmp_path), CAPTURES, "tree 39").asked_at == 39.0
    assert fabric_memory.load(str(tmp_path), CAPTURES, "tree 7").asked_at == -1.0
    assert len(json.loads((tmp_path / CAPTURES).read_text())["trees"]) == 32


def test_drivers_are_asked_in_a_child_now_and_then_and_only_about_this_machine(tmp_path: Path) -> None:
    interface = sorted(os.listdir("/sys/class/net"), key=lambda name: name == "lo")[0]
    facts = {"rate_gbps": 400.0, "lanes": 4, "speed": "NDR", "link_layer": "Ethernet", "netdev": Netdev(interface)}
    ports = [PortSnapshot("mlx5_0", 1, "ACTIVE", "LinkUp", **facts)]  # type: ignore[arg-type]
    node, memory = Node(state_dir=str(tmp_path)), Memory()

    def asked(root: str, clock: float, every: float = 300.0) -> bool:
        config = Config(probe=Probe(root=root), node=node, fabric=Fabric(ethtool_every_s=every))
        before = memory.asked_at
        statistics = fabric_look.ask_drivers(config, ports, memory, clock, "boot-1")
        assert set(statistics) <= {interface}
        return memory.asked_at != before

    assert not asked(str(tmp_path), 10.0)
    assert not asked("/", 10.0, every=0.0)
    assert asked("/", 10.0)
    memory.ports = {"roce mlx5_0/1": CounterHistory(10.0, 10.0)}
    assert not asked("/", 200.0)
    assert asked("/", 320.0)
