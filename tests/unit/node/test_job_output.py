"""What a failed job's output says: who asks the controller how often, and what becomes of the node's Comment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from aistation_slurm.node import job_output
from aistation_slurm.node.hang_job import WatchedJob
from aistation_slurm.node.job_output import say_what_it_said
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.slurm.client import Job
from tests.unit.node.fake_slurm import FakeSlurm
from tests.unit.node.sim import SimNode

COMPLETING = frozenset({"COMPLETING"})
SAID = "[rank3]: NCCL error: remote process exited or there was a network error"


class Asked:
    """Slurm's answers about job 7, the last one for ever; how often it was asked, and the seconds slept in between."""

    def __init__(self, *answers: Optional[Job]) -> None:
        self.answers, self.count, self.slept = list(answers), 0, 0.0

    def show_job(self, *_: Any) -> Optional[WatchedJob]:
        self.count += 1
        job = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return None if job is None else WatchedJob(job, ("/out",), "/", "gpu1", None)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def monotonic(self) -> float:
        return self.slept


def say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: Asked, name: str = "gpu1", comment: str = "rack 12"
) -> tuple[str, str]:
    """The line for the log, and the node's Comment after it."""
    monkeypatch.setattr(job_output, "show_job", asked.show_job)
    monkeypatch.setattr(job_output, "time", asked)
    monkeypatch.setattr(job_output, "read_ends", lambda *_: (SAID, ""))
    slurm = FakeSlurm()
    slurm.set_node(name, "")
    slurm.by_name[name] = replace(slurm.by_name[name], comment=comment)
    record = JobRecord(7, 1000, 0, frozenset(), "auto", 1.0)
    return say_what_it_said(SimNode(tmp_path).config, slurm, record, name), slurm.by_name[name].comment


FAILED = Job(7, "FAILED", nodes=("gpu1", "gpu2"), exit_code=1)


def test_the_first_node_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = Asked(replace(FAILED, flags=COMPLETING), FAILED)
    said, comment = say(monkeypatch, tmp_path, asked)
    assert said.startswith("its output tells of communication, first in rank 3")
    assert comment == "rack 12 [ais-said 7@0@communication@3]"


@pytest.mark.parametrize("flags", [frozenset(), COMPLETING])
def test_every_other_node_asks_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: frozenset[str]) -> None:
    asked = Asked(replace(FAILED, flags=flags))
    assert say(monkeypatch, tmp_path, asked, "gpu2") == ("", "rack 12")
    assert (asked.count, asked.slept) == (1, 0.0)


def test_a_job_that_does_not_end_is_asked_for_less_and_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = Asked(replace(FAILED, flags=COMPLETING))
    assert say(monkeypatch, tmp_path, asked)[0] == ""
    assert asked.count <= 6


def test_a_comment_that_cannot_be_written_back_as_it_was_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said, comment = say(monkeypatch, tmp_path, Asked(FAILED), comment="r\ufffdck")
    assert said == "what its output says is not noted: the node's Comment could not be written back as it was"
    assert comment == "r\ufffdck"
