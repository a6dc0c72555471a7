"""Torn files are told from whole ones by header, end and size; placeholders only by comparison."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aistation_slurm.checkpoints.integrity import check_file, step_inside
from aistation_slurm.checkpoints.model import Grade
from tests.unit.checkpoints.trees import (
    dummy,
    inspect,
    lightning_bytes,
    metadata_bytes,
    put,
    real,
    safetensors_bytes,
    zip_bytes,
)

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03." + bytes(100)


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


FILES = {
    "a whole zip": ("a.pt", zip_bytes(), Grade.CONTENT),
    "a zip cut in half": ("a.pt", zip_bytes()[:300], Grade.TORN),
    "a zip without its last byte": ("a.ckpt", zip_bytes()[:-1], Grade.TORN),
    "a zip whose middle is missing": ("a.pth", zip_bytes()[:100] + zip_bytes()[180:], Grade.TORN),
    "only the first four bytes of a zip": ("a.pt", b"PK\x03\x04", Grade.TORN),
    "the format before PyTorch 1.6": ("a.pt", LEGACY, Grade.CONTENT),
    "no bytes": ("a.pt", b"", Grade.EMPTY),
    "zero bytes": ("a.pt", bytes(5000), Grade.EMPTY),
    "a few bytes of text": ("a.pt", b"dummy", Grade.PLACEHOLDER),
    "another binary format": ("a.pt", b"\x93NUMPY\x01\x00" + bytes(range(200)), Grade.CONTENT),
    "whole safetensors": ("m.safetensors", safetensors_bytes(), Grade.CONTENT),
    "safetensors without tensors": ("m.safetensors", safetensors({"__metadata__": {"format": "pt"}}), Grade.CONTENT),
    "safetensors cut in the data": ("m.safetensors", safetensors_bytes()[:-1], Grade.TORN),
    "safetensors with a byte too many": ("m.safetensors", safetensors_bytes() + b"\0", Grade.TORN),
    "safetensors cut in the header": ("m.safetensors", safetensors_bytes()[:30], Grade.TORN),
    "safetensors whose header is no JSON": ("m.safetensors", struct.pack("<Q", 4) + b"{abc", Grade.TORN),
    "a tensor without offsets": ("m.safetensors", safetensors({"w": {"dtype": "F32"}}), Grade.TORN),
    "offsets of a wrong type": ("m.safetensors", safetensors({"w": {"data_offsets": [0, "9"]}}), Grade.TORN),
    "a deeply nested header": ("m.safetensors", struct.pack("<Q", 200_000) + b'{"a":' * 40_000, Grade.TORN),
    "random bytes": ("m.safetensors", bytes(range(1, 256)), Grade.TORN),
    "text": ("m.safetensors", b"weights go here", Grade.PLACEHOLDER),
    "whole JSON": ("trainer_state.json", b'{"global_step": 3}', Grade.CONTENT),
    "JSON with a byte order mark": ("config.json", b'\xef\xbb\xbf{"a": 1}', Grade.CONTENT),
    "JSON cut short": ("trainer_state.json", b'{"global_step": 3, "log_his', Grade.TORN),
    "JSON with a number of a million digits": ("a.json", b'{"a": ' + b"1" * 1_000_000 + b"}", Grade.TORN),
    "large JSON, ended": ("a.json", b'{"a": "' + b"x" * (17 << 20) + b'"}\n', Grade.CONTENT),
    "large JSON, cut": ("a.json", b'{"a": "' + b"x" * (17 << 20), Grade.TORN),
    "whole .metadata": (".metadata", metadata_bytes("__0_0.distcp"), Grade.CONTENT),
    "cut .metadata": (".metadata", metadata_bytes("__0_0.distcp")[:-1], Grade.TORN),
    ".metadata cut behind a full stop": (".metadata", metadata_bytes("__0_0.distcp")[:30] + b".", Grade.TORN),
    "a shard of two tensors": ("__0_0.distcp", zip_bytes() + zip_bytes(), Grade.CONTENT),
    "a shard cut in its second tensor": ("__0_0.distcp", zip_bytes() + zip_bytes()[:300], Grade.TORN),
    "a shard cut in the middle and filled with zeros": ("__0_0.distcp", zip_bytes()[:300] + bytes(300), Grade.TORN),
    "a shard in another serialization": ("__0_0.distcp", b"\x28\xb5\x2f\xfd" + bytes(range(256)), Grade.CONTENT),
}


@pytest.mark.parametrize(("name", "raw", "grade"), FILES.values(), ids=FILES)
def test_one_file(tmp_path: Path, name: str, raw: bytes, grade: Grade) -> None:
    (tmp_path / name).write_bytes(raw)
    verdict = check_file(str(tmp_path / name))
    assert verdict.grade is grade, verdict.why
    assert bool(verdict.why) == (grade is not Grade.CONTENT)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("a.pt", zip_bytes()),
        ("m.safetensors", safetensors_bytes()),
        ("__0_0.distcp", zip_bytes()),
        (".metadata", metadata_bytes("__0_0.distcp")),
    ],
)
def test_every_cut_is_seen(tmp_path: Path, name: str, whole: bytes) -> None:
    for length in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:length])
        assert check_file(str(tmp_path / name)).grade is not Grade.CONTENT, f"cut at {length} of {len(whole)}"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["a.pt", "m.safetensors", "t.json", ".metadata", "__0_0.distcp", "last.ckpt"]),
    raw=st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=64).map(lambda tail: zip_bytes()[:-22] + b"PK\x05\x06" + tail),
        st.binary(max_size=64).map(lambda text: struct.pack("<Q", len(text)) + b"{" + text),
        st.recursive(st.none() | st.integers() | st.text(), lambda t: st.lists(t) | st.dictionaries(st.text(), t)).map(
            safetensors
        ),
    ),
)
def test_no_bytes_make_it_fail(tmp_path: Path, name: str, raw: bytes) -> None:
    (tmp_path / name).write_bytes(raw)
    assert check_file(str(tmp_path / name)).grade in Grade
    assert step_inside(str(tmp_path / name)) is None


def test_zip64_end_record(tmp_path: Path) -> None:
    """Files over 4 GB have a second end record: made sparse, so that the offsets are real and no space is used."""
    path = tmp_path / "big.pt"
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        archive.writestr("archive/data.pkl", b"x")
        archive.fp.seek(5 << 30)  # type: ignore[union-attr]
        archive.start_dir = 5 << 30
        archive.writestr("archive/data/0", b"y")
    assert path.stat().st_blocks * 512 < 1 << 20
    assert check_file(str(path)).grade is Grade.CONTENT
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 30)
    assert check_file(str(path)).grade is Grade.TORN


def test_global_step_in_the_first_bytes(tmp_path: Path) -> None:
    for step in (0, 7, 255, 256, 65_535, 65_536, 1_000_000):
        (tmp_path / "last.ckpt").write_bytes(lightning_bytes(step))
        assert step_inside(str(tmp_path / "last.ckpt")) == step
    (tmp_path / "last.ckpt").write_bytes(zip_bytes())
    assert step_inside(str(tmp_path / "last.ckpt")) is None


class Bomb:
    """Unpickling it would make the file ``fired``."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.marker), "w"))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    bomb = pickle.dumps({"epoch": 1, "global_step": 5, "x": Bomb(tmp_path / "fired")}, protocol=2)
    put(
        tmp_path,
        {
            "l/last.ckpt": zip_bytes(bomb),
            "d/step-1/.metadata": bomb,
            "d/step-1/__0_0.distcp": bomb,
            "m/iter_0000001/mp_rank_00/model_optim_rng.pt": bomb,
        },
    )
    for below in "ldm":
        assert inspect(tmp_path, below).resume is not None
    assert not (tmp_path / "fired").exists()


def test_a_torn_newest_falls_back_to_the_one_before(tmp_path: Path) -> None:
    for step, cut in ((10, 0), (20, 0), (30, 40)):
        files = dict.fromkeys(("optimizer.pt", "scheduler.pt", "trainer_state.json"), real)
        put(tmp_path / f"checkpoint-{step}", {**files, "model.safetensors": safetensors_bytes()[: -cut or None]})
    seen = inspect(tmp_path)
    assert seen.resume == "checkpoint-20"
    assert "model.safetensors has" in seen.invalid["checkpoint-30"]


@pytest.mark.parametrize("placeholder", [b"", b"x", bytes(4096)], ids=["empty", "text", "zeros"])
def test_placeholders_beside_content_are_damage(tmp_path: Path, placeholder: bytes) -> None:
    files = dict.fromkeys(("model.safetensors", "optimizer.pt", "trainer_state.json"), real)
    put(tmp_path / "checkpoint-10", files)
    put(tmp_path / "checkpoint-20", {**files, "optimizer.pt": placeholder})
    put(tmp_path / "checkpoint-30", {**files, "model.safetensors": placeholder, "optimizer.pt": placeholder})
    seen = inspect(tmp_path)
    assert seen.resume == "checkpoint-10"
    assert list(seen.invalid) == ["checkpoint-30", "checkpoint-20"]


def test_placeholders_only_are_judged_by_name_with_a_warning(tmp_path: Path) -> None:
    files = dict.fromkeys(("model.safetensors", "optimizer.pt", "trainer_state.json"), dummy)
    put(tmp_path / "checkpoint-10", files)
    put(tmp_path / "checkpoint-20", files)
    seen = inspect(tmp_path)
    assert seen.resume == "checkpoint-20"
    assert "its name alone was judged" in seen.warnings


def test_empty_weights_in_a_real_run_are_damage_even_alone(tmp_path: Path) -> None:
    """After a power cut XFS leaves files without bytes; trainer_state.json shows that the Trainer really ran."""
    put(tmp_path / "checkpoint-10", {"model.safetensors": b"", "optimizer.pt": b"", "trainer_state.json": real})
    seen = inspect(tmp_path)
    assert seen.resume is None
    assert "is empty" in seen.invalid["checkpoint-10"]
    assert seen.exit_code == 1
