from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aistation_slurm.config import Config
from aistation_slurm.findings import Finding, Status
from aistation_slurm.node import agent as agent_module
from aistation_slurm.node import jobs, state
from aistation_slurm.node.agent import Agent, kernel_findings, look_at_node
from aistation_slurm.node.health import NodeReport
from aistation_slurm.node.history import events
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.probes.nvml import GpuProcess, GpuSnapshot, NvmlSnapshot
from tests.cluster.faults import gpu_lost, ib_down, kernel_log, xid
from tests.unit.node.fake_slurm import FakeSlurm, job
from tests.unit.node.sim import REPOSITORY, SimNode

PATIENCE_S = 60.0


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.02)


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    return SimNode(tmp_path, node={"poll_s": 600.0})


class Running:
    """An agent's loop in this process: ``run`` needs the main thread for its signals, so the test is the other one."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def while_running(self, body: Callable[[], None]) -> None:
        failed: list[BaseException] = []

        def other() -> None:
            try:
                body()
            except BaseException as exc:
                failed.append(exc)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=other)
        thread.start()
        self.agent.run()
        thread.join()
        if failed:
            raise failed[0]


@pytest.fixture(autouse=True)
def own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu1")


# ---- one look


def test_once_writes_state_and_report_and_acts(node: SimNode) -> None:
    node.inject(gpu_lost(3))
    slurm = FakeSlurm(job())
    assert Agent(node.config, slurm).once() is Status.FAIL
    read = state.read(str(node.run / "state"))
    assert [(g.minor, g.check) for g in read.gpus if g.status == "fail"] == [(3, "gpu.lost"), (3, "gpu.xid")]
    assert json.loads((node.run / "report.json").read_text())["node"] == "gpu1"
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.lost GPU3 ")
    assert slurm.made("requeue") == ["requeue 7"]


def test_a_port_that_is_down_is_reported_and_drains_nothing(node: SimNode) -> None:
    node.inject(ib_down("mlx5_1"))
    slurm = FakeSlurm(job())
    assert Agent(node.config, slurm).once() is Status.FAIL
    assert slurm.calls == []
    assert "port mlx5_1/1 fail fabric.port_state" in (node.run / "state").read_text()


def test_the_kernels_words_alone_name_the_gpu(node: SimNode) -> None:
    last = look_at_node(node.config)
    node.inject(xid(2, 31, pid=4242))
    node.inject(xid(2, 95))
    found = kernel_findings(last, events(node.config))
    fatal = [f for f in found if f.drains]
    assert [(f.check, f.subject) for f in fatal] == [("gpu.xid", f"GPU2 {node.hardware.gpu(2).pci[:-2]}")]
    complete = [f for f in look_at_node(node.config).findings if f.drains]
    assert fatal == complete, "the urgent and the complete look give one and the same reason"


def test_memory_in_use_on_a_gpu_that_nobody_holds_is_said_once(node: SimNode, caplog: pytest.LogCaptureFixture) -> None:
    jobs.write(str(node.run), JobRecord(7, 20001, 0, frozenset({0}), "", 1.0))
    used = {0: 70_000, 1: 500, 2: 70_000, 3: 70_000}
    busy = (GpuProcess(4242),)
    gpus = tuple(
        GpuSnapshot(i, pci=f"0000:0{i}:00.0", minor=i, memory_used=mib << 20, processes=busy if i == 3 else ())
        for i, mib in used.items()
    )
    report = dataclasses.replace(node.report(), nvml=NvmlSnapshot(gpus=gpus))
    agent = Agent(node.config, FakeSlurm(), lambda _: report)
    for _ in range(3):
        agent.once()
    said = [r.getMessage() for r in caplog.records]
    assert said == ["GPU2 0000:02:00.0: 70000 MiB in use and no process shown, limit 1024 MiB; no job holds this GPU"]


def test_a_look_that_was_under_way_when_the_node_was_given_back_drains_nothing(node: SimNode) -> None:
    """Its report still tells of the Xid that the person who gave the node back has dealt with."""
    node.inject(xid(2, 95))
    slurm = FakeSlurm()
    before: list[NodeReport] = []

    def check(config: Config) -> NodeReport:
        before.append(look_at_node(config))
        if len(before) == 2:  # given back, and noticed, while this look is made
            slurm.set_node("gpu1", "")
            assert agent.reaction is not None
            agent.reaction._return_at = 0.0
            agent.reaction.watch_for_return()
        return before[-1]

    agent = Agent(node.config, slurm, check)
    for _ in range(3):
        agent.once()
    assert any(f.drains for f in before[1].findings)
    assert not any(f.drains for f in before[2].findings)
    assert len(slurm.made("drain")) == 1


# ---- the loop


def test_a_lost_gpu_is_acted_on_within_a_second_or_so(node: SimNode) -> None:
    slurm = FakeSlurm(job())
    took: list[float] = []

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        node.inject(gpu_lost(3))
        begin = time.monotonic()
        until(lambda: slurm.made("requeue"), "the requeue")
        took.append(time.monotonic() - begin)
        until(lambda: "gpu.lost" in (node.run / "state").read_text(), "the new state")

    Running(Agent(node.config, slurm)).while_running(body)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.lost GPU3 ")
    assert took[0] < 20, "poll_s is 600 s, so this came from the kernel log"


def test_an_application_xid_and_a_forged_line_change_nothing(node: SimNode) -> None:
    slurm = FakeSlurm(job())
    pci = node.hardware.gpu(1).xid_pci

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        node.inject(xid(1, 31, pid=4242))
        # facility user: what `logger` writes to /dev/kmsg
        node.inject(kernel_log(f"NVRM: Xid ({pci}): 79, pid=1, name=x, GPU has fallen off the bus.", priority=14))
        time.sleep(1.0)
        node.inject(xid(2, 95))
        until(lambda: slurm.made("requeue"), "the requeue for the real one")

    Running(Agent(node.config, slurm)).while_running(body)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.xid GPU2 ")


def test_a_blocked_look_does_not_delay_a_lost_gpu(node: SimNode) -> None:
    """The worker sits in a hung driver; the kernel log is followed all the same."""
    slurm = FakeSlurm(job())
    looks: list[float] = []
    release = threading.Event()

    def check(config: Config) -> NodeReport:
        looks.append(time.monotonic())
        if len(looks) > 1:
            release.wait(PATIENCE_S * 2)
        return look_at_node(config)

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        (node.run / "refresh").write_text("")
        until(lambda: len(looks) == 2, "the look that blocks")
        node.inject(gpu_lost(3))
        until(lambda: slurm.made("requeue"), "the requeue")
        release.set()

    Running(Agent(node.config, slurm, check)).while_running(body)
    assert slurm.made("requeue") == ["requeue 7"]


def test_an_epilog_gets_a_fresh_state_at_once(node: SimNode) -> None:
    def body() -> None:
        until((node.run / "state").exists, "the first state")
        before = (node.run / "state").stat().st_ino
        (node.run / "refresh").write_text("")
        until(lambda: (node.run / "state").stat().st_ino != before, "a new state")
        assert not (node.run / "refresh").exists()

    Running(Agent(node.config, FakeSlurm())).while_running(body)


def test_a_check_that_fails_by_a_bug_does_not_end_the_agent(
    node: SimNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_module, "HANG_RECHECK_S", 0.1)
    looks: list[int] = []

    def check(config: Config) -> NodeReport:
        looks.append(1)
        if len(looks) == 1:
            raise ZeroDivisionError
        return look_at_node(config)

    def body() -> None:
        until(lambda: looks, "the look that fails")
        (node.run).mkdir(exist_ok=True)
        (node.run / "refresh").write_text("")
        until((node.run / "state").exists, "a state after all")

    Running(Agent(node.config, FakeSlurm(), check)).while_running(body)
    assert any("could not be checked" in r.message for r in caplog.records)


def test_a_client_that_fails_by_a_bug_does_not_end_the_agent(node: SimNode) -> None:
    slurm = FakeSlurm(job())
    failed: list[str] = []

    def bug(call: str) -> None:
        if len(failed) < 2:
            failed.append(call)
            raise KeyError("job_state")

    slurm.hook = bug

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        node.inject(gpu_lost(3))
        until(lambda: slurm.made("requeue"), "the requeue after all")

    Running(Agent(node.config, slurm)).while_running(body)
    assert len(failed) == 2


def test_a_kernel_log_that_comes_later_is_followed(node: SimNode) -> None:
    log = Path(node.config.probe.kmsg)
    text = log.read_text()
    log.unlink()
    node.toml.write_text(node.toml.read_text().replace("poll_s = 600.0", "poll_s = 0.3"))
    slurm = FakeSlurm(job())
    agent = Agent(node.config, slurm)

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        log.write_text(text)
        until(lambda: agent._klog is not None, "the log is open")
        node.inject(xid(2, 95))
        until(lambda: slurm.made("requeue"), "the requeue")

    Running(agent).while_running(body)
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.xid GPU2 ")


def test_a_hang_in_question_is_looked_at_again_soon(node: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """poll_s is 600 s; the second look that confirms must not wait that long."""
    monkeypatch.setattr(agent_module, "HANG_RECHECK_S", 0.2)
    slurm = FakeSlurm(job())
    looks: list[int] = []

    def check(_: Config) -> NodeReport:
        looks.append(1)
        status = Status.UNKNOWN if len(looks) < 3 else Status.FAIL
        return node.report(Finding("gpu.driver_hang", status, "NVIDIA driver", "nvmlInit blocked for 40 s"))

    def body() -> None:
        until(lambda: slurm.made("requeue"), "the requeue")

    Running(Agent(node.config, slurm, check)).while_running(body)
    assert len(looks) >= 3
    assert slurm.by_name["gpu1"].reason.startswith("ais:gpu.driver_hang NVIDIA driver nvmlInit blocked")


def test_without_a_kernel_log_the_agent_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = SimNode(tmp_path, probe={"kmsg": str(tmp_path / "none")}, node={"poll_s": 0.2})
    slurm = FakeSlurm(job())

    def body() -> None:
        until((node.run / "state").exists, "the first state")
        node.inject(gpu_lost(3))
        until(lambda: slurm.made("requeue"), "the requeue, from the bus")

    Running(Agent(node.config, slurm)).while_running(body)
    assert any("without the kernel log" in r.message for r in caplog.records)


def test_a_state_directory_that_cannot_be_written_is_said_once(
    node: SimNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.run.write_text("a file where the folder should be")
    agent = Agent(node.config, FakeSlurm())
    for _ in range(3):
        agent.once()
    assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1


def test_systemd_is_told(node: SimNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/tmp/aistation-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        try:
            listener.settimeout(PATIENCE_S)
            monkeypatch.setenv("NOTIFY_SOCKET", path)
            monkeypatch.setenv("WATCHDOG_USEC", "400000")
            got: list[str] = []

            def body() -> None:
                while not {"READY=1", "WATCHDOG=1"} <= set(got):
                    got.append(listener.recv(100).decode())

            Running(Agent(node.config, FakeSlurm())).while_running(body)
            while got[-1] != "STOPPING=1":
                got.append(listener.recv(100).decode())
        finally:
            os.unlink(path)
    assert {"READY=1", "WATCHDOG=1", "STOPPING=1"} <= set(got)


# ---- the command


@pytest.fixture
def command(node: SimNode) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        run = subprocess.Popen(
            [sys.executable, "-m", "aistation_slurm", "agent", *options],
            cwd=REPOSITORY,
            env={**node.environment(), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(run)
        return run

    yield start
    for run in started:
        run.kill()
        run.communicate()


def test_sigterm_ends_it_cleanly_and_only_one_may_run(
    node: SimNode, command: Callable[..., subprocess.Popen[str]]
) -> None:
    first = command()
    until((node.run / "state").exists, "the first state")
    second = command()
    said, _ = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, "another `aistation agent` runs" in said) == (3, True)
    first.send_signal(signal.SIGTERM)
    said, _ = first.communicate(timeout=PATIENCE_S)
    assert (first.returncode, said) == (0, "")


def test_once_as_a_command(node: SimNode, command: Callable[..., subprocess.Popen[str]]) -> None:
    node.scontrol()
    healthy = command("--once")
    assert (healthy.communicate(timeout=PATIENCE_S)[0], healthy.returncode) == ("", 0)
    node.inject(ib_down("mlx5_1"))
    sick = command("--once")
    sick.communicate(timeout=PATIENCE_S)
    assert sick.returncode == 1
    assert node.calls() == []


def test_a_broken_configuration_is_said_and_drains_nothing(
    node: SimNode, command: Callable[..., subprocess.Popen[str]]
) -> None:
    node.scontrol()
    node.inject(gpu_lost(3))
    node.toml.write_text(node.toml.read_text() + "\n[agent]\nmodus = 'observe'\n")
    run = command()
    said, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 3
    assert "unknown key 'modus' in [agent]" in said
    assert "Allowed: mode, requeue" in said
    assert node.calls() == []
