"""``aistation check`` and ``aistation klog`` as a user calls them, in this process."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
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


_own = Path(tempfile.mkdtemp(prefix="aistation-cases-"))
"""Home of the configuration and of what looks remember: the machine's own have no say here."""
atexit.register(shutil.rmtree, _own, ignore_errors=True)
(_own / "aistation.toml").write_text(f"[node]\nstate_dir = {json.dumps(str(_own / 'run'))}\n", encoding="utf-8")


def aistation(*argv: object, input: Union[str, bytes, None] = None, env: Optional[dict[str, str]] = None) -> Answer:
    settings = {"AISTATION_CONFIG": str(_own / "aistation.toml"), **(env or {})}
    done = CliRunner().invoke(cli, [str(a) for a in argv], input=input, env=settings)
    if isinstance(done.exception, AistationError):
        return Answer(3, done.output, str(done.exception))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(done.exit_code, done.stdout)
