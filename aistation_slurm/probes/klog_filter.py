"""The few lines of a large kernel log that can tell of anything, in the order and the company that :mod:`.klog_text` needs.

A log of 100 MB has a million lines, of which some hundred matter. They are found by words (``bytes.find`` reads gigabytes a
second); what klog_text makes of the chosen lines is what it would make of all: a line that continues another comes with the
one it continues, boot markers are kept, and so is the first record behind each.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Optional

from aistation_slurm.probes.klog_text import BOOT_MARKER, FIRST_WORDS, parse_line

__all__ = ["CHUNK", "chosen_lines"]

CHUNK = 1 << 20
_RECORD_MAX = 8 << 20
"""Bytes of one record with its continuation lines; what is longer is cut."""
_BLANK = (b" ", b"\t")
_BOOT_ID = re.compile(rb'"_boot_id"\s*:\s*"([0-9a-f]{1,64})"')
_BYTES = re.compile(rb'"message"\s*:\s*\[')
"""journald writes a message that is not UTF-8 as numbers: no word can be found in it."""


def chosen_lines(chunks: Iterable[bytes], words: Sequence[str]) -> Iterator[str]:
    """Lines, without their newline, that have one of ``words`` (lower case ASCII; the log may have any), and those they need.

    chunks: the log, cut anywhere. All lines of a log that is indented or one JSON document, which only the whole tells.
    """
    needles = [word.encode("ascii") for word in (*words, FIRST_WORDS.lower())]
    chosen: Optional[_Chosen] = None
    rest = b""
    for chunk in chunks:
        rest += chunk
        if chosen is None:
            first = rest.lstrip(b"\r\n").split(b"\n", 1)
            if len(first) < 2 and len(rest) < _RECORD_MAX:
                continue  # the first line is not yet whole
            chosen = _Chosen(needles, whole=_only_the_whole_tells(rest))
        end = _end_of_records(rest)
        yield from chosen.of(rest[:end])
        rest = rest[end:]
    if rest:
        yield from (chosen or _Chosen(needles, whole=_only_the_whole_tells(rest))).of(rest)


def _only_the_whole_tells(text: bytes) -> bool:
    line = next((line for line in text.split(b"\n", 64) if line.strip()), b" ")
    return line.startswith(_BLANK) or line.strip() in (b"{", b"[")


def _end_of_records(text: bytes) -> int:
    """Where the last record begins that may go on in the next chunk; 0: the text is one record."""
    end = len(text)
    while True:
        newline = text.rfind(b"\n", 0, end)
        if newline < 0:
            return len(text) if len(text) > _RECORD_MAX else 0
        after = text[newline + 1 : newline + 2]
        if after and after not in _BLANK:
            return newline + 1
        if len(text) - newline > _RECORD_MAX:
            return len(text)
        end = newline


class _Chosen:
    """Chooses from one piece after another; each ends where a record ends."""

    def __init__(self, needles: Sequence[bytes], whole: bool) -> None:
        self._needles = needles
        self._whole = whole
        self._boot = b""
        self._first = True
        """The first line tells klog_text whether the log is indented."""
        self._open = False
        """Behind a boot marker: everything is needed up to the next record, which is the first of its boot."""

    def of(self, piece: bytes) -> Iterator[str]:
        if self._whole:
            yield from _lines(piece)
            return
        done = 0
        if self._open:
            done = yield from self._until_a_record(piece, 0)
        for start in self._starts(piece):
            if start < done:
                continue
            done = yield from self._record(piece, start)

    def _record(self, piece: bytes, start: int) -> Generator[str, None, int]:
        """The line there and those that continue it; returns where the next begins."""
        end = start
        while end == start or piece[end : end + 1] in _BLANK:
            begin, end = end, _next_line(piece, end)
            text = _text(piece[begin:end])
            yield text
            if BOOT_MARKER.fullmatch(text.strip()):
                self._open = True
                return (yield from self._until_a_record(piece, end))
        return end

    def _until_a_record(self, piece: bytes, start: int) -> Generator[str, None, int]:
        """What follows a boot marker, up to and with the first record; returns where the next begins."""
        dropping = False  # as in klog_text: what continues a line that is not the kernel's goes with it
        while start < len(piece):
            end = _next_line(piece, start)
            continues = piece[start : start + 1] in _BLANK
            if not self._open and not continues:
                break
            text = _text(piece[start:end])
            yield text
            start = end
            if BOOT_MARKER.fullmatch(text.strip()):
                self._open, dropping = True, False
            elif self._open and not (continues and dropping):
                dropping = parse_line(text) is None
                self._open = dropping
        return start

    def _starts(self, piece: bytes) -> list[int]:
        """Where the lines begin that have a word, each moved up to the line that it continues."""
        lower = piece.lower()
        hits = {_start_of_record(lower, at) for needle in self._needles for at in _all(lower, needle)}
        hits.update(_start_of_record(lower, at) for at in _all(lower, b"--"))
        if self._first and piece.strip():
            self._first = False
            hits.add(_start_of_record(lower, len(piece) - len(piece.lstrip())))
        if b'"message"' in lower:
            hits.update(_start_of_record(lower, match.start()) for match in _BYTES.finditer(lower))
            hits.update(self._other_boots(piece, lower))
        return sorted(hits)

    def _other_boots(self, piece: bytes, lower: bytes) -> Iterator[int]:
        """Entries of another boot than the one before; the kernel's own count, as in klog_text."""
        for match in _BOOT_ID.finditer(lower):
            if match.group(1) == self._boot:
                continue
            start = _start_of_record(lower, match.start())
            entry = piece[start : _next_line(piece, start)]
            if b"kernel" in entry and parse_line(_text(entry)) is not None:
                self._boot = match.group(1)
                yield start


def _all(text: bytes, needle: bytes) -> Iterator[int]:
    """One place in each line that has it."""
    at = text.find(needle)
    while at >= 0:
        yield at
        newline = text.find(b"\n", at)
        if newline < 0:
            return
        at = text.find(needle, newline + 1)


def _start_of_record(text: bytes, at: int) -> int:
    start = text.rfind(b"\n", 0, at) + 1
    while start and text[start : start + 1] in _BLANK:
        start = text.rfind(b"\n", 0, start - 1) + 1
    return start


def _next_line(text: bytes, start: int) -> int:
    newline = text.find(b"\n", start)
    return len(text) if newline < 0 else newline + 1


def _lines(text: bytes) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = _next_line(text, start)
        yield _text(text[start:end])
        start = end


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\n")
