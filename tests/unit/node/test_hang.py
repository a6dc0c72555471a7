from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Optional

import pytest

from aistation_slurm.config import Agent, Config, Hang
from aistation_slurm.config import Node as NodeSettings
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.node import hang as hang_module
from aistation_slurm.node import jobs
from aistation_slurm.node.hang import HangWatch
from aistation_slurm.node.hang_processes import JobProcesses, Process
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.requeue import RequeuedAttempts
from tests.unit.node.fake_slurm import FakeSlurm, job
from tests.unit.node.hang_world import STARTED, UID, UserWorld

START = int(datetime.fromisoformat(STARTED).timestamp())
POLL_S = 30.0


class Site:
    """One node with one job under watch; ``pass_time`` looks every poll, without waiting."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str = "enforce") -> None:
        self.world = UserWorld()
        self.now = 1000.0
        self.config = Config(
            node=NodeSettings(state_dir=str(folder)),
            hang=Hang(poll_s=POLL_S, startup_grace_s=60.0, py_spy=str(folder / "no-py-spy")),
            agent=Agent(mode=mode),  # type: ignore[arg-type]
        )
        self.slurm = FakeSlurm(job(start_time=START, admin_comment="[ais resume=auto hang=10]"))
        self.answer: Optional[str] = self.world.shown()
        self.asked = 0
        self.running: dict[int, JobProcesses] = {7: self.world.processes()}
        self.done = RequeuedAttempts(folder / "requeued")
        monkeypatch.setattr(hang_module, "job_processes", lambda: self.running)
        self.watch = self.new_watch()
        self.record()

    def new_watch(self) -> HangWatch:
        return HangWatch(self.config, self.slurm, monotonic=lambda: self.now, runner=self.scontrol)

    def record(self, minutes: int = 10, ckpt_dir: str = "", resume: str = "auto", when: float = 1.0) -> None:
        record = JobRecord(7, UID, 0, frozenset(), resume, when, minutes, ckpt_dir)
        jobs.write(self.config.node.state_dir, record)

    def scontrol(self, argv: Sequence[str], **_: object) -> str:
        self.asked += 1
        assert argv[1:] == ["show", "job", "7"]
        if self.answer is None:
            raise SlurmUnavailable("scontrol did not answer within 10 s")
        return self.answer

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.watch.look()
            self.watch.act("gpu1", self.done)
            self.now += POLL_S

    def prints(self) -> None:
        with self.world.output.open("a") as file:
            file.write("step\n")

    @property
    def stacks(self) -> list[Path]:
        return sorted(self.world.work.glob("aistation-hang-*"))

    @property
    def requeued(self) -> list[str]:
        return self.slurm.made("requeue")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path, monkeypatch)
    yield made
    made.world.close()


pytestmark = pytest.mark.skipif(UID == 0, reason="needs a user other than root")


def test_a_hung_job_is_requeued_once_with_its_stacks_kept_and_noted(site: Site) -> None:
    site.pass_time(600)
    assert (site.requeued, site.stacks) == ([], [])
    site.pass_time(1500)
    assert site.requeued == ["requeue 7"]
    [kept] = site.stacks
    assert (kept.stat().st_uid, stat.S_IMODE(kept.stat().st_mode)) == (UID, 0o600)
    assert "no progress of output for 600 s" in kept.read_text()
    assert site.slurm.made("update") == [f"update 7 [ais resume=auto hang=10 fault=job.hang@gpu1@{START}]"]
    assert site.slurm.made("drain") == []


def test_slurm_is_asked_at_the_start_and_on_suspicion_only(site: Site) -> None:
    site.pass_time(500)
    assert site.asked == 1
    site.pass_time(3000)
    assert site.asked == 2


def test_output_keeps_it_from_being_suspect(site: Site) -> None:
    for _ in range(12):
        site.prints()
        site.pass_time(300)
    assert site.requeued == []
    assert site.asked == 1


def test_output_sent_to_a_file_of_its_own_keeps_it_from_being_suspect(site: Site) -> None:
    log = site.world.user_file(site.world.work / "train.log", "")
    with log.open("a") as file:
        other = site.world.start_process(stdout=file)
    try:
        site.running = {7: JobProcesses(site.world.processes().batch, (Process(other.pid, "sleep", "S"),))}
        for _ in range(6):
            log.write_text(log.read_text() + "step\n")
            site.pass_time(300)
        assert site.requeued == []
    finally:
        other.kill()
        other.wait()


def test_checkpoints_keep_it_from_being_suspect(site: Site) -> None:
    site.record(ckpt_dir=str(site.world.work / "checkpoints"))
    for step in range(12):
        site.world.user_file(site.world.work / f"checkpoints/step-{step}/weights", "w")
        site.pass_time(300)
    assert site.requeued == []


def test_a_job_that_did_not_ask_is_not_looked_at(site: Site) -> None:
    site.record(minutes=0)
    site.pass_time(1500)
    site.record(minutes=10, resume="")
    site.pass_time(1500)
    assert (site.requeued, site.asked) == ([], 0)


def test_only_the_batch_host_judges(site: Site) -> None:
    site.running = {7: JobProcesses(steps=site.world.processes().batch)}
    site.pass_time(1500)
    assert (site.requeued, site.asked) == ([], 0)


def test_the_tag_of_job_submit_counts_more_than_the_jobs_environment(site: Site) -> None:
    site.answer = site.world.shown(admin_comment="[ais resume=auto]")
    site.pass_time(1800)
    assert site.requeued == []


def test_an_administrator_can_call_it_off_in_the_tag(site: Site) -> None:
    site.pass_time(300)
    site.answer = site.world.shown(admin_comment="[ais resume=auto]")
    site.pass_time(1500)
    assert (site.requeued, site.stacks) == ([], [])


def test_without_job_submits_tag_the_gates_record_counts(site: Site) -> None:
    site.answer = site.world.shown(admin_comment="")
    site.slurm.by_id[7] = job(start_time=START, admin_comment="")
    site.pass_time(1500)
    assert site.requeued == ["requeue 7"]


def test_observe_mode_only_says_it_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, monkeypatch, mode="observe")
    try:
        site.pass_time(1800)
        assert (site.requeued, site.stacks) == ([], [])
        said = [r.getMessage() for r in caplog.records if "observe mode" in r.getMessage()]
        assert said == [
            "job 7: observe mode: would requeue it as hung: no progress of output for 600 s since it is watched, limit 600 s"
        ]
    finally:
        site.world.close()


@pytest.mark.parametrize(
    "changes",
    [{"state": "SUSPENDED"}, {"state": "COMPLETING"}, {"start": "2026-12-01T05:00:00"}],
    ids=["suspended", "ending", "next attempt"],
)
def test_what_slurm_says_on_suspicion_decides(site: Site, changes: dict[str, str]) -> None:
    site.pass_time(300)
    site.answer = site.world.shown(**changes)
    site.pass_time(1500)
    assert (site.requeued, site.stacks) == ([], [])


def test_a_stopped_job_is_not_counted(site: Site) -> None:
    site.running = {7: site.world.processes("T")}
    site.pass_time(1800)
    assert site.requeued == []
    site.running = {7: site.world.processes("S")}
    site.pass_time(720)
    assert site.requeued == ["requeue 7"]


def test_the_next_attempt_on_this_node_is_watched_anew(site: Site) -> None:
    site.pass_time(900)
    assert site.requeued == ["requeue 7"]
    site.record(when=2.0)
    site.answer = site.world.shown(start="2026-12-01T05:00:00").replace("Restarts=0", "Restarts=1")
    site.slurm.by_id[7] = job(start_time=START + 3600, admin_comment="[ais resume=auto hang=10]")
    site.pass_time(570)
    assert site.requeued == ["requeue 7"]
    site.pass_time(300)
    assert site.requeued == ["requeue 7"] * 2
    assert [path.name for path in site.stacks] == [
        "aistation-hang-7-attempt0.txt",
        "aistation-hang-7-attempt1.txt",
    ]


def test_a_restarted_agent_does_not_act_twice(site: Site) -> None:
    site.pass_time(900)
    site.slurm.by_id[7] = job(start_time=START)  # the controller lags and still shows the attempt
    site.done = RequeuedAttempts(site.done.path)
    site.watch = site.new_watch()
    site.pass_time(1500)
    assert site.requeued == ["requeue 7"]
    assert len(site.stacks) == 1


def test_a_controller_that_is_away_delays(site: Site) -> None:
    site.answer = None
    site.pass_time(600)
    site.answer = site.world.shown()
    site.pass_time(300)
    site.answer = None
    site.pass_time(900)
    assert (site.requeued, site.stacks) == ([], [])
    site.answer = site.world.shown()
    site.pass_time(60)
    assert site.requeued == ["requeue 7"]


def test_a_job_that_moves_before_the_controller_is_back_is_left_alone(site: Site) -> None:
    site.slurm.down = True
    site.pass_time(900)
    assert len(site.stacks) == 1
    site.prints()
    site.watch.look()
    site.slurm.down = False
    site.pass_time(300)
    assert site.requeued == []


def test_a_requeue_that_could_not_be_asked_for_is_asked_again(site: Site) -> None:
    site.slurm.down = True
    site.pass_time(900)
    site.slurm.down = False
    site.pass_time(60)
    assert site.requeued == ["requeue 7"]
    assert len(site.stacks) == 1


def test_one_that_goes_on_while_its_stacks_are_taken_is_left_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = hang_module.keep_stacks

    def slow(*arguments: object) -> object:
        site.prints()
        return keep(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(hang_module, "keep_stacks", slow)
    site.pass_time(660)
    assert len(site.stacks) == 1
    assert site.requeued == []


def test_a_work_directory_that_refuses_the_user_does_not_keep_the_job(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(site.world.work, 0, 0)
    site.pass_time(900)
    assert site.stacks == []
    assert site.requeued == ["requeue 7"]


def test_output_that_cannot_be_read_is_no_verdict(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(site.world.work, 0, 0)
    site.world.work.chmod(0o700)
    site.pass_time(1800)
    assert (site.requeued, site.asked) == ([], 1)


def test_no_minutes_pass_while_files_do_not_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.config = Config(
        node=site.config.node,
        hang=Hang(poll_s=POLL_S, startup_grace_s=60.0, read_deadline_s=0.2),
        agent=site.config.agent,
    )
    site.watch = site.new_watch()
    monkeypatch.setattr("aistation_slurm.probes.progress.scan_outputs", lambda *_: time.sleep(60))
    site.pass_time(1200)
    assert site.requeued == []
