"""A stand-in for Slurm's commands that answers with recorded text; a command that was not recorded is a test error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Union

from aistation_slurm.config import Slurm
from aistation_slurm.slurm.cli_backend import CliBackend

__all__ = ["Replies", "backend", "recorded"]

Answer = Union[str, Exception]


def recorded(name: str, version: str = "22.05.8") -> str:
    """Text that this version of Slurm printed on the test cluster."""
    return (Path(__file__).parent / "recorded" / version / name).read_text(encoding="utf-8")


class Replies:
    """``{"squeue": text}``: the answer to the first key that the command line begins with; keeps what was asked."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], *, timeout_s: float, conf: str = "") -> str:
        line = " ".join([Path(argv[0]).name, *argv[1:]])
        self.asked.append(line)
        matches = [answer for start, answer in self.answers.items() if line.startswith(start)]
        assert matches, f"not recorded: {line}"
        if isinstance(matches[0], Exception):
            raise matches[0]
        return matches[0]


def backend(answers: Mapping[str, Answer]) -> tuple[CliBackend, Replies]:
    replies = Replies(answers)
    return CliBackend(Slurm(), runner=replies), replies
