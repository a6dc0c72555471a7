"""Checkpoints in the layout of the Hugging Face Trainer, and the loss log.

``checkpoint-N/{config.json, model.safetensors, optimizer.pt, trainer_state.json}``: written into ``tmp-checkpoint-N``,
trainer_state.json last, then renamed. model.safetensors follows the format's specification; optimizer.pt is a zip file as
torch.save makes it, but with plain numbers inside, since nothing here may need pickle.
"""

from __future__ import annotations

import array
import json
import os
import re
import shutil
import struct
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CheckpointError", "State", "load", "log_loss", "save"]


class CheckpointError(Exception):
    """A checkpoint cannot be read."""


@dataclass
class State:
    """step: optimizer steps done; weights and momentum: doubles, of the same length."""

    step: int
    weights: array.array[float]
    momentum: array.array[float]


def save(output: Path, state: State, history: list[dict[str, float]], keep: int) -> Path:
    """Write ``checkpoint-<step>`` below ``output``; it appears whole or not at all. Removes all but the newest ``keep``."""
    staging, final = output / f"tmp-checkpoint-{state.step}", output / f"checkpoint-{state.step}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    _write(staging / "config.json", json.dumps({"model_type": "two_moons", "parameters": len(state.weights)}).encode())
    _write(staging / "model.safetensors", _safetensors(state.weights))
    with zipfile.ZipFile(staging / "optimizer.pt", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/momentum.f64", state.momentum.tobytes())
        archive.writestr("archive/version", "1\n")
    _sync(staging / "optimizer.pt")
    trainer_state = {"global_step": state.step, "log_history": history[-50:]}
    _write(staging / "trainer_state.json", json.dumps(trainer_state).encode())
    if final.exists():  # a torn one of the same step, from which nobody resumed
        shutil.rmtree(final)
    staging.rename(final)
    _sync(output)
    for old in _all(output)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load(path: Path) -> State:
    """Read a checkpoint. Raises CheckpointError."""
    try:
        step = int(json.loads((path / "trainer_state.json").read_text())["global_step"])
        weights = _read_safetensors((path / "model.safetensors").read_bytes())
        momentum = array.array("d")
        with zipfile.ZipFile(path / "optimizer.pt") as archive:
            momentum.frombytes(archive.read("archive/momentum.f64"))
    except (OSError, ValueError, KeyError, TypeError, struct.error, zipfile.BadZipFile) as exc:
        raise CheckpointError(f"cannot resume from {path}: {exc}") from exc
    if len(momentum) != len(weights):
        raise CheckpointError(f"cannot resume from {path}: {len(weights)} weights, {len(momentum)} momenta")
    return State(step, weights, momentum)


def log_loss(path: Path, attempt: int, step: int, loss: float) -> None:
    """Append a line to the loss log; the header is written with the first one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        if log.tell() == 0:
            log.write("attempt,step,time,loss\n")
        log.write(f"{attempt},{step},{time.time():.3f},{loss:.6f}\n")


def _all(output: Path) -> list[Path]:
    """The checkpoints, oldest first."""
    found = [path for path in output.iterdir() if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def _safetensors(weights: array.array[float]) -> bytes:
    data = weights.tobytes()
    entry = {"dtype": "F64", "shape": [len(weights)], "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "weights": entry}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def _read_safetensors(raw: bytes) -> array.array[float]:
    (length,) = struct.unpack_from("<Q", raw)
    start, end = json.loads(raw[8 : 8 + length])["weights"]["data_offsets"]
    weights = array.array("d")
    weights.frombytes(raw[8 + length + start : 8 + length + end])
    return weights


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
