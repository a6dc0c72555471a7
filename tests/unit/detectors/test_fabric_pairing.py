"""Which HCA is near which GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from aistation_slurm.detectors.fabric.pairing import BRIDGE, SWITCH, SYSTEM, Near, distance, nearest, nearness
from aistation_slurm.probes.pci_path import read_pci_paths

ROOT_A, ROOT_B = "pci0000:15", "pci0000:97"
SWITCH_A, SWITCH_B = (ROOT_A, "0000:15:01.0", "0000:16:00.0"), (ROOT_A, "0000:15:03.0", "0000:26:00.0")
GPU_A, HCA_A = (*SWITCH_A, "0000:17:00.0", "0000:18:00.0"), (*SWITCH_A, "0000:17:01.0", "0000:19:00.0")
GPU_B, HCA_B = (*SWITCH_B, "0000:27:00.0", "0000:28:00.0"), (*SWITCH_B, "0000:27:01.0", "0000:29:00.0")
FAR = (ROOT_B, "0000:97:01.0", "0000:98:00.0")


@pytest.mark.parametrize(
    ("a", "b", "how"),
    [(GPU_A, HCA_A, SWITCH), (GPU_A, HCA_B, BRIDGE), (GPU_A, FAR, SYSTEM), (FAR, GPU_B, SYSTEM)],
)
def test_nearness(a: tuple[str, ...], b: tuple[str, ...], how: str) -> None:
    assert nearness(a, b) == nearness(b, a) == how
    assert distance(a, b) == distance(b, a)


def test_any_way_within_a_host_bridge_is_shorter_than_one_between_them() -> None:
    assert distance(GPU_A, HCA_A) < distance(GPU_A, HCA_B) < distance(GPU_A, FAR)
    assert distance(GPU_A, (*GPU_A[:-1], "0000:18:00.1")) == 2, "another function of the card"


def test_nearest() -> None:
    hcas = {"mlx5_1": HCA_B, "mlx5_0": HCA_A, "mlx5_9": FAR}
    assert nearest({"GPU0": GPU_A, "GPU1": GPU_B}, hcas) == {
        "GPU0": Near(("mlx5_0",), SWITCH),
        "GPU1": Near(("mlx5_1",), SWITCH),
    }
    assert nearest({"GPU0": GPU_A}, {"b": FAR, "a": FAR}) == {"GPU0": Near(("a", "b"), SYSTEM)}
    assert nearest({"GPU0": GPU_A}, {}) == {}


def test_paths_from_links(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices"
    folder.mkdir(parents=True)
    (folder / "0000:18:00.0").symlink_to("../../../devices/" + "/".join(GPU_A))
    (folder / "10000:e1:00.0").symlink_to(
        "../../../devices/pci0000:e0/0000:e0:05.5/pci10000:e0/10000:e0:01.0/10000:e1:00.0"
    )
    (folder / "0000:19:00.0").mkdir()
    (folder / "0000:1a:00.0").symlink_to("../elsewhere")
    wanted = ["0000:18:00.0", "0000:19:00.0", "0000:1a:00.0", "nowhere", "\0", "10000:e1:00.0"]
    found = read_pci_paths(tmp_path, wanted)
    assert found["0000:18:00.0"] == GPU_A
    assert found["10000:e1:00.0"][-1] == "10000:e1:00.0"
    assert set(found) == {"0000:18:00.0", "10000:e1:00.0"}
