"""Lengths of DCP shards out of the bytes of .metadata, made by the pickler with the classes' own names and keys."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aistation_slurm.checkpoints.shard_lengths import describe
from tests.unit.checkpoints.trees import inspect, put, zip_bytes


@dataclass(frozen=True)
class MetadataIndex:
    fqn: str
    offset: Optional[tuple[int, ...]] = None
    index: Optional[int] = None


@dataclass
class _StorageInfo:
    relative_path: str
    offset: int
    length: int
    transform_descriptors: Optional[list[str]] = None


@dataclass
class Old:
    """Before PyTorch 2.6."""

    relative_path: str
    offset: int
    length: int


Old.__qualname__ = "Old_StorageInfo"
globals()["Old_StorageInfo"] = Old


def metadata(files: dict[str, list[int]], info: Any = _StorageInfo, protocol: int = 4, gap: int = 0) -> bytes:
    """``files``: lengths of the tensors in each. As in torch, the path is one and the same object for a file's tensors."""
    storage: dict[MetadataIndex, Any] = {}
    for name, lengths in files.items():
        path, at = "".join(name), 0
        for number, length in enumerate(lengths):
            storage[MetadataIndex(f"layers.{number}.{name[:-7]}", (at, 0), number)] = info(path, at, length)
            at += length + gap
    return pickle.dumps(
        {"state_dict_metadata": {f"layers.{i}": [1, 2] for i in range(9)}, "storage_data": storage}, protocol=protocol
    )


@pytest.mark.parametrize("info", [_StorageInfo, Old])
@pytest.mark.parametrize("protocol", [4, 5])
def test_lengths(tmp_path: Path, info: Any, protocol: int) -> None:
    files = {
        f"__{r}_{f}.distcp": [random.Random(r).randrange(1, 1 << 40) for _ in range(r * 40 + f + 1)]
        for r in range(5)
        for f in (0, 1)
    }
    (tmp_path / ".metadata").write_bytes(metadata(files, info, protocol))
    names, lengths = describe(str(tmp_path / ".metadata"))
    assert names == set(files)
    assert lengths == {name: sum(sizes) for name, sizes in files.items()}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.lists(st.integers(1, 300), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_never_more_than_there_is(tmp_path: Path, counts: list[int], seed: int) -> None:
    """A length that is too small overlooks damage; one that is too large would refuse a whole checkpoint."""
    sizes = random.Random(seed)
    files = {f"__{rank}_0.distcp": [sizes.choice([1, 1000, 70_000]) for _ in range(n)] for rank, n in enumerate(counts)}
    (tmp_path / ".metadata").write_bytes(metadata(files))
    for name, length in describe(str(tmp_path / ".metadata"))[1].items():
        assert length <= sum(files[name])


@pytest.mark.parametrize("protocol", [0, 1, 2, 3])
def test_other_protocols_tell_nothing(tmp_path: Path, protocol: int) -> None:
    (tmp_path / ".metadata").write_bytes(metadata({"__0_0.distcp": [7, 8]}, protocol=protocol))
    assert describe(str(tmp_path / ".metadata")) == ({"__0_0.distcp"}, {})


def test_tensors_that_do_not_lie_side_by_side_tell_nothing(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(metadata({"__0_0.distcp": [7, 8]}, gap=1))
    assert describe(str(tmp_path / ".metadata"))[1] == {}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 3000), at=st.integers(0, 3000), put_in=st.binary(max_size=8))
def test_no_bytes_make_it_fail(tmp_path: Path, cut: int, at: int, put_in: bytes) -> None:
    raw = metadata({"__0_0.distcp": [7, 8, 9], "__1_0.distcp": [1]})[:cut]
    (tmp_path / ".metadata").write_bytes(raw[:at] + put_in + raw[at:])
    names, lengths = describe(str(tmp_path / ".metadata"))
    assert set(lengths) <= names


def test_a_missing_file() -> None:
    assert describe("/nowhere/.metadata") == (set(), {})


def test_a_shard_cut_exactly_between_two_tensors(tmp_path: Path) -> None:
    tensor = zip_bytes()
    for step in (1, 2):
        put(tmp_path, {f"step-{step}/__{rank}_0.distcp": tensor * 3 for rank in (0, 1)})
        put(tmp_path, {f"step-{step}/.metadata": metadata({f"__{r}_0.distcp": [len(tensor)] * 3 for r in (0, 1)})})
    assert inspect(tmp_path).step == 2
    put(tmp_path, {"step-2/__1_0.distcp": tensor * 2})
    seen = inspect(tmp_path)
    assert seen.step == 1
    assert f"__1_0.distcp is cut short ({2 * len(tensor)} bytes of {3 * len(tensor)})" in seen.invalid["step-2"]


def test_what_torch_wrote() -> None:
    """Made by torch 2.13.0: two ranks, FileSystemWriter(thread_count=2), 40 DTensors, a tensor and two objects."""
    names, lengths = describe(str(Path(__file__).with_name("torch-2.13-dcp.metadata")))
    # the sizes of the files on disk
    sizes = {"__0_0.distcp": 34100, "__0_1.distcp": 34100, "__1_0.distcp": 36938, "__1_1.distcp": 35361}
    assert names == set(sizes)
    assert lengths == sizes
