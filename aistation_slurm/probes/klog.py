"""Kernel log lines of every common form, as records; and a live reader that loses and repeats nothing.

Forms: /dev/kmsg records (kernel.org/doc/Documentation/ABI/testing/dev-kmsg), ``dmesg`` plain, ``-T``, ``-x`` and with raw
``<3>`` levels, journald text and JSON, syslog. Only records of facility kernel count: ``logger`` can write the rest.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Optional

__all__ = ["KernelLog", "Record", "read_text"]


@dataclass(frozen=True)
class Record:
    """One kernel message. time: ISO text, or seconds since boot as the source wrote them. boot: boot id where known."""

    text: str
    time: str = ""
    seq: int = -1
    boot: str = ""
    raw: str = ""


_KMSG = re.compile(r"(\d+),(\d+),(\d+),([^;]*);(.*)")
_LEVEL = re.compile(r"<\d+>")
_DECODED = re.compile(r"(\w+)\s*:(\w+)\s*: ")
_STAMP = re.compile(r"\[\s*(\d+\.\d+)(?:@\w+)?\]\s?")
_HUMAN = re.compile(r"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s?")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+")
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?)\s+")
_SENDER = re.compile(r"(\S+) ([^\s:\[]+)(?:\[\d+\])?: ")
_BOOT = re.compile(r"--\s+(?:.*\b)?(?:reboot|boot)\b.*--", re.IGNORECASE)
_NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")


def read_text(lines: Iterable[str]) -> list[Record]:
    """Records of the last boot in ``lines``, in order. A boot marker (``-- Reboot --``, ``-- Boot ID --``) or a new
    ``_BOOT_ID`` begins another boot: what was before is another machine state and is dropped."""
    found: list[Record] = []
    for record in _records(lines):
        if record is None:
            found.clear()
        elif found and record.boot and found[-1].boot and record.boot != found[-1].boot:
            found = [record]
        else:
            found.append(record)
    return found


def _records(lines: Iterable[str]) -> Iterator[Optional[Record]]:
    """Records with their continuation lines joined by newlines; None at a boot marker."""
    pending: Optional[Record] = None
    dropping = False  # continuation lines of a record that is not the kernel's go with it
    for raw in lines:
        line = raw.rstrip("\r\n")
        if _BOOT.fullmatch(line.strip()):
            if pending is not None:
                yield pending
            pending, dropping = None, False
            yield None
            continue
        if line[:1] in (" ", "\t") and (pending is not None or dropping):
            if pending is not None and not re.match(r"\s[A-Z_]+=", line):
                pending = replace(pending, text=f"{pending.text}\n{line.strip()}", raw=f"{pending.raw}\n{line}")
            continue
        if pending is not None:
            yield pending
        pending = _parse(line)
        dropping = pending is None
    if pending is not None:
        yield pending


def _parse(line: str) -> Optional[Record]:
    """One line as a record; None when it is empty or was not written by the kernel."""
    if not line.strip():
        return None
    if line.startswith("{"):
        return _json(line)
    kmsg = _KMSG.fullmatch(line)
    if kmsg:
        if int(kmsg.group(1)) >> 3:
            return None
        text = _ESCAPE.sub(lambda m: chr(int(m.group(1), 16)), kmsg.group(5))
        return Record(text, f"{int(kmsg.group(3)) / 1e6:.6f}", int(kmsg.group(2)), "", line)
    rest, time = line, ""
    rest = _LEVEL.sub("", rest, count=1) if rest.startswith("<") else rest
    decoded = _DECODED.match(rest)
    if decoded:
        if decoded.group(1) != "kern":
            return None
        rest = rest[decoded.end() :]
    sender_possible = False
    for pattern in (_ISO, _SYSLOG, _HUMAN):
        match = pattern.match(rest)
        if match:
            time = _iso(match.group(1))
            rest = rest[match.end() :]
            sender_possible = pattern is not _HUMAN and decoded is None
            break
    if sender_possible:
        sender = _SENDER.match(rest)
        if sender:
            if sender.group(2) != "kernel":
                return None
            rest = rest[sender.end() :]
    elif rest.startswith("kernel: "):
        rest = rest[8:]
    stamp = _STAMP.match(rest)
    if stamp:
        time = time or stamp.group(1)
        rest = rest[stamp.end() :]
    return Record(rest, time, -1, "", line)


def _json(line: str) -> Optional[Record]:
    """One line of ``journalctl -o json``. The transport tells who wrote it, not the text."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or row.get("_TRANSPORT") != "kernel":
        return None
    if str(row.get("SYSLOG_FACILITY", "0")) != "0":
        return None
    message = row.get("MESSAGE")
    if isinstance(message, list):  # journald writes bytes that are not UTF-8 as numbers
        message = bytes(b & 0xFF for b in message if isinstance(b, int)).decode("utf-8", "replace")
    if not isinstance(message, str):
        return None
    stamp = _STAMP.match(message)
    text = message[stamp.end() :] if stamp else message
    micro = str(row.get("__REALTIME_TIMESTAMP", ""))
    time = f"{int(micro) / 1e6:.6f}" if micro.isdigit() else ""
    return Record(text, time, -1, str(row.get("_BOOT_ID", "")), line)


def _iso(text: str) -> str:
    """Human and syslog dates as ISO 8601 where the year is known; anything else unchanged."""
    match = re.fullmatch(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d:\d\d:\d\d) (\d{4})", text)
    if match and match.group(1) in _NAMES:
        month = _NAMES.index(match.group(1)) + 1
        return f"{match.group(4)}-{month:02d}-{int(match.group(2)):02d}T{match.group(3)}"
    return text.replace(",", ".")


class KernelLog:
    """Reads what is new since the last call, from /dev/kmsg or from a growing plain file of the same form.

    The position is a sequence number, so a restart can go on where it was (``seen``) and repeats are dropped. Nothing
    blocks. Not thread-safe.
    """

    def __init__(self, path: str, seen: int = -1) -> None:
        """Raises OSError where the log cannot be opened (no such file, not permitted)."""
        self.path = path
        self.seen = seen
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._device = stat.S_ISCHR(os.fstat(self._fd).st_mode)
        self._rest = b""
        self.lost = 0
        """Times that the ring buffer overtook the reader."""

    def fileno(self) -> int:
        """For poll(); a plain file is always ready, so poll such a one by time."""
        return self._fd

    @property
    def pollable(self) -> bool:
        """True for the device, whose readiness means a new record."""
        return self._device

    def read_new(self) -> list[Record]:
        """Kernel records that were not returned before, oldest first."""
        lines = list(self._device_lines() if self._device else self._file_lines())
        fresh = [r for r in _records(lines) if r is not None and (r.seq < 0 or r.seq > self.seen)]
        if fresh:
            self.seen = max(self.seen, max(r.seq for r in fresh))
        return fresh

    def _device_lines(self) -> Iterator[str]:
        """Each read(2) of /dev/kmsg returns one record."""
        while True:
            try:
                chunk = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno == errno.EPIPE:  # records were overwritten; the next read gives the oldest one left
                    self.lost += 1
                    continue
                raise
            if not chunk:
                return
            yield from chunk.decode("utf-8", "replace").splitlines()

    def _file_lines(self) -> Iterator[str]:
        chunks = [self._rest]
        while True:
            chunk = os.read(self._fd, 1 << 20)
            if not chunk:
                break
            chunks.append(chunk)
        data = b"".join(chunks)
        whole, newline, self._rest = data.rpartition(b"\n")
        if not newline:
            self._rest = data
            return
        yield from whole.decode("utf-8", "replace").split("\n")

    def close(self) -> None:
        os.close(self._fd)
