"""Builds checkpoint trees on disk: from the listings in tests/cases, and with file contents as the frameworks write them."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional, Union

import yaml
from click.testing import CliRunner

from aistation_slurm.cli import cli
from aistation_slurm.errors import AistationError

CASES = Path(__file__).resolve().parents[2] / "cases"

Content = Union[bytes, Callable[[str], bytes]]


def case(number: str) -> dict[str, Any]:
    """One public bug report: ``input`` is a listing, ``expected`` the facts that must come out."""
    (path,) = CASES.glob(f"{number}-*.yaml")
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def zip_bytes(text: bytes = b"tensors" * 40) -> bytes:
    """What torch.save writes, as far as header and end go: an uncompressed zip whose first member is data.pkl."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", text)
        archive.writestr("archive/data/0", bytes(200))
    return out.getvalue()


def safetensors_bytes(tensor_bytes: int = 256) -> bytes:
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [tensor_bytes // 4], "data_offsets": [0, tensor_bytes]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(tensor_bytes)


def lightning_bytes(step: int) -> bytes:
    """A Lightning checkpoint's head: the dictionary begins with epoch and global_step."""
    return zip_bytes(pickle.dumps({"epoch": 3, "global_step": step, "pytorch-lightning_version": "2.4.0"}, protocol=2))


def metadata_bytes(*shards: str) -> bytes:
    """DCP's .metadata: a pickle in which the shards' names stand as text."""
    return pickle.dumps({"storage_data": [(f"layer{i}", shard) for i, shard in enumerate(shards)]})


def real(path: str) -> bytes:
    """Content as the frameworks write it, by the file's name."""
    name = path.rpartition("/")[2]
    if name == "trainer_state.json":
        return json.dumps({"global_step": 1, "log_history": [{"loss": 1.0}]}).encode()
    if name.endswith(".json"):
        return b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
    if name.endswith(".safetensors"):
        return safetensors_bytes()
    if name == ".metadata":
        return pickle.dumps({"state_dict_metadata": {"weight": [1, 2, 3]}, "planner_data": None})
    return zip_bytes()


def touched(path: str) -> bytes:
    return b""


def dummy(path: str) -> bytes:
    return b"x"


def put(root: Path, files: Mapping[str, Optional[Content]]) -> Path:
    """Make files below ``root``: bytes, a function of the name, or None for an empty folder."""
    for name, content in files.items():
        target = root / name
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content(name))
    return root


_LINE = re.compile(r"(?P<path>[^\s:{]+(?:\{(?P<names>[^}]*)\})?)(?P<rest>.*)")


def build(root: Path, listing: str, content: Callable[[str], bytes]) -> Path:
    """Make the tree of a case's listing.

    Lines are ``dir/file``, ``dir/{a,b}``, ``dir/``, ``dir/   (empty)``, ``file: text``, ``link -> target``, ``file  mtime HH:MM``,
    ``name (remark)``, ``dir/ missing``; some have two entries on a line.
    """
    for line in listing.splitlines():
        for part in re.split(r"\s{2,}(?=[\w.]+/)|(?<=/)\s(?=\w+/)", line.strip()):
            _entry(root, part.strip(), content)
    return root


def _entry(root: Path, text: str, content: Callable[[str], bytes]) -> None:
    match = _LINE.match(text)
    if not match or text.endswith(" missing"):
        return
    path, rest = match["path"], match["rest"].strip()
    if match["names"] is not None:
        folder = path.partition("{")[0]
        put(root, {folder + name: content for name in match["names"].split(",")})
    elif rest.startswith("->"):
        put(root, {path: b""})
        (root / path).unlink()
        (root / path).symlink_to(rest[2:].split("(")[0].strip())
    elif path.endswith("/"):
        put(root, {path: None})
    elif rest.startswith(":"):
        put(root, {path: (rest[1:].strip().strip('"') + "\n").encode()})
    else:
        put(root, {path: content})
        clock = re.search(r"mtime (\d+):(\d+)", rest)
        if clock:
            moment = 1_700_000_000 + int(clock[1]) * 3600 + int(clock[2]) * 60
            os.utime(root / path, (moment, moment))


class Inspected:
    """The answer of ``aistation ckpt inspect --json``."""

    def __init__(self, exit_code: int, output: str, root: Path) -> None:
        self.exit_code = exit_code
        self.output = output
        self.root = root
        self.json: dict[str, Any] = json.loads(output) if output.startswith("{") else {}

    @property
    def resume(self) -> Optional[str]:
        """Path of the chosen checkpoint, relative to the tree."""
        return os.path.relpath(self.json["resume"]["path"], self.root) if self.json["resume"] else None

    @property
    def step(self) -> Optional[int]:
        return self.json["resume"]["step"] if self.json["resume"] else None

    @property
    def valid(self) -> list[str]:
        return [os.path.relpath(c["path"], self.root) for c in self.json["checkpoints"] if c["valid"]]

    @property
    def invalid(self) -> dict[str, str]:
        """relative path -> why."""
        return {os.path.relpath(c["path"], self.root): c["why"] for c in self.json["checkpoints"] if not c["valid"]}

    @property
    def warnings(self) -> str:
        return "\n".join(self.json["warnings"])


def inspect(root: Path, below: str = ".", *options: str) -> Inspected:
    """Run ``aistation ckpt inspect --json``; an AistationError ends it with 3, as in main()."""
    result = CliRunner().invoke(cli, ["ckpt", "inspect", str(root / below), "--json", *options])
    if isinstance(result.exception, AistationError):
        return Inspected(3, str(result.exception), root)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Inspected(result.exit_code, result.output, root)
