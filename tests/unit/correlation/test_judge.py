"""The watchdog's part, with a controller in memory and a real journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from aistation_slurm.config import Breaker, Config, Watchdog
from aistation_slurm.correlation.judge import Judge
from aistation_slurm.correlation.marker import breaker_says_no, open_until, put_marker, remove_marker
from aistation_slurm.correlation.published import comment_with, render
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.slurm.client import Node, Reservation
from tests.unit.node.fake_slurm import FakeSlurm
from tests.unit.recovery.sim import FakeClock

SIZE = 32
SETTLE_S = 10.0


class Controller(FakeSlurm):
    """Nodes of one partition on leaves of eight; reservations as Slurm keeps them."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.by_name = {f"gpu{i}": Node(f"gpu{i}", "IDLE", partitions=("gpu",)) for i in range(SIZE)}

    def set_node(self, name: str, reason: str) -> None:
        super().set_node(name, reason)
        at = int(self.clock.now()) if reason else None
        self.by_name[name] = replace(self.by_name[name], reason_time=at)

    def report(self, index: int, check: str = "fabric.port_state", subject: str = "") -> None:
        name = f"gpu{index}"
        segment = render([(check, subject or f"mlx5_{index % 8}/1", "down")], int(self.clock.now()))
        self.by_name[name] = replace(
            self.by_name[name], comment=comment_with(self.by_name[name].comment, segment if check else "")
        )

    def take_back(self, index: int) -> None:
        name = f"gpu{index}"
        self.by_name[name] = replace(self.by_name[name], comment=comment_with(self.by_name[name].comment, ""))

    @property
    def drained(self) -> list[str]:
        return [node.name for node in self.by_name.values() if node.drained]

    def create_reservation(self, name: str, **fields: str) -> None:
        self._call(f"create {name}")
        assert name not in {r.name for r in self.reserved}
        self.reserved.append(Reservation(name, start_time=_unix(fields["StartTime"])))

    def update_reservation(self, name: str, **fields: str) -> None:
        self._call(f"update_reservation {name}")
        self.reserved = [
            replace(r, start_time=_unix(fields["StartTime"])) if r.name == name else r for r in self.reserved
        ]

    def delete_reservation(self, name: str) -> None:
        self._call(f"delete {name}")
        self.reserved = [r for r in self.reserved if r.name != name]


def _unix(text: str) -> int:
    import time

    return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))


class Room:
    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.slurm = Controller(self.clock)
        breaker = Breaker(**{"settle_s": SETTLE_S, **settings})  # type: ignore[arg-type]
        self.config = Config(watchdog=Watchdog(journal=str(folder / "journal.db")), breaker=breaker)
        self.journal = Journal(folder / "journal.db", "sim")
        self.start()

    def start(self) -> None:
        """A new process of the watchdog."""

        def leaves(_nodes: int, _monotonic: float) -> Mapping[str, str]:
            return {f"gpu{i}": f"leaf{i // 8}" for i in range(SIZE)}

        self.judge = Judge(self.config, self.slurm, self.journal, self.clock, leaves)

    def run_for(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.judge.step()
            self.clock.sleep(1.0)

    def said(self, kind: str) -> list[str]:
        return [row["text"] for row in self.journal.incidents() if row["kind"] == kind]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_a_lone_fault_is_drained_when_others_had_their_time(room: Room) -> None:
    room.run_for(30)
    room.slurm.report(3)
    room.run_for(SETTLE_S + 25)
    assert room.slurm.drained == ["gpu3"]
    assert room.slurm.by_name["gpu3"].reason.startswith("ais:fabric.port_state mlx5_3/1 down [")
    assert len(room.said("correlated_drain")) == 1


def test_nothing_reported_costs_one_request_a_look(room: Room) -> None:
    room.run_for(600)
    assert len(room.slurm.calls) <= 600 / room.config.breaker.look_s + 2


def test_a_leaf_is_named_once_and_its_end_too(room: Room) -> None:
    for i in range(8, 16):
        room.slurm.report(i)
        room.run_for(1)
    room.run_for(120)
    assert room.slurm.drained == []
    assert room.said("common_cause")[0].startswith("leaf switch leaf1: 8 of 8 nodes report fabric.port_state together")
    assert len(room.said("common_cause")) <= 2
    for i in range(8, 16):
        room.slurm.take_back(i)
    room.run_for(30)
    assert len(room.said("common_cause_over")) == 1


@pytest.mark.parametrize("restart", [False, True])
def test_the_last_nodes_of_a_leaf_to_get_well_are_not_drained(room: Room, restart: bool) -> None:
    for i in range(8, 16):
        room.slurm.report(i)
    room.run_for(60)
    for i in range(8, 16):
        room.slurm.take_back(i)
        if restart and i == 13:
            room.start()
        room.run_for(30)
    assert room.slurm.made("drain") == []


def test_one_that_stays_sick_after_its_leaf_is_well_is_drained_in_the_end(room: Room) -> None:
    for i in range(8, 16):
        room.slurm.report(i)
    room.run_for(60)
    for i in range(9, 16):
        room.slurm.take_back(i)
    room.run_for(room.config.breaker.together_s + 30)
    assert room.slurm.drained == ["gpu8"]


def test_what_was_reported_before_a_boot_is_not_believed(room: Room) -> None:
    room.run_for(30)
    room.slurm.report(3)
    node = room.slurm.by_name["gpu3"]
    room.slurm.by_name["gpu3"] = replace(node, boot_time=int(room.clock.now()) + 5)
    room.run_for(600)
    assert room.slurm.made("drain") == []


@pytest.mark.parametrize("restart", [False, True])
def test_whoever_gives_the_node_back_is_not_argued_with(room: Room, restart: bool) -> None:
    room.slurm.report(3)
    room.run_for(60)
    assert room.slurm.drained == ["gpu3"]
    room.slurm.set_node("gpu3", "")
    if restart:
        room.start()
    room.run_for(600)
    assert room.slurm.drained == []
    room.slurm.take_back(3)
    room.run_for(30)
    room.slurm.report(3)
    room.run_for(60)
    assert room.slurm.drained == ["gpu3"], "it came again"


def test_an_administrators_drain_is_left_alone(room: Room) -> None:
    room.slurm.report(3)
    room.run_for(5)
    room.slurm.set_node("gpu3", "memory test tomorrow")
    room.run_for(60)
    assert room.slurm.by_name["gpu3"].reason == "memory test tomorrow"
    assert room.slurm.made("drain") == []


def test_too_many_drains_open_the_breaker_and_nodes_are_told(room: Room) -> None:
    for i in range(0, 20, 4):
        room.slurm.set_node(f"gpu{i}", "ais:gpu.lost GPU3 x [abcdef]")
    room.slurm.report(30)
    room.run_for(300)
    assert "gpu30" not in room.slurm.drained
    assert len(room.said("breaker_open")) == 1
    state_dir = str(room.folder)
    now = room.clock.now()
    assert breaker_says_no(room.slurm, "gpu30", state_dir, now)
    assert breaker_says_no(room.slurm, "gpu30", state_dir, now + 140)
    assert not breaker_says_no(room.slurm, "gpu30", state_dir, now + 301), "the watchdog may have died"
    room.run_for(600)
    assert room.slurm.reserved == []
    assert len(room.said("breaker_closed")) == 1
    assert "gpu30" in room.slurm.drained


def test_a_new_watchdog_closes_what_the_old_one_opened(room: Room) -> None:
    for i in range(0, 20, 4):
        room.slurm.set_node(f"gpu{i}", "ais:gpu.lost GPU3 x [abcdef]")
    room.run_for(30)
    assert list(open_until(room.slurm.reserved)) == ["gpu"]
    for i in range(0, 20, 4):
        room.slurm.set_node(f"gpu{i}", "")
    room.start()
    room.run_for(120)
    assert room.slurm.reserved == []


def test_a_silent_controller_is_waited_for(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.run_for(30)
    room.slurm.report(3)
    room.slurm.down = True
    room.run_for(600)
    assert sum("cannot be judged now" in record.message for record in caplog.records) == 1
    room.slurm.down = False
    room.run_for(60)
    assert room.slurm.drained == ["gpu3"]


def test_observe_mode_says_and_changes_nothing(tmp_path: Path) -> None:
    room = Room(tmp_path, mode="observe")
    room.slurm.report(3)
    for i in range(0, 20, 4):
        room.slurm.set_node(f"gpu{i}", "ais:gpu.lost GPU3 x [abcdef]")
    room.run_for(60)
    room.run_for(900)
    assert all(call.split()[0] in ("nodes", "reservations") for call in room.slurm.calls)
    assert len(room.said("breaker_open")) == 1
    assert room.said("breaker_open")[0].startswith("observe only: ")
    assert len(room.said("correlated_drain")) == 1


def test_of_a_hundred_lone_faults_few_go(tmp_path: Path) -> None:
    """Spread in time and place so that nothing looks like one cause."""
    room = Room(tmp_path, together_s=0.5, together=10)
    for i in range(SIZE):
        room.slurm.report(i)
        room.run_for(11)
    assert len(room.slurm.drained) <= 4
    drains = len(room.slurm.made("drain"))
    assert drains == len(room.slurm.drained)


class TestMarker:
    def test_a_closed_breaker_costs_one_request(self, tmp_path: Path) -> None:
        slurm = Controller(FakeClock())
        assert not breaker_says_no(slurm, "gpu1", str(tmp_path), 1000.0)
        assert slurm.calls == ["reservations"]

    def test_another_partitions_breaker_is_none_of_ours(self, tmp_path: Path) -> None:
        slurm = Controller(FakeClock())
        put_marker(slurm, "other", "gpu1", 2000.0)
        assert not breaker_says_no(slurm, "gpu1", str(tmp_path), 1000.0)
        assert len(slurm.calls) == 4

    def test_it_is_renewed_in_place_and_removed(self) -> None:
        slurm = Controller(FakeClock())
        put_marker(slurm, "gpu", "gpu1", 2000.0)
        put_marker(slurm, "gpu", "gpu1", 3000.0)
        assert open_until(slurm.reserved) == {"gpu": 3000.0}
        remove_marker(slurm, "gpu")
        assert slurm.reserved == []

    def test_the_nodes_own_file_is_believed_without_a_request(self, tmp_path: Path) -> None:
        slurm = Controller(FakeClock())
        (tmp_path / "breaker").write_text("open 2000 by hand\n")
        assert breaker_says_no(slurm, "gpu1", str(tmp_path), 1000.0)
        assert slurm.calls == []

    def test_no_answer_is_the_callers_to_judge(self, tmp_path: Path) -> None:
        slurm = Controller(FakeClock())
        slurm.down = True
        with pytest.raises(SlurmUnavailable):
            breaker_says_no(slurm, "gpu1", str(tmp_path), 1000.0)
