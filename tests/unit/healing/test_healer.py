"""Whole steps on a make-believe node, with a controller in memory, real programs and a real history on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from aistation_slurm.config import Config
from aistation_slurm.correlation.marker import FAR_S
from aistation_slurm.errors import SlurmUnavailable, StateFileError
from aistation_slurm.findings import Action, Finding, Status, drain_reason
from aistation_slurm.healing import history
from aistation_slurm.healing.healer import Healer
from aistation_slurm.healing.result import Result
from aistation_slurm.node import acted
from aistation_slurm.node import history as klog_history
from aistation_slurm.node.health import NodeReport
from aistation_slurm.slurm.client import Reservation
from tests.cluster.faults import xid
from tests.unit.node.fake_slurm import FakeSlurm
from tests.unit.node.sim import SimNode

XID = Finding("gpu.xid", Status.FAIL, "GPU2 0000:3a:00", "Xid 48", Action.GPU_RESET, device="0000:3a:00.0")
LOST = Finding("gpu.lost", Status.FAIL, "GPU2 0000:3a:00", "Xid 79", Action.REBOOT, device="0000:3a:00.0")
OURS = drain_reason(XID, node="gpu1", boot_id="b1")
REBOOT_CONF = "RebootProgram           = /sbin/reboot\nResumeTimeout           = 600 sec"


class World:
    """One node: ``faulty`` is what its checks find; ``boot`` its boot id."""

    def __init__(self, folder: Path, **healing: object) -> None:
        settings: dict[str, object] = {
            "enabled": True,
            "dir": str(folder / "kept"),
            "settle_s": 0.0,
            "pass_every_s": 0.0,
        }
        settings |= {"reset": [str(folder / "reset"), "{pci}"], "same_fault_s": 0.0, **healing}
        self.node = SimNode(folder, healing=settings)
        self.program("reset", f'#!/bin/sh\necho "$1" >>{folder}/resets\n')
        self.node.scontrol(shown=REBOOT_CONF)
        self.slurm = FakeSlurm()
        self.faulty: Sequence[Finding] = (XID,)
        self.boot = "b1"
        self.now = 1000.0
        self.occupied = ""
        self.said: list[str] = []
        self.published: list[NodeReport] = []
        self.state("IDLE", OURS)

    @property
    def config(self) -> Config:
        return self.node.config

    def program(self, name: str, text: str) -> Path:
        path = self.node.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def state(self, state: str, reason: str, *flags: str) -> None:
        drain = ("DRAIN",) if reason and not flags else ()
        self.slurm.by_name["gpu1"] = replace(
            self.slurm.by_name["gpu1"], state=state, reason=reason, flags=frozenset({*drain, *flags}) - {"-"}
        )

    @property
    def reason(self) -> str:
        return self.slurm.by_name["gpu1"].reason

    def check(self) -> NodeReport:
        return self.node.report(*self.faulty, boot=self.boot)

    def step(self, dry: bool = False, config: Optional[Config] = None) -> Result:
        """Each step is one of a new process."""
        self.now += 1.0
        healer = Healer(
            config or self.config,
            self.slurm,
            lambda: "gpu1",
            self.check,
            self.published.append,
            self.said.append,
            lambda: self.now,
            lambda: self.boot,
            lambda *_: self.occupied,
        )
        return healer.step(dry)

    def kinds(self, count: int) -> list[str]:
        return [self.step().kind for _ in range(count)]

    @property
    def resets(self) -> list[str]:
        path = self.node.folder / "resets"
        return path.read_text(encoding="ascii").split() if path.exists() else []

    def reboots(self) -> int:
        return self.node.calls().count("<reboot><gpu1>")

    def case(self) -> history.Case:
        return history.load(self.config.healing.dir, "gpu1").cases[-1]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_reset_then_three_passes_then_service(world: World) -> None:
    world.node.inject(xid(2, 48))
    acted.write(world.config.node.state_dir, {("gpu.xid", XID.subject), ("gpu.lost", "GPU9")})
    assert world.step().kind == "acted"
    assert world.resets == ["0000:3a:00.0"]
    assert klog_history.events(world.config) == [], "the log of before the reset is dealt with"
    world.faulty = ()
    assert world.kinds(3) == ["passed", "passed", "returned"]
    assert world.slurm.made("resume") == ["resume gpu1"]
    assert len(world.published) == 1, "the gate must know before the next job starts"
    assert acted.read(world.config.node.state_dir) == frozenset(), "what comes again is news"
    assert world.step().kind == "none"


def test_two_resets_that_do_not_help_end_in_an_inspection_with_evidence(world: World) -> None:
    assert world.kinds(3) == ["acted", "acted", "inspect"]
    assert len(world.resets) == 2
    assert world.reason.startswith("ais:gpu.xid GPU2 0000:3a:00 inspect: 2 x gpu_reset did not help; Xid 48 [")
    assert world.reason[-8:] == OURS[-8:]
    path = world.config.healing.dir + f"/gpu1-{OURS[-7:-1]}.tar.gz"
    assert world.case().evidence == path
    assert os.stat(path).st_mode & 0o077 == 0
    with tarfile.open(path) as tar:
        assert sorted(Path(name).name for name in tar.getnames()) == ["evidence.json", "evidence.txt", "kernel.log"]
    assert world.kinds(3) == ["inspect"] * 3
    assert len(world.resets) == 2
    assert len(world.slurm.made("update_node")) == 1


def test_a_fault_that_comes_back_after_service_has_only_the_attempts_that_are_left(world: World) -> None:
    world.step()
    world.faulty = ()
    assert world.kinds(3)[-1] == "returned"
    world.faulty = (XID,)
    world.state("IDLE", OURS)  # the same boot and fault: the same text and id
    assert world.kinds(2) == ["acted", "inspect"]
    assert len(world.resets) == 2


def test_a_new_boots_drain_for_the_same_fault_has_the_same_bound(tmp_path: Path) -> None:
    world = World(tmp_path, same_fault_s=1e6)
    for boot in ("b1", "b2"):
        world.boot, world.faulty = boot, (XID,)
        world.state("IDLE", drain_reason(XID, node="gpu1", boot_id=boot))
        world.step()
        world.faulty = ()
        assert world.kinds(3)[-1] == "returned"
    world.faulty = (XID,)
    world.state("IDLE", drain_reason(XID, node="gpu1", boot_id="b3"))
    assert world.step().kind == "inspect"


@pytest.mark.parametrize(
    "theirs", ["card is ordered", f"{OURS} ordered", OURS.replace("Xid 48", "Xid 48, for Bob"), ""]
)
def test_hands_off_when_somebody_takes_over(world: World, theirs: str) -> None:
    world.step()
    world.faulty = ()
    world.step()
    world.state("IDLE", theirs)
    before = len(world.slurm.calls)
    assert world.step().kind == "left"
    world.faulty = (XID,)
    assert world.step().kind in ("left", "none")
    assert world.slurm.calls[before:] == ["nodes gpu1"] * 2
    assert world.reason == theirs


def test_another_drain_of_ours_is_another_case_with_the_same_bound(tmp_path: Path) -> None:
    """22.05 loses DRAIN after a slow boot; where the agent is quicker, it drains anew, with the new boot's id."""
    world = World(tmp_path, same_fault_s=1e6)
    assert world.kinds(2) == ["acted", "acted"]
    world.boot = "b2"
    world.state("IDLE", drain_reason(XID, node="gpu1", boot_id="b2"))
    assert world.kinds(2) == ["left", "inspect"]
    assert len(world.resets) == 2


def test_a_person_who_was_asked_and_gives_the_node_back_starts_a_new_count(tmp_path: Path) -> None:
    world = World(tmp_path, same_fault_s=1e6)
    assert world.kinds(3)[-1] == "inspect"
    world.state("IDLE", "")
    assert world.kinds(2) == ["left", "none"]
    world.state("IDLE", drain_reason(XID, node="gpu1", boot_id="b2"))
    assert world.kinds(3) == ["acted", "acted", "inspect"]


@pytest.mark.parametrize("meanwhile", ["card is ordered", ""])
def test_the_reason_is_read_again_after_the_record_and_before_the_action(world: World, meanwhile: str) -> None:
    def hook(call: str) -> None:
        if len(world.slurm.made("nodes")) == 2:
            world.state("IDLE", meanwhile)

    world.slurm.hook = hook
    assert world.step().kind == "waiting"
    assert world.resets == []
    assert [a.counted for a in world.case().attempts] == [False]
    assert world.step().kind == "left"


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        ("ALLOCATED", ("DRAIN",)),
        ("MIXED", ("DRAIN",)),
        ("IDLE", ("DRAIN", "COMPLETING")),
        ("IDLE", ("DRAIN", "MAINTENANCE")),
        ("UNKNOWN", ("DRAIN",)),
    ],
)
def test_a_job_or_its_epilog_is_waited_for_and_nothing_heavy_runs_beside_it(
    world: World, state: str, flags: tuple[str, ...]
) -> None:
    world.state(state, OURS, *flags)
    world.check = lambda: pytest.fail("a full check beside a job")  # type: ignore[method-assign]
    result = world.step()
    assert (result.kind, "not empty" in result.text, world.resets) == ("waiting", True, [])


def test_a_process_that_comes_between_record_and_action_stops_it(world: World) -> None:
    calls = iter(["", "", "process 7 (python, uid 20001) holds /dev/nvidia2"])
    world.occupied = ""
    healer_said = [next(calls) for _ in range(2)]
    assert healer_said == ["", ""]
    world.now += 1

    healer = Healer(
        world.config, world.slurm, lambda: "gpu1", world.check, world.published.append, world.said.append,
        lambda: world.now, lambda: "b1", _later("", "", "process 7"),
    )  # fmt: skip
    assert healer.step().kind == "waiting"
    assert world.resets == []


def _later(*answers: str):  # type: ignore[no-untyped-def]
    left = list(answers)
    return lambda *_: left.pop(0) if len(left) > 1 else left[0]


def test_observe_mode_and_an_open_breaker_do_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    world = World(tmp_path / "a", mode="observe")
    result = world.step()
    assert (result.kind, "observe mode" in result.text) == ("waiting", True)
    (tmp_path / "b").mkdir()
    other = World(tmp_path / "b")
    run = Path(other.config.node.state_dir)
    run.mkdir(exist_ok=True)
    (run / "breaker").write_text("open 99999999999 many nodes\n", encoding="ascii")
    result = other.step()
    assert (result.kind, "breaker is open" in result.text) == ("waiting", True)
    for each in (world, other):
        assert each.resets == []
        assert set(each.slurm.calls) == {"nodes gpu1"}


def test_a_breaker_that_the_controller_opened_holds_it_too(world: World) -> None:
    world.slurm.by_name["gpu1"] = replace(world.slurm.by_name["gpu1"], partitions=("gpu",))
    world.slurm.reserved = [Reservation("ais-breaker_gpu", start_time=int(world.now) + 600 + FAR_S)]
    result = world.step()
    assert (result.kind, "breaker is open" in result.text) == ("waiting", True)
    assert world.resets == []


def test_a_dry_run_says_it_and_remembers_nothing(world: World) -> None:
    result = world.step(dry=True)
    assert "would reset 0000:3a:00.0" in result.text
    assert world.resets == []
    assert not os.path.exists(world.config.healing.dir)
    assert set(world.slurm.calls) == {"nodes gpu1", "reservations"}


def test_a_reset_that_leaves_the_driver_out_is_not_healed(world: World) -> None:
    world.step()
    world.faulty = (Finding("gpu.count", Status.UNKNOWN, "GPUs", "NVML could not be asked: driver not loaded"),)
    assert world.kinds(3) == ["waiting"] * 3
    world.now += world.config.healing.verify_deadline_s
    assert world.kinds(2) == ["acted", "waiting"]
    world.now += world.config.healing.verify_deadline_s
    assert world.kinds(1) == ["inspect"]


def test_another_cards_messages_are_not_forgotten_with_a_reset(world: World) -> None:
    world.node.inject(xid(2, 48))
    other = replace(XID, subject="GPU1", device="0000:2a:00.0", action=Action.UPDATE_SOFTWARE)
    world.faulty = (XID, other)
    assert world.step().kind == "acted"
    assert len(klog_history.events(world.config)) == 1


def test_a_history_in_memory_allows_no_reboot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "volatile", lambda _: True)
    world.faulty = (LOST,)
    assert "in memory" in world.step().text
    assert world.reboots() == 0


# ---- the action -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho no >&2\nexit 3\n", "exit code 3: no"),
        ("#!/bin/sh\nsleep 60 &\nsleep 60\n", "did not end within 1 s"),
        ("not a program", "exit code 127"),
    ],
)
def test_a_reset_that_fails_is_an_attempt(tmp_path: Path, text: str, said: str) -> None:
    world = World(tmp_path, deadline_s=1.0)
    world.program("reset", text)
    world.node.inject(xid(2, 48))
    world.step()
    assert said in world.case().attempts[0].outcome
    assert len(klog_history.events(world.config)) == 1, "what was not reset is not forgotten"


def test_a_reset_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    world = World(tmp_path, deadline_s=1.0)
    world.program("reset", f"#!/bin/sh\nsleep 300 &\necho $! >{tmp_path}/child\nwait\n")
    world.step()
    pid = int((tmp_path / "child").read_text(encoding="ascii"))
    assert not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2]


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o644])
def test_what_others_could_write_is_not_run_as_root(world: World, mode: int) -> None:
    (world.node.folder / "reset").chmod(mode)
    world.step()
    assert world.resets == []
    assert world.case().attempts[0].outcome.startswith("failed: ")


def test_a_sites_command_runs_with_its_arguments_as_they_are(tmp_path: Path) -> None:
    argv = [str(tmp_path / "site"), "a b", "$(touch x)", "{pci}"]
    world = World(tmp_path, commands={})
    world.program("site", f'#!/bin/sh\nprintf "%s|" "$@" "$AISTATION_NODE" >{tmp_path}/ran\n')
    text = world.node.toml.read_text(encoding="utf-8").replace("commands = {}\n", "")
    world.node.toml.write_text(f'{text}\n[healing.commands]\n"gpu.xid" = {json.dumps(argv)}\n', encoding="utf-8")
    assert world.step().kind == "acted"
    assert (tmp_path / "ran").read_text(encoding="ascii") == "a b|$(touch x)|{pci}|gpu1|"


# ---- crashes and disks ----------------------------------------------------------------------------------------------


def test_killed_in_the_middle_of_the_action_twice_is_an_inspection(world: World) -> None:
    """kill -9 while the program runs: the attempt is on the disk, its outcome is not known."""
    for count in (1, 2):
        world.program(
            "reset", f"#!/bin/sh\necho x >>{world.node.folder}/resets\nkill -KILL $(cat {world.node.folder}/pid)\n"
        )
        child = os.fork()
        if child == 0:
            (world.node.folder / "pid").write_text(str(os.getpid()), encoding="ascii")
            try:
                world.step()
            finally:
                os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
        assert len(world.resets) == count
        assert world.case().attempts[-1].outcome == ""
        assert world.step().kind == "waiting", "it may still be at work"
        assert "DRAIN" in world.slurm.by_name["gpu1"].flags
        world.now += world.config.healing.deadline_s + 20
    assert world.step().kind == "inspect"
    assert len(world.resets) == 2


def test_without_a_place_for_its_memory_nothing_is_done(world: World) -> None:
    Path(world.config.healing.dir).write_text("a file", encoding="ascii")
    for _ in range(3):
        with pytest.raises(StateFileError):
            world.step()
    assert world.resets == []
    assert set(world.slurm.calls) <= {"nodes gpu1"}


def test_a_memory_that_cannot_be_written_any_more_stops_before_the_next_action(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.step()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for _ in range(3):
        with pytest.raises(StateFileError, match="No space left"):
            world.step()
    assert len(world.resets) == 1
    assert "DRAIN" in world.slurm.by_name["gpu1"].flags


def test_a_history_that_was_lost_does_not_undo_an_inspection(world: World) -> None:
    world.kinds(3)
    Path(world.config.healing.dir, "gpu1.json").unlink()
    assert world.kinds(2) == ["inspect", "inspect"]
    assert len(world.resets) == 2


def test_evidence_that_could_not_be_kept_is_tried_again(world: World) -> None:
    world.kinds(2)
    blocked = Path(world.config.healing.dir, f"gpu1-{OURS[-7:-1]}.tar.gz.new")
    blocked.mkdir()
    assert world.step().kind == "inspect"
    assert "inspect: " in world.reason, "a person is asked all the same"
    assert world.case().evidence == ""
    blocked.rmdir()
    world.step()
    assert world.case().evidence == "", "not at every step"
    world.now += 3600
    world.step()
    assert world.case().evidence.endswith(".tar.gz")


def test_a_silent_controller_changes_nothing(world: World) -> None:
    world.slurm.down = True
    with pytest.raises(SlurmUnavailable):
        world.step()
    assert world.resets == []
    assert not os.path.exists(world.config.healing.dir)


def test_two_at_once_are_one(world: World) -> None:
    lock = (
        "import time\nfrom aistation_slurm.healing.history import HealLock\n"
        f"with HealLock({world.config.node.state_dir!r}) as held:\n    print(held, flush=True)\n    time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", lock], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "True"
        assert world.step().kind == "busy"
    finally:
        other.kill()
        other.communicate(timeout=30)
    assert world.slurm.calls == []
    assert world.step().kind == "acted"


# ---- reboots --------------------------------------------------------------------------------------------------------


def test_a_reboot_keeps_the_drain_and_is_judged_in_the_new_boot(world: World) -> None:
    world.faulty = (LOST,)
    ours = drain_reason(LOST, node="gpu1", boot_id="b1")
    world.state("IDLE", ours)
    assert world.step().kind == "acted"
    assert world.reboots() == 1
    world.state("DOWN", f"{ours} : reboot issued", "DRAIN", "REBOOT_ISSUED")
    assert world.step().kind == "waiting"
    world.boot, world.faulty = "b2", ()
    world.state("IDLE", f"{ours} : reboot issued", "DRAIN")
    assert world.kinds(3) == ["passed", "passed", "returned"]
    assert world.slurm.made("update_node") == ["update_node gpu1 Reason"]
    assert world.reboots() == 1


def test_a_boot_longer_than_resume_timeout_gets_its_drain_back(world: World) -> None:
    """Slurm then has it DOWN without DRAIN; ReturnToService=2 would put it into service as it is."""
    world.faulty = (LOST,)
    ours = drain_reason(LOST, node="gpu1", boot_id="b1")
    world.state("IDLE", ours)
    world.step()
    world.boot = "b2"
    world.state("DOWN", f"{ours} : reboot issued : reboot timed out", "-")
    world.step()
    assert world.slurm.by_name["gpu1"].drained
    assert world.reason == ours


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("RebootProgram           = (null)\nResumeTimeout           = 600 sec", "no RebootProgram"),
        (
            "RebootProgram           = /r\nResumeTimeout           = 60 sec\nReturnToService         = 2",
            "ReturnToService=2",
        ),
        ("nothing of it", "not known"),
    ],
)
def test_where_slurm_cannot_reboot_safely_it_is_said_and_nothing_is_done(world: World, shown: str, said: str) -> None:
    world.faulty = (LOST,)
    world.node.scontrol(shown=shown)
    result = world.step()
    assert (result.kind, said in result.text) == ("waiting", True), result.text
    assert world.reboots() == 0


def test_a_refused_reboot_is_a_failed_attempt(world: World) -> None:
    world.faulty = (LOST,)
    world.node.scontrol(shown=REBOOT_CONF, update="exit 0")
    script = world.node.bin / "scontrol"
    script.write_text(
        script.read_text(encoding="utf-8") + 'case $* in reboot*) echo "Invalid node" >&2; exit 1;; esac\n'
    )
    assert world.kinds(3) == ["acted", "acted", "inspect"]
    assert world.reboots() == 2
    assert "Invalid node" in world.case().attempts[0].outcome
