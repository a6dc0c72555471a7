"""``aistation check --learn``."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aistation_slurm.config import parse
from tests.cluster import faults
from tests.cluster.hardware import Hardware
from tests.unit.cases_health.commands import aistation


def hardware(folder: Path, roce: bool) -> Hardware:
    made = Hardware(folder / "aisim", "gpu1", gpus=4, hcas=4)
    made.folder.mkdir()
    made.roce = roce
    made.make_healthy()
    return made


@pytest.mark.parametrize(
    ("roce", "expected"),
    [
        (False, {"gpus": 4, "hca_ports": 4, "rate_gbps": 400}),
        (True, {"gpus": 4, "hca_ports": 4, "roce_gid_index": 3, "mtu": 9000}),
    ],
    ids=["ib", "roce"],
)
def test_what_is_learned_is_a_configuration_that_the_node_fulfils(
    tmp_path: Path, roce: bool, expected: dict[str, object]
) -> None:
    made = hardware(tmp_path, roce)
    answer = aistation("check", "--root", made.root, "--learn")
    assert answer.exit_code == 0
    assert msgspec.toml.decode(answer.output) == {"expect": expected}
    assert "GPU2 0000:3a:00.0 is nearest to mlx5_2: same host bridge" in answer.output
    parse(answer.output, "learned")
    toml = tmp_path / "expect.toml"
    toml.write_text(answer.output)
    assert aistation("check", "--root", made.root, "--config", toml, "--json").json["status"] == "ok"
    faults.ib_down("mlx5_3").apply(made)
    assert aistation("check", "--root", made.root, "--config", toml, "--json").json["status"] == "fail"


def test_a_sick_node_is_said_to_be_sick(tmp_path: Path) -> None:
    made = hardware(tmp_path, roce=False)
    faults.ib_down("mlx5_3").apply(made)
    answer = aistation("check", "--root", made.root, "--learn")
    assert answer.exit_code == 1
    assert "# NOT IN ORDER: fabric.port_state mlx5_3/1: DOWN" in answer.output
    assert msgspec.toml.decode(answer.output)["expect"]["hca_ports"] == 3


@pytest.mark.parametrize("other", ["--act", "--json", "--only=fabric.*"])
def test_learn_stands_alone(other: str) -> None:
    assert aistation("check", "--learn", other).exit_code == 2
