"""``aistation check`` and ``aistation klog`` as a user calls them, in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional, Union

from click.testing import CliRunner

from aistation_slurm.cli import cli
from aistation_slurm.errors import AistationError


@dataclass(frozen=True)
class Answer:
    """error: the one line that ``main`` would print for an expected error (exit code 3)."""

    exit_code: int
    output: str
    error: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.output)


def aistation(*argv: object, input: Union[str, bytes, None] = None, env: Optional[dict[str, str]] = None) -> Answer:
    # an empty file: the machine's own configuration has no say here
    settings = {"AISTATION_CONFIG": "/dev/null", **(env or {})}
    done = CliRunner().invoke(cli, [str(a) for a in argv], input=input, env=settings)
    if isinstance(done.exception, AistationError):
        return Answer(3, done.output, str(done.exception))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(done.exit_code, done.stdout)
