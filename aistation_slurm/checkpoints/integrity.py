"""Is one file whole? Judged by its header, its end and its size; nothing is unpickled and tensors are not read.

torch.save writes a zip (PyTorch 1.6 and later; https://pytorch.org/docs/stable/notes/serialization.html) whose central
directory is written last, so a cut file has no end record. safetensors
(https://huggingface.co/docs/safetensors/index#format): 8 bytes little-endian header length, JSON header with
``data_offsets``, then exactly the data.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.checkpoints.folder import OpenFile, open_regular
from aistation_slurm.checkpoints.model import Grade

__all__ = ["FileVerdict", "check_file", "read_json", "step_inside"]

_JSON_LIMIT = 16 << 20
_SAFETENSORS_HEADER_MAX = 100_000_000  # the format's own limit
_TINY = 64
_ZIP_END = 22
_ZIP_TAIL = _ZIP_END + 65_535  # end record and the longest comment


@dataclass(frozen=True)
class FileVerdict:
    """grade and, below ``CONTENT``, the reason as it reads after the file's name ("is empty")."""

    grade: Grade
    why: str = ""
    size: int = 0
    mtime: float = 0.0


def check_file(path: str) -> FileVerdict:
    """Judge one file by the format that its name promises. Never raises: what cannot be read is ``TORN``."""
    name = path.rpartition("/")[2]
    try:
        with open_regular(path) as file:
            verdict = _check_open(file, name)
            return FileVerdict(verdict.grade, verdict.why, file.size, file.mtime)
    except OSError as exc:
        return FileVerdict(Grade.TORN, f"cannot be read ({exc.strerror or exc})")


def _check_open(file: OpenFile, name: str) -> FileVerdict:
    if file.size == 0:
        return FileVerdict(Grade.EMPTY, "is empty")
    head = file.at(0, _TINY)
    if not head.strip(b"\0"):
        return FileVerdict(Grade.EMPTY, "holds zero bytes only at its start", file.size)
    if name.endswith(".json"):
        return _check_json(file)
    if name.endswith(".safetensors"):
        return _check_safetensors(file, head)
    if name == ".metadata":
        return _check_pickle(file, head)
    if name.endswith(".distcp"):
        return _check_shard(file, head)
    return _check_torch(file, head)


def _placeholder(file: OpenFile, head: bytes) -> Optional[FileVerdict]:
    if file.size < _TINY or all(32 <= b < 127 or b in b"\t\r\n" for b in head):
        return FileVerdict(Grade.PLACEHOLDER, f"holds {file.size} bytes that are no tensors", file.size)
    return None


def _check_torch(file: OpenFile, head: bytes) -> FileVerdict:
    if head[:4] == b"PK\x03\x04":
        return _check_zip(file)
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return FileVerdict(Grade.CONTENT, size=file.size)  # format before PyTorch 1.6: no end mark
    return _placeholder(file, head) or FileVerdict(Grade.CONTENT, size=file.size)


def _check_shard(file: OpenFile, head: bytes) -> FileVerdict:
    """DCP: one torch.save file behind the other (``_write_item`` in torch/distributed/checkpoint/filesystem.py), so the last
    bytes are the end record of the last one, which has no comment. Another serialization has no mark to look for.
    """
    if head[:4] != b"PK\x03\x04":
        return _placeholder(file, head) or FileVerdict(Grade.CONTENT, size=file.size)
    end = file.at(max(0, file.size - _ZIP_END), _ZIP_END)
    if end[:4] != b"PK\x05\x06" or end[-2:] != b"\0\0":
        return FileVerdict(Grade.TORN, "is cut short (its last tensor has no end record)", file.size)
    return FileVerdict(Grade.CONTENT, size=file.size)


def _check_zip(file: OpenFile) -> FileVerdict:
    base = max(0, file.size - _ZIP_TAIL)
    tail = file.at(base, _ZIP_TAIL)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > len(tail):
        return FileVerdict(Grade.TORN, "is cut short (a zip file without its end record)", file.size)
    length, start = struct.unpack("<II", tail[at + 12 : at + 20])
    end = base + at
    if start == 0xFFFFFFFF or length == 0xFFFFFFFF:
        locator = file.at(end - 20, 20)
        if locator[:4] != b"PK\x06\x07":
            return FileVerdict(Grade.TORN, "is cut short (a zip file without its zip64 locator)", file.size)
        end = int(struct.unpack("<Q", locator[8:16])[0])
        record = file.at(end, 56) if end < file.size else b""
        if record[:4] != b"PK\x06\x06" or len(record) < 56:
            return FileVerdict(Grade.TORN, "is damaged (no zip64 end record where it should be)", file.size)
        length, start = struct.unpack("<QQ", record[40:56])
    if start + length > end or (length and file.at(start, 4) != b"PK\x01\x02"):
        return FileVerdict(Grade.TORN, "is damaged (no zip directory where it should be)", file.size)
    return FileVerdict(Grade.CONTENT, size=file.size)


def _check_safetensors(file: OpenFile, head: bytes) -> FileVerdict:
    length = int.from_bytes(head[:8], "little")
    if not (2 <= length <= _SAFETENSORS_HEADER_MAX and head[8:9] == b"{"):
        no_tensors = _placeholder(file, head)
        return no_tensors or FileVerdict(Grade.TORN, "is damaged (no safetensors header)", file.size)
    if 8 + length > file.size:
        return FileVerdict(Grade.TORN, f"is cut short (header of {length} bytes in {file.size})", file.size)
    header = _parse(file.at(8, length))
    if not isinstance(header, dict):
        return FileVerdict(Grade.TORN, "is damaged (its safetensors header is not JSON)", file.size)
    end = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(o, int) for o in offsets)):
            return FileVerdict(Grade.TORN, "is damaged (a tensor without data_offsets)", file.size)
        end = max(end, offsets[1])
    if 8 + length + end != file.size:
        return FileVerdict(Grade.TORN, f"has {file.size} bytes where {8 + length + end} belong", file.size)
    return FileVerdict(Grade.CONTENT, size=file.size)


def _check_pickle(file: OpenFile, head: bytes) -> FileVerdict:
    """``.metadata`` of torch DCP: one pickle, which ends with the STOP opcode ``.`` (its bytes are not interpreted).

    From protocol 4 on its first bytes tell how long its first frame is (PEP 3154), which is all of it up to 64 KiB.
    """
    if head[:1] != b"\x80":
        return _placeholder(file, head) or FileVerdict(Grade.CONTENT, size=file.size)
    framed = head[2:3] == b"\x95" and 11 + int.from_bytes(head[3:11], "little") > file.size
    if framed or file.at(file.size - 1, 1) != b".":
        return FileVerdict(Grade.TORN, "is cut short (no end mark)", file.size)
    return FileVerdict(Grade.CONTENT, size=file.size)


def _check_json(file: OpenFile) -> FileVerdict:
    head = file.at(0, 4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] not in (b"{", b"["):
        return FileVerdict(Grade.PLACEHOLDER, "is not JSON", file.size)
    if file.size > _JSON_LIMIT:
        ended = file.at(max(0, file.size - 64), 64).rstrip()[-1:] in (b"}", b"]")
    else:
        ended = _parse(file.at(0, file.size)) is not None
    return (
        FileVerdict(Grade.CONTENT, size=file.size) if ended else FileVerdict(Grade.TORN, "is cut short JSON", file.size)
    )


def read_json(path: str) -> Optional[object]:
    """The decoded file; None when it is too large, unreadable or no JSON."""
    try:
        with open_regular(path) as file:
            return _parse(file.at(0, file.size)) if 0 < file.size <= _JSON_LIMIT else None
    except OSError:
        return None


def _parse(raw: bytes) -> Optional[object]:
    try:
        value: object = json.loads(raw.decode("utf-8-sig"), parse_int=_bounded_int)
        return value
    except (ValueError, RecursionError):
        return None


def _bounded_int(digits: str) -> int:
    # int() of a long text takes quadratic time, and these files may be anybody's
    if len(digits) > 20:
        raise ValueError("number too long")
    return int(digits)


_GLOBAL_STEP = re.compile(
    rb"\x0b\x00\x00\x00global_step(?:q.|r.{4})?(?:K(?P<u1>.)|M(?P<u2>..)|J(?P<i4>.{4}))", re.DOTALL
)


def step_inside(path: str) -> Optional[int]:
    """``global_step`` at the head of a Lightning checkpoint, found as bytes; None when it is not there.

    Lightning's dictionary begins with epoch and global_step, and the pickle is the first, uncompressed member of
    torch's zip, so both lie in the first bytes. The opcodes are matched, not run.
    """
    try:
        with open_regular(path) as file:
            found = _GLOBAL_STEP.search(file.at(0, 4096))
    except OSError:
        return None
    if not found:
        return None
    raw = found["u1"] or found["u2"] or found["i4"]
    step = int.from_bytes(raw, "little", signed=len(raw) == 4)
    return step if step >= 0 else None
