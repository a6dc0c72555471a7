from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.task_prolog.slurm_tools import Tools


@pytest.fixture
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """A folder of its own, since the test's may be a checkpoint directory."""
    return Tools(Path(tmp_path_factory.mktemp("slurm")))
