"""Fixtures of the make-believe node."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import fakenvml
from tests.unit.cases_health.node import Node


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fakenvml.build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture
def node(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path, library)
    monkeypatch.setenv("FAKE_NVML_STATE", str(made.hardware.nvml.path))
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_SCRIPT_CONTEXT", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    yield made
    for memo in made.state_dir.glob("*-child") if made.state_dir.is_dir() else ():
        try:
            os.killpg(int(memo.read_text().split()[0]), signal.SIGKILL)
        except (ProcessLookupError, ValueError):
            pass
