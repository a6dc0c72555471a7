"""Kernel messages -> events: Xid, SXid, lost GPUs, link, PCIe, NVMe, memory and file system errors.

Pure. Meanings and actions come from xid.toml; line forms of the NVIDIA driver are in nvrm_lines.py, of the rest of the kernel
in host_lines.py. A pattern must begin where the record begins: other kernel messages quote text that any user can choose
(mount options, process names), and a quoted Xid is not an Xid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from aistation_slurm.detectors import host_lines, nvrm_lines
from aistation_slurm.detectors.nvrm_lines import gpu_key
from aistation_slurm.detectors.xid_table import load_table
from aistation_slurm.probes.klog_text import Record

__all__ = ["WORDS", "Event", "deciding", "find_events", "gpu_key"]


NVLINK_XID = 74
_OF_THE_GPU = ("xid", "gpu_lost", "gpu_init")

WORDS = (*nvrm_lines.WORDS, *host_lines.WORDS)
"""In lower case: a message without any of them is no event. For readers of large logs (probes/klog_filter.py)."""


@dataclass(frozen=True)
class Event:
    """One thing that happened, of one kernel record (or of several that say the same).

    fatal: the hardware (or driver) could not go on. drain: the node should be drained for it. superseded: dealt with by what
    came later (the driver was loaded anew, or Xid 154 changed): never a reason to drain. pci: ``0000:3b:00``, domain kept,
    function dropped. count: records that said it. details: further lines of the same SXid.
    """

    kind: str
    raw: str
    time: str = ""
    xid: Optional[int] = None
    sxid: Optional[int] = None
    pci: str = ""
    fatal: bool = False
    drain: bool = False
    action: str = "none"
    synthetic: bool = False
    pid: Optional[int] = None
    process: Optional[str] = None
    unit: str = ""
    link: Optional[int] = None
    cross: Optional[int] = None
    switch: Optional[int] = None
    uuid: Optional[str] = None
    serial: Optional[str] = None
    recovery_action: str = ""
    meaning: str = ""
    classified: str = ""
    superseded: bool = False
    device: str = ""
    state: str = ""
    severity: str = ""
    count: int = 1
    details: tuple[str, ...] = field(default=(), compare=False)

    def as_json(self) -> dict[str, Any]:
        """Fields of the public shape; those that do not apply to the kind are left out."""
        always = {"kind", "fatal", "drain", "action", "synthetic", "time", "raw"}
        if self.kind in ("xid", "gpu_lost"):
            always |= {"xid", "pci", "pid", "process", "uuid", "serial"}
        out: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            empty = value is None or value is False or value in ("", ()) or (name == "count" and value == 1)
            if name in always or not empty:
                out["class" if name == "classified" else name] = list(value) if name == "details" else value
        return out


_SEVERITY = ("none", "update_software", "restart_app", "inspect", "gpu_reset", "reboot", "replace_gpu")
"""Actions from the least to the most: of several events on one GPU the most severe decides, not the newest."""


def deciding(events: Iterable[Event]) -> Optional[Event]:
    """The event that decides what is to be done; None where none asks for a drain.

    Xid 154 repeats what another line said first, so it decides only where it stands alone.
    """
    draining = [e for e in events if e.drain]
    return max(draining, key=lambda e: (_SEVERITY.index(e.action), e.xid != 154), default=None)


def find_events(records: Iterable[Record], all_boots: bool = False) -> list[Event]:
    """Events of the last boot in ``records`` (of every boot with ``all_boots``), in the order of the log."""
    log = _Log()
    for record in records:
        if record.new_boot and not all_boots:
            log = _Log()
        log.take(record)
    return log.finished()


class _Log:
    """What one boot's records have said so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._identity: dict[str, dict[str, str]] = {}
        self._lost: dict[str, int] = {}
        self._seen: set[tuple[str, str]] = set()
        self._named = ""
        self._notice = ""
        self._notice_left = 0

    def take(self, record: Record) -> None:
        text = record.text
        if nvrm_lines.DRIVER_LOADED.match(text):
            # a new driver has looked at every GPU: what was said before is dealt with, or will be said again
            self.events = [_dealt_with(e) if e.kind in _OF_THE_GPU else e for e in self.events]
            self._lost.clear()
            return
        if self._identify(text) or self._repeated(record):
            return
        sxid = nvrm_lines.SXID.match(text)
        if sxid:
            self._sxid(sxid, record)
            return
        xid = nvrm_lines.XID.match(text)
        if xid:
            self._xid(_xid(xid, record))
            return
        if nvrm_lines.NVRM.match(text):
            self._init_failed(text, record)
            self._off_bus(text, record)
            return
        host = host_lines.find(text)
        if host is not None:
            self.events.append(Event(raw=record.raw, time=record.time, **host))

    def finished(self) -> list[Event]:
        """All events, with what the log itself told of each GPU. What is not known is left open, never a reason to drop."""
        found = []
        for event in _recovery_actions(self.events):
            known = self._identity.get(event.pci, {}) if event.kind in ("xid", "gpu_lost") else {}
            found.append(replace(event, uuid=known.get("uuid"), serial=known.get("serial")) if known else event)
        return found

    def _identify(self, text: str) -> bool:
        """UUID and serial number stand on lines of their own, some without an address: those follow the line that has it."""
        uuid = nvrm_lines.UUID.match(text)
        if uuid:
            self._named = gpu_key(uuid.group(1))
            self._identity.setdefault(self._named, {})["uuid"] = uuid.group(2)
            return True
        serial = nvrm_lines.SERIAL.match(text)
        if serial:
            pci = gpu_key(serial.group(1)) if serial.group(1) else self._named
            self._identity.setdefault(pci, {})["serial"] = serial.group(2)
            return True
        return False

    def _repeated(self, record: Record) -> bool:
        """The same text in the same microsecond is the same record, met in a second log file."""
        if "." not in record.time:
            return False
        key = (record.time, record.text)
        if key in self._seen:
            return True
        if nvrm_lines.NVRM.match(record.text) or nvrm_lines.SXID.match(record.text):
            self._seen.add(key)
        return False

    def _xid(self, event: Event) -> None:
        if event.xid != nvrm_lines.OFF_BUS_XID:
            self.events.append(event)
            return
        index = self._lost.get(event.pci)
        if index is None:
            self._lost[event.pci] = len(self.events)
            self.events.append(event)
            return
        # a GPU is lost once; the line with the number tells more than the sentence that came before it
        old = self.events[index]
        best = replace(event, time=old.time) if old.synthetic and not event.synthetic else old
        self.events[index] = replace(best, count=old.count + 1)

    def _init_failed(self, text: str, record: Record) -> None:
        """The driver could not start a GPU, and says so in two lines at each try; whether it is missing is NVML's to tell."""
        match = nvrm_lines.INIT_FAILED.match(text)
        if match is None:
            return
        pci = gpu_key(match.group(1)) if match.group(1) else ""
        for index, event in enumerate(self.events):
            if (event.kind, event.pci, event.superseded) == ("gpu_init", pci, False):
                tries = event.count + (match.group(2) == "RmInitAdapter")
                self.events[index] = replace(event, count=tries)
                return
        meaning = "the driver could not initialise the GPU"
        event = Event("gpu_init", record.raw, record.time, pci=pci, fatal=True, action="inspect", meaning=meaning)
        self.events.append(event)

    def _off_bus(self, text: str, record: Record) -> None:
        """Sentences about a lost GPU; the one of the probe routine has its address some lines above."""
        notice = nvrm_lines.NOTICE.match(text)
        if notice:
            self._notice, self._notice_left = notice.group(1), 8
        self._notice_left -= 1
        if not nvrm_lines.OFF_BUS.search(text):
            return
        address = nvrm_lines.ADDRESS.search(text)
        pci = address.group(1) if address else self._notice if self._notice_left >= 0 else ""
        row = load_table()[nvrm_lines.OFF_BUS_XID]
        self._notice = ""
        self._xid(
            Event(
                "gpu_lost", record.raw, record.time, nvrm_lines.OFF_BUS_XID, pci=gpu_key(pci), fatal=True, drain=True,
                action=row.action, synthetic=True, meaning=row.meaning, classified=row.kind,
            )
        )  # fmt: skip

    def _sxid(self, match: re.Match[str], record: Record) -> None:
        """The severity line is the fault; the engine and Data lines that follow are its details."""
        switch, pci, code, rest = int(match.group(1)), gpu_key(match.group(2)), int(match.group(3)), match.group(4)
        if nvrm_lines.SXID_DETAIL.match(rest):
            for index in range(len(self.events) - 1, -1, -1):
                event = self.events[index]
                if (event.sxid, event.pci, event.switch) == (code, pci, switch):
                    self.events[index] = replace(event, details=(*event.details, record.raw))
                    return
            return  # of a fault that this log does not show
        fault = nvrm_lines.SXID_FAULT.match(rest)
        fatal = fault is not None and fault.group(1).lower() == "fatal"
        action = "reboot" if fatal else "none" if fault else "inspect"
        self.events.append(
            Event(
                "sxid", record.raw, record.time, sxid=code, pci=pci, fatal=fatal, drain=fatal, action=action, switch=switch,
                link=int(fault.group(2)) if fault and fault.group(2) else None,
                meaning=(fault.group(3) if fault else rest).strip(),
                classified="fatal" if fatal else "info" if fault else "unknown",
            )
        )  # fmt: skip


def _xid(match: re.Match[str], record: Record) -> Event:
    code, rest = int(match.group(2)), match.group(3)
    pid, process, rest = nvrm_lines.who(rest)
    row = load_table().get(code)
    event = Event(
        "xid", record.raw, record.time, code, pci=gpu_key(match.group(1)), pid=pid, process=process,
        fatal=row.fatal if row else False, drain=row.fatal if row else False, action=row.action if row else "inspect",
        meaning=row.meaning if row else "not in the table", classified=row.kind if row else "unknown",
    )  # fmt: skip
    if row is not None and row.kind == "by_word":
        word = nvrm_lines.NVLINK.search(rest)
        if word is None:
            # a new form: shown, and acted on by no more than a look
            severity = nvrm_lines.severity_word(rest)
            return replace(event, action="inspect", classified=severity or "unknown", fatal=severity == "fatal")
        fatal = word.group(2).lower() == "fatal"
        return replace(
            event, fatal=fatal, drain=fatal, action="gpu_reset" if fatal else "none", unit=word.group(1),
            link=int(word.group(4)), cross=int(word.group(3)),
        )  # fmt: skip
    if row is not None and row.kind == "recovery_action":
        name, action = nvrm_lines.recovery_action(rest)
        # recovering an IMEX domain concerns several nodes; it is shown, and not this node's to drain for
        needed = action in ("gpu_reset", "reboot")
        return replace(event, fatal=needed, drain=needed, action=action, recovery_action=name)
    link = nvrm_lines.LINK.match(rest) if code == NVLINK_XID else None
    return replace(event, link=int(link.group(1))) if link else event


def _recovery_actions(events: list[Event]) -> list[Event]:
    """Of a GPU's recovery actions only the last counts.

    Where that is "None" the driver needs nothing any more: the GPU was reset, and what a reset deals with is dealt with.
    """
    last = {e.pci: i for i, e in enumerate(events) if e.recovery_action}
    out = []
    for i, event in enumerate(events):
        final = last.get(event.pci, -1)
        if event.recovery_action:
            out.append(event if i == final else _dealt_with(event))
        elif i < final and events[final].recovery_action == "none" and event.action == "gpu_reset":
            out.append(_dealt_with(event))
        else:
            out.append(event)
    return out


def _dealt_with(event: Event) -> Event:
    return replace(event, superseded=True, drain=False)
