"""``aistation klog``: what a kernel log says about GPUs, switches, links and disks."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import click

from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.detectors.kernel_events import Event, find_events
from aistation_slurm.errors import ProbeError
from aistation_slurm.probes.klog import read_text

__all__ = ["command"]


@click.group("klog")
def command() -> None:
    """Read kernel logs: dmesg in any form, /dev/kmsg records, journald text and JSON, syslog."""


@command.command("scan")
@click.argument("source", default="-", metavar="[FILE|-]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def scan(ctx: click.Context, source: str, as_json: bool) -> None:
    """Find events in FILE (default: standard input), of its last boot only.

    \b
    Exit codes: 0 nothing that needs a drain, 1 at least one event that does, 3 the file cannot be read.
    Examples:
      dmesg | aistation klog scan
      journalctl -k -b -o json | aistation klog scan - --json
    """
    if source == "-":
        records = read_text(line.decode("utf-8", "replace") for line in sys.stdin.buffer)
    else:
        try:
            with Path(source).open(encoding="utf-8", errors="replace") as handle:
                records = read_text(handle)
        except OSError as exc:
            raise ProbeError(f"{source}: cannot be read: {exc.strerror}") from exc
    events = find_events(records)
    if as_json:
        click.echo(json.dumps({"events": [e.as_json() for e in events], "distinct": _distinct(events)}, indent=2))
    else:
        _table(events)
    ctx.exit(EXIT_PROBLEM if any(e.drain for e in events) else EXIT_OK)


def _distinct(events: list[Event]) -> list[dict[str, object]]:
    """The same code on the same device, counted: a burst of lines is one fault."""
    counts = Counter((e.kind, e.xid, e.sxid, e.pci, e.link, e.drain) for e in events)
    return [
        {"kind": kind, "xid": xid, "sxid": sxid, "pci": pci, "link": link, "drain": drain, "count": count}
        for (kind, xid, sxid, pci, link, drain), count in counts.items()
    ]


def _table(events: list[Event]) -> None:
    from rich.markup import escape

    from aistation_slurm.cli import screen

    console = screen.console()
    if not events:
        console.print("no events")
        return
    table = screen.table("time", "event", "device", "drain", "action", "process", "meaning")
    for e in events:
        code = f"Xid {e.xid}" if e.xid is not None else f"SXid {e.sxid}" if e.sxid is not None else e.kind
        who = f"{e.process or ''} {e.pid or ''}".strip()
        what = e.meaning or e.unit or e.raw
        table.add_row(
            e.time, code, e.pci or e.device, "yes" if e.drain else "no", e.action, *map(escape, (who, what[:80]))
        )
    console.print(table)
