"""SIGHUP: new settings under a running agent, and no fault is lost over it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from aistation_slurm.config import Config
from aistation_slurm.config.reload import Reloader
from aistation_slurm.node.agent import RESTART, Agent
from tests.cluster.faults import gpu_lost
from tests.unit.node.fake_slurm import FakeSlurm, job
from tests.unit.node.sim import SimNode
from tests.unit.node.test_agent import Running, until


@pytest.fixture(autouse=True)
def own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu1")


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def agent_of(node: SimNode, slurm: FakeSlurm) -> Agent:
    return Agent(node.config, slurm, reloader=Reloader(RESTART, node.toml))


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


def test_a_drain_that_waits_for_slurm_outlives_new_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = SimNode(tmp_path, node={"poll_s": 600.0})
    slurm = FakeSlurm(job())
    slurm.down = True
    agent = agent_of(node, slurm)

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        node.inject(gpu_lost(3))
        until(lambda: agent.reaction is not None and agent.reaction.pending is not None, "the drain to be wanted")
        node.toml.write_text(node.toml.read_text().replace("poll_s = 600.0", "poll_s = 300.0"))
        hang_up()
        until(lambda: agent.config.node.poll_s == 300.0, "the new settings")
        assert agent.reaction is not None
        assert agent.reaction.config.node.poll_s == 300.0
        slurm.down = False
        until(lambda: slurm.made("requeue"), "the requeue")

    Running(agent).while_running(body)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.lost GPU3 ")
    assert slurm.made("requeue") == ["requeue 7"]
    assert said(caplog, f"settings read anew from {node.toml}")


def test_a_bad_file_changes_nothing_and_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = SimNode(tmp_path, node={"poll_s": 600.0})
    slurm = FakeSlurm(job())
    agent = agent_of(node, slurm)
    before = agent.config

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        node.toml.write_text("[gate]\nbudget = 3\n")
        hang_up()
        until(lambda: said(caplog, "did you mean 'budget_s'"), "the message")
        node.toml.unlink()
        hang_up()
        until(lambda: said(caplog, "no such file"), "the message")
        node.inject(gpu_lost(3))
        until(lambda: slurm.made("requeue"), "the requeue, by the old settings")

    Running(agent).while_running(body)
    assert agent.config == before
    assert said(caplog, "the old ones stay in force")


def test_what_was_only_observed_is_acted_on_once_the_agent_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = SimNode(tmp_path, node={"poll_s": 0.5}, agent={"mode": "observe"})
    slurm = FakeSlurm(job())
    agent = agent_of(node, slurm)

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        node.inject(gpu_lost(3))
        until(lambda: said(caplog, "observe mode: would drain gpu1"), "what would be done")
        assert slurm.made("drain") == []
        node.toml.write_text(node.toml.read_text().replace('"observe"', '"enforce"'))
        hang_up()
        until(lambda: slurm.made("requeue"), "the requeue")

    Running(agent).while_running(body)
    assert len(slurm.made("drain")) == 1


def test_what_needs_a_restart_stays_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = SimNode(tmp_path)
    old = node.config
    text = node.toml.read_text().replace("timeout_s = 5.0", "timeout_s = 6.0").replace(str(node.run), "/run/other")
    node.toml.write_text(text + "\n[gate]\nbudget_s = 7\n")
    new = Reloader(RESTART, node.toml).reload(old)
    assert new is not None
    assert (new.slurm, new.node.state_dir, new.gate.budget_s) == (old.slurm, str(node.run), 7.0)
    assert said(caplog, "slurm, node.state_dir changed: put in force by a restart alone")


def test_a_default_file_that_vanished_does_not_mean_every_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "aistation.toml"
    path.write_text('mode = "observe"\n')
    monkeypatch.delenv("AISTATION_CONFIG", raising=False)
    monkeypatch.setattr("aistation_slurm.config.file.DEFAULT_PATH", path)
    reloader = Reloader(RESTART)
    observing = reloader.reload(Config())
    assert observing is not None
    assert observing.mode == "observe"
    path.rename(tmp_path / "gone")
    assert reloader.reload(observing) is None
    assert said(caplog, "no such file any more")
