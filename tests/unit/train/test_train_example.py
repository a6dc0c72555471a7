"""examples/train as two local processes, without Slurm: it learns, saves, and continues exactly where it was killed."""

from __future__ import annotations

import csv
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aistation_slurm.checkpoints.choose import resume_args
from aistation_slurm.checkpoints.inspect import inspect

TRAIN = Path(__file__).resolve().parents[3] / "examples" / "train"
DEADLINE_S = 120


class Ranks:
    """The processes of one attempt; ended with the test."""

    def __init__(
        self, output: Path, attempt: int, *args: str, world: int = 2, env: dict[str, str] | None = None
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, str(TRAIN / "train.py"), "--output-dir", str(output), *args]
        shared = {"WORLD_SIZE": str(world), "MASTER_PORT": str(port), "AISTATION_ATTEMPT": str(attempt), **(env or {})}
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        self.processes = [
            subprocess.Popen(
                command,
                env={**clean, **shared, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]

    def finish(self) -> tuple[list[int], str, str]:
        """Exit codes, and the outputs of all ranks one after the other."""
        outputs = [process.communicate(timeout=DEADLINE_S) for process in self.processes]
        return [p.returncode for p in self.processes], "".join(o for o, _ in outputs), "".join(e for _, e in outputs)

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def started() -> Iterator[list[Ranks]]:
    attempts: list[Ranks] = []
    yield attempts
    for ranks in attempts:
        ranks.kill()


def losses(output: Path) -> list[tuple[int, int, float]]:
    """(attempt, step, loss) of every line of the log."""
    with (output / "loss.csv").open(newline="") as file:
        return [(int(row["attempt"]), int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def test_learns_and_saves_in_a_layout_that_the_reader_knows(tmp_path: Path, started: list[Ranks]) -> None:
    started.append(Ranks(tmp_path, 0, "--steps=60", "--save-steps=20", "--save-total-limit=2"))
    codes, out, err = started[-1].finish()
    assert codes == [0, 0], err
    assert out.count("\nstep ") + out.startswith("step ") == 60, "one line per step, from rank 0 only"
    curve = [loss for _, _, loss in losses(tmp_path)]
    assert sum(curve[-10:]) < 0.5 * sum(curve[:10])
    seen = inspect(tmp_path)
    assert [(c.step, c.valid) for c in seen.checkpoints] == [(60, True), (40, True)], "the newest two are kept"
    assert not list(tmp_path.glob("tmp-*"))


def test_continues_after_a_kill_as_if_it_had_not_happened(tmp_path: Path, started: list[Ranks]) -> None:
    started.append(Ranks(tmp_path / "whole", 0, "--steps=40"))
    assert started[-1].finish()[0] == [0, 0]

    started.append(Ranks(tmp_path / "killed", 0, "--steps=40", "--step-time=0.05"))
    wait_for(tmp_path / "killed" / "checkpoint-10" / "trainer_state.json")
    started[-1].kill()
    seen = inspect(tmp_path / "killed")
    assert seen.resume is not None
    assert 10 <= (seen.resume.step or 0) < 40
    started.append(Ranks(tmp_path / "killed", 1, "--steps=40", *resume_args(seen.resume).split()))
    codes, out, err = started[-1].finish()
    assert codes == [0, 0], err
    assert f"at step {seen.resume.step}" in out
    again = {step: loss for attempt, step, loss in losses(tmp_path / "killed") if attempt == 1}
    whole = {step: loss for _, step, loss in losses(tmp_path / "whole")}
    assert min(again) == (seen.resume.step or 0) + 1
    assert all(again[step] == pytest.approx(whole[step], abs=1e-6) for step in again)


def test_the_other_rank_ends_when_one_dies(tmp_path: Path, started: list[Ranks]) -> None:
    started.append(Ranks(tmp_path, 0, "--steps=1000000", "--step-time=0.01"))
    wait_for(tmp_path / "checkpoint-5")
    started[-1].processes[1].send_signal(signal.SIGKILL)
    codes, _, err = started[-1].finish()
    assert codes == [1, -signal.SIGKILL]
    assert "another rank is lost" in err


def test_refuses_a_broken_checkpoint(tmp_path: Path, started: list[Ranks]) -> None:
    started.append(Ranks(tmp_path, 0, "--steps=5", world=1))
    assert started[-1].finish()[0] == [0]
    weights = tmp_path / "checkpoint-5" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    started.append(Ranks(tmp_path, 1, "--steps=9", f"--resume_from_checkpoint={tmp_path}/checkpoint-5", world=1))
    codes, _, err = started[-1].finish()
    assert codes == [1]
    assert "cannot resume from" in err


def test_first_host_of_a_nodelist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TRAIN))
    from allreduce import first_host

    cases = {
        "gpu[3-4,9]": "gpu3",
        "a1,b2": "a1",
        "node007": "node007",
        "rack1-n[08-10]-ib,x": "rack1-n08-ib",
        "n[5]": "n5",
    }
    assert {text: first_host(text) for text in cases} == cases
