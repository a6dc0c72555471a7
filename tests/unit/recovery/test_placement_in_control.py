"""The watchdog's placement, which works in a thread of its own, changes nothing from a host that is not in control."""

from __future__ import annotations

import pytest

from aistation_slurm.cli import watchdog
from aistation_slurm.config import Config
from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.recovery.primary import Primary
from tests.unit.node.fake_slurm import FakeSlurm, job


@pytest.mark.parametrize("acts", [True, False])
def test_only_the_host_in_control_corrects_jobs(monkeypatch: pytest.MonkeyPatch, acts: bool) -> None:
    slurm = FakeSlurm(job())
    monkeypatch.setattr(watchdog, "connect", lambda _: slurm)
    monkeypatch.setattr(Primary, "acts", lambda *_: acts)
    placement = watchdog._placement(Config())
    if acts:
        placement._client.update_job(job(), AdminComment="x")
    else:
        with pytest.raises(SlurmUnavailable, match="nothing is changed from here"):
            placement._client.update_job(job(), AdminComment="x")
    assert len(slurm.made("update")) == acts
