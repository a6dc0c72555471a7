"""``aistation klog``: what a kernel log says about GPUs, switches, links and disks."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.detectors.kernel_events import WORDS, Event, deciding, find_events
from aistation_slurm.errors import ProbeError
from aistation_slurm.probes.klog import KernelLog
from aistation_slurm.probes.klog_filter import CHUNK, chosen_lines
from aistation_slurm.probes.klog_text import Record, log_chunks, read_text

__all__ = ["command"]


@click.group("klog")
def command() -> None:
    """Read kernel logs: dmesg in any form, /dev/kmsg records, journald text and JSON, syslog."""


@command.command("scan")
@click.argument("source", default="-", metavar="[FILE|-]")
@click.option("--all-boots", is_flag=True, help="Events of earlier boots in the file too, not only of the last one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def scan(ctx: click.Context, source: str, all_boots: bool, as_json: bool) -> None:
    """Find events in FILE (default: standard input; .gz is read too).

    Only what the kernel wrote counts. Plain text cannot always tell (logger -t kernel): prefer journalctl's JSON.

    \b
    Exit codes: 0 nothing that needs a drain, 1 at least one event that does, 3 the file cannot be read.
    Examples:
      dmesg | aistation klog scan
      journalctl -k -b -o json | aistation klog scan - --json
    """
    ignored: Counter[str] = Counter()
    try:
        events = find_events(_records(source, ignored), all_boots)
    except (OSError, EOFError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise ProbeError(f"{source}: cannot be read: {reason}; name a log file, or - for standard input") from exc
    if as_json:
        click.echo(json.dumps({**_as_json(events), "lines_ignored": ignored["lines"]}, indent=2))
    else:
        _table(events)
        if ignored["lines"]:
            click.echo(
                f"aistation: {ignored['lines']} lines that could tell of a fault were not written by the kernel and do not count",
                err=True,
            )
    ctx.exit(EXIT_PROBLEM if any(e.drain for e in events) else EXIT_OK)


def _records(source: str, ignored: Counter[str]) -> Iterable[Record]:
    """Records of the file, of standard input, or of /dev/kmsg itself (which never ends, and so is read without waiting)."""
    if source == "-":
        chunks = iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
        return read_text(chosen_lines(chunks, WORDS), ignored)
    status = os.stat(source)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 11):
        log = KernelLog(source)
        try:
            return log.read_new()
        finally:
            log.close()
    return read_text(chosen_lines(log_chunks(Path(source), CHUNK), WORDS), ignored)


def _as_json(events: list[Event]) -> dict[str, Any]:
    """``events`` is the contract; ``distinct`` counts repeats, ``verdict`` says what the node needs and for which event."""
    first = deciding(events)
    verdict: dict[str, Any] = {"drain": first is not None, "action": first.action if first else "none"}
    if first is not None:
        verdict.update(xid=first.xid, sxid=first.sxid, pci=first.pci)
    return {"events": [e.as_json() for e in events], "distinct": _distinct(events), "verdict": verdict}


def _distinct(events: list[Event]) -> list[dict[str, Any]]:
    """The same code on the same device, counted: a burst of lines is one fault."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for e in events:
        counts[(e.kind, e.xid, e.sxid, e.pci, e.device, e.link, e.drain)] += e.count
    names = ("kind", "xid", "sxid", "pci", "device", "link", "drain")
    return [{**dict(zip(names, key)), "count": count} for key, count in counts.items()]


def _table(events: list[Event]) -> None:
    from aistation_slurm.cli import screen

    console = screen.console()
    if not events:
        console.print("no events")
        return
    table = screen.table("time", "event", "device", "drain", "action", "process", "meaning", fixed=5)
    for e in events:
        code = f"Xid {e.xid}" if e.xid is not None else f"SXid {e.sxid}" if e.sxid is not None else e.kind
        who = f"{e.process or ''} {e.pid or ''}".strip()
        what = " ".join(part for part in (e.meaning, e.unit, e.state, e.severity, e.recovery_action) if part) or e.raw
        drain = "yes" if e.drain else "over" if e.superseded and e.fatal else "no"
        device = " ".join(part for part in (e.pci, e.device) if part)
        table.add_row(e.time, code, device, drain, e.action, _shown(who), _shown(what[:80]))
    console.print(table)


def _shown(text: str) -> Any:
    """Text that a user may have chosen (process names): no markup, and no control characters for the terminal."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else "?" for c in text))
