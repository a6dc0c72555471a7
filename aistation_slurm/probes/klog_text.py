"""Kernel log lines of every common form, as records.

Forms: /dev/kmsg records (kernel.org/doc/Documentation/ABI/testing/dev-kmsg); ``dmesg`` plain, ``-T``, ``-x``, ``-r``, ``-H``,
``-d``, ``--time-format iso`` and ``-J``; journald text (short forms) and JSON (lines, pretty, -seq, -sse); syslog in the
BSD form and RFC 5424. Only records of facility kernel count: anybody can write the others with ``logger``. A text form that
does not carry the facility (BSD syslog, plain dmesg) is as honest as the tag in it.
"""

from __future__ import annotations

import calendar
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

__all__ = ["BOOT_MARKER", "FIRST_WORDS", "Record", "log_chunks", "parse_line", "read_text"]


@dataclass(frozen=True)
class Record:
    """One kernel message.

    time: ISO text, or seconds since boot, as the source gave it. seq: /dev/kmsg's sequence number, -1 elsewhere. boot: boot id
    where known. new_boot: the first record after a boot marker (``-- Reboot --``), or the kernel's own first line.
    """

    text: str
    time: str = ""
    seq: int = -1
    boot: str = ""
    raw: str = ""
    new_boot: bool = False


# 6,1234,5678901,-;text            6,1234,5678901,-,caller=T12;text
_KMSG = re.compile(r"(\d+),(\d+),(\d+),([^;]*);(.*)", re.DOTALL)
# <3>[ 12.3] text (dmesg -r)       <3>1 2025-01-25T10:34:54Z host kernel - - - text (RFC 5424)
_PRIORITY = re.compile(r"<(\d{1,3})>")
_RFC5424 = re.compile(r"1 (\S+) \S+ (\S+) \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?")
# kern  :err   : text (dmesg -x)
_DECODED = re.compile(r"(\w+)\s*:(\w+)\s*: ?")
# [ 12.345678]  [Fri Aug 30 11:43:09 2024]  [Aug30 11:43]  [  +0.000005]  [ 12.3 <    0.000010>]  [ T1234]
_BRACKET = re.compile(r"\[\s*([^\]\[]{1,64})\]\s?")
_SECONDS = re.compile(r"(\d+\.\d+)(?:@\w+)?(?:\s*<.*>)?\s*")
_HUMAN = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})(?:\s*<.*>)?\s*")
_OTHER_STAMP = re.compile(r"\+\d+\.\d+|[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d|[TC]\d+|<.*>")
# 2025-01-25T10:34:54,859532+00:00 (dmesg: comma)   2025-01-25T10:34:54.859532+0000 host kernel: (journald, rsyslog)
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+")
# Sat 2025-01-25 10:34:54 UTC host kernel:    (journald short-full)
_FULL = re.compile(r"(?:[A-Z][a-z]{2} )?(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)(?: [A-Z][\w+-]*)? ")
_BSD = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?)\s+")
_UNIX = re.compile(r"(\d{9,10}\.\d{3,6}) (?=\S+ \S+: )")
# host kernel: text       host sshd[12]: text      kernel: text. The kernel has no pid: "kernel[12]" is somebody's logger -t.
_SENDER = re.compile(r"(?:(\S+) )?([^\s:\[]+)(\[\d+\])?: ?")
_KERNEL = re.compile(r"(?:\S+ )?kernel: ?")
# gpu1: [  12.3] text      (pdsh, clush)
_FANOUT = re.compile(r"[\w.-]+: ?(?=\[ *\d+\.\d|<\d{1,3}>|\w+ *:\w+ *: |\d+,\d+,\d+,|\{)")
BOOT_MARKER = re.compile(r"--\s+(?:.*\b)?(?:reboot|boot)\b.*--", re.IGNORECASE)
FIRST_WORDS = "Linux version "
"""The first message of every kernel."""
_KMSG_DICTIONARY = re.compile(r"\s[A-Z_]+=")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr)}
"""In the C locale, which is what the kernel tools use; this process never sets another."""
_JSON_LINES_MAX = 500_000
"""Of one JSON document spread over lines (``dmesg -J`` of a full ring buffer has about 5 lines a message)."""


def log_chunks(path: Path, size: int = 1 << 20) -> Iterator[bytes]:
    """A log file in pieces, a .gz one unpacked. Raises OSError (and EOFError for a .gz file that is cut short)."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        if not packed:
            yield from iter(lambda: plain.read(size), b"")
            return
        with gzip.open(plain) as unpacked:
            yield from iter(lambda: unpacked.read(size), b"")


def read_text(lines: Iterable[str], ignored: Optional[Counter[str]] = None) -> Iterator[Record]:
    """Records in the order of ``lines``, one at a time. Lines that the kernel did not write are left out, and counted in
    ``ignored["lines"]``."""
    boot, fresh = "", False
    for record in _records(lines, Counter() if ignored is None else ignored):
        if record is None:
            fresh = True
            continue
        changed = bool(record.boot and boot and record.boot != boot)
        first = fresh or changed or record.text.startswith(FIRST_WORDS)
        boot, fresh = record.boot or boot, False
        yield replace(record, new_boot=True) if first else record


def _records(lines: Iterable[str], ignored: Counter[str]) -> Iterator[Optional[Record]]:
    """Records with their continuation lines joined by newlines; None at a boot marker."""
    pending: Optional[Record] = None
    dropping = False  # continuation lines of a record that is not the kernel's go with it
    indent: Optional[int] = None
    document: list[str] = []
    pretty = True  # JSON spread over lines; a stray brace in a text log must not swallow what follows
    for raw in lines:
        line = raw.rstrip("\r\n")
        if indent is None and line.strip():
            indent = len(line) - len(line.lstrip(" \t"))  # a pasted, indented log
        if indent and not line[:indent].strip():
            line = line[indent:]
        if document or (pretty and line in ("{", "[")):
            document.append(line)
            if line in ("}", "]") or len(document) > _JSON_LINES_MAX:
                if pending is not None:
                    yield pending
                    pending = None
                yield from _json_records("\n".join(document))
                document = []
            continue
        pretty = pretty and not line.strip()
        if BOOT_MARKER.fullmatch(line.strip()):
            if pending is not None:
                yield pending
            pending, dropping = None, False
            yield None
            continue
        if line[:1] in (" ", "\t") and (pending is not None or dropping):
            if pending is not None and not _KMSG_DICTIONARY.match(line):
                pending = replace(pending, text=f"{pending.text}\n{line.strip()}", raw=f"{pending.raw}\n{line}")
            continue
        if pending is not None:
            yield pending
        pending = parse_line(line)
        dropping = pending is None
        ignored["lines"] += dropping and bool(line.strip())
    if pending is not None:
        yield pending


def parse_line(line: str) -> Optional[Record]:
    """One line as a record; None when it is empty or was not written by the kernel."""
    if not line.strip():
        return None
    rest = line[len(match.group(0)) :] if (match := _FANOUT.match(line)) else line
    rest = rest.lstrip("\x1e")
    if rest.startswith(("{", "data: {")):
        return next(_json_records(rest.partition("{")[1] + rest.partition("{")[2]), None)
    kmsg = _KMSG.fullmatch(rest)
    if kmsg:
        if int(kmsg.group(1)) >> 3:
            return None
        text = _ESCAPE.sub(lambda m: chr(int(m.group(1), 16)), kmsg.group(5))
        return Record(text, f"{int(kmsg.group(3)) / 1e6:.6f}", int(kmsg.group(2)), "", line)
    priority = _PRIORITY.match(rest)
    if priority:
        if int(priority.group(1)) >> 3:
            return None
        rest = rest[priority.end() :]
        modern = _RFC5424.match(rest)
        if modern:
            if modern.group(2) != "kernel":
                return None
            time, rest = _stamps(rest[modern.end() :])
            return Record(rest, modern.group(1), -1, "", line)
    decoded = _DECODED.match(rest)
    if decoded and decoded.group(2) in _LEVELS:
        if decoded.group(1) != "kern":
            return None
        rest = rest[decoded.end() :]
    else:
        decoded = None
    time, rest, sender = _date(rest)
    if sender and decoded is None:
        kernel = _KERNEL.match(rest)
        if kernel is None:
            return None
        rest = rest[kernel.end() :]
    elif rest.startswith("kernel: "):
        rest = rest[len("kernel: ") :]
    stamp, rest = _stamps(rest)
    # journald's short-monotonic: [   12.345678] host kernel: text
    sender_after = _SENDER.match(rest)
    if stamp and sender_after and sender_after.group(1) and _is_log_line(sender_after):
        if sender_after.group(2) != "kernel" or sender_after.group(3):
            return None
        rest = rest[sender_after.end() :]
    return Record(rest, time or stamp, -1, "", line)


_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


def _is_log_line(sender: re.Match[str]) -> bool:
    """``host kernel: `` or ``host name[pid]: ``; anything else after a stamp is the kernel's own text (``nvme nvme0: ``)."""
    return sender.group(2) == "kernel" or bool(sender.group(3))


def _date(rest: str) -> tuple[str, str, bool]:
    """(time, what follows, whether a sender must follow) of a line that may begin with a date."""
    match = _ISO.match(rest)
    if match:
        # util-linux writes the fraction after a comma, journald and rsyslog after a point
        return match.group(1).replace(",", "."), rest[match.end() :], "," not in match.group(1)
    match = _FULL.match(rest)
    if match:
        return f"{match.group(1)}T{match.group(2)}", rest[match.end() :], True
    for pattern in (_BSD, _UNIX):
        match = pattern.match(rest)
        if match:
            return match.group(1), rest[match.end() :], True
    return "", rest, False


def _stamps(rest: str) -> tuple[str, str]:
    """Strip the kernel's own bracketed stamps; the time they tell (ISO where the year is known)."""
    time = ""
    while True:
        match = _BRACKET.match(rest)
        if match is None:
            return time, rest
        inner = match.group(1)
        seconds, human = _SECONDS.fullmatch(inner), _HUMAN.fullmatch(inner)
        if seconds:
            time = time or seconds.group(1)
        elif human and human.group(1) in _MONTHS:
            month = _MONTHS[human.group(1)]
            time = time or f"{human.group(4)}-{month:02d}-{int(human.group(2)):02d}T{human.group(3)}"
        elif not _OTHER_STAMP.fullmatch(inner):
            return time, rest
        rest = rest[match.end() :]


def _json_records(text: str) -> Iterator[Record]:
    """Records of one JSON value: a journald entry, a list of them, or what ``dmesg -J`` prints. None of broken JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    rows = value if isinstance(value, list) else [value]
    for row in rows:
        if not isinstance(row, dict):
            continue
        if isinstance(row.get("dmesg"), list):
            yield from (r for entry in row["dmesg"] if (r := _dmesg_entry(entry)) is not None)
            continue
        record = _journal_entry(row, text if row is value else json.dumps(row))
        if record is not None:
            yield record


def _dmesg_entry(entry: Any) -> Optional[Record]:
    """``{"pri": 3, "time": 12.3, "msg": "..."}`` or, decoded, with ``"fac": "kern"``."""
    if not isinstance(entry, dict) or not isinstance(entry.get("msg"), str):
        return None
    priority = entry.get("pri", 0)
    if entry.get("fac", "kern") != "kern" or (isinstance(priority, int) and priority >> 3):
        return None
    time = entry.get("time", "")
    text = f"{time:.6f}" if isinstance(time, float) else str(time).replace(",", ".")
    return Record(entry["msg"], text, -1, "", entry["msg"])


def _journal_entry(row: dict[str, Any], raw: str) -> Optional[Record]:
    """One entry of ``journalctl -o json``. The transport, which journald itself sets, tells who wrote it, not the text."""
    if row.get("_TRANSPORT") != "kernel" or str(row.get("SYSLOG_FACILITY", "0")) != "0":
        return None
    message = row.get("MESSAGE")
    if isinstance(message, list):  # journald writes bytes that are not UTF-8 as numbers
        message = bytes(b & 0xFF for b in message if isinstance(b, int)).decode("utf-8", "replace")
    if not isinstance(message, str):
        return None
    micro = str(row.get("_SOURCE_REALTIME_TIMESTAMP") or row.get("__REALTIME_TIMESTAMP") or "")
    time = ""
    if micro.isdigit() and len(micro) <= 17:
        when = datetime.fromtimestamp(int(micro) // 1_000_000, timezone.utc)
        time = f"{when:%Y-%m-%dT%H:%M:%S}.{int(micro) % 1_000_000:06d}+00:00"
    _, text = _stamps(message)
    return Record(text, time, -1, str(row.get("_BOOT_ID", "")), raw)
