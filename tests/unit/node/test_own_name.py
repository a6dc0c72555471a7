from __future__ import annotations

from pathlib import Path

import pytest

from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.node.own_name import OwnName, nodes_on
from aistation_slurm.slurm.client import Node
from tests.unit.node.fake_slurm import FakeSlurm


@pytest.fixture(autouse=True)
def not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)


def slurm(**hosts: str) -> FakeSlurm:
    """NodeName=NodeHostName."""
    fake = FakeSlurm()
    fake.by_name = {name: Node(name=name, state="IDLE", hostname=host) for name, host in hosts.items()}
    return fake


@pytest.mark.parametrize(
    ("host", "hosts", "found"),
    [
        ("gpu1", {"gpu1": "gpu1", "gpu2": "gpu2"}, ["gpu1"]),
        ("rack1-h3", {"gpu1": "rack1-h3", "gpu2": "gpu1"}, ["gpu1"]),
        ("gpu1", {"gpu1": "rack1-h3", "gpu2": "gpu1"}, ["gpu2"]),
        ("gpu1", {"gpu1": "rack1-h3"}, []),
        ("gpu1.example.org", {"n1": "gpu1"}, ["n1"]),
        ("gpu1.example.org", {"n1": "gpu1.example.org", "n2": "gpu1"}, ["n1"]),
        ("gpu1.example.org", {"n1": "gpu1.example.com"}, []),
        ("gpu1", {"n1": "gpu1.example.org"}, ["n1"]),
        ("gpu1", {"n1": "gpu1.a.org", "n2": "gpu1.b.org"}, ["n1", "n2"]),
        ("big", {"n1": "big", "n2": "big"}, ["n1", "n2"]),
        ("gpu1", {"n1": "gpu10", "n2": ""}, []),
    ],
)
def test_the_host_that_runs_the_slurmd_decides_and_not_the_nodes_name(
    host: str, hosts: dict[str, str], found: list[str]
) -> None:
    assert nodes_on(host, slurm(**hosts).nodes()) == found


def test_slurmds_own_word_needs_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    fake = slurm(gpu1="host1")
    assert OwnName(str(tmp_path), "host1").certain(fake) == "n7"
    assert fake.calls == []


def test_the_name_is_asked_for_once_and_kept_over_restarts(tmp_path: Path) -> None:
    fake = slurm(n1="host1", n2="host2")
    own = OwnName(str(tmp_path), "host1")
    assert (own.known(), own.guess()) == ("", "host1")
    assert [own.certain(fake), own.certain(fake), own.guess()] == ["n1", "n1", "n1"]
    assert OwnName(str(tmp_path), "host1").certain(fake) == "n1"
    assert len(fake.calls) == 1


@pytest.mark.parametrize("text", ["", "boot host1 n9 1", "x", "\0", "a b c d e"])
def test_a_kept_name_of_another_boot_or_host_is_not_believed(tmp_path: Path, text: str) -> None:
    (tmp_path / "node-name").write_text(text)
    assert OwnName(str(tmp_path), "host1").certain(slurm(n1="host1")) == "n1"


def test_a_kept_name_is_asked_for_again_after_a_day(tmp_path: Path) -> None:
    now = [1000.0]
    fake = slurm(n1="host1")
    own = OwnName(str(tmp_path), "host1", lambda: now[0])
    assert own.certain(fake) == "n1"
    now[0] += 90_000
    fake.by_name = {"n2": Node(name="n2", state="IDLE", hostname="host1")}
    assert own.certain(fake) == "n2"


@pytest.mark.parametrize(
    ("hosts", "said"), [({"n1": "host1", "n2": "host1"}, "n1, n2"), ({"host1": "other"}, "no node")]
)
def test_in_doubt_there_is_no_name_and_it_is_said_what_to_set(tmp_path: Path, hosts: dict[str, str], said: str) -> None:
    with pytest.raises(SlurmRefused, match=said) as refused:
        OwnName(str(tmp_path), "host1").certain(slurm(**hosts))
    assert "NodeHostName=host1" in str(refused.value)
    assert "set SLURMD_NODENAME" in str(refused.value)


def test_a_controller_that_is_silent_tells_no_name(tmp_path: Path) -> None:
    fake = slurm(host1="host1")
    fake.down = True
    with pytest.raises(SlurmUnavailable):
        OwnName(str(tmp_path), "host1").certain(fake)
    assert OwnName(str(tmp_path), "host1").known() == ""


def test_a_state_directory_that_cannot_be_written_costs_a_request_a_process(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    fake = slurm(n1="host1")
    own = OwnName(str(tmp_path / "run"), "host1")
    assert [own.certain(fake), own.certain(fake)] == ["n1", "n1"]
    assert len(fake.calls) == 1
