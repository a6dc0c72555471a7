"""The figures of ``recovery`` as tables and as JSON. Every ratio is of two figures of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from rich.console import Console
from rich.table import Table

from tests.bench.samples import Sample
from tests.bench.timeline import Recovery
from tests.bench.ways import DIES, HANGS, SILENT, TRAPS, Way

__all__ = ["as_json", "show"]

AIM_P95_S, AIM_SHARE, AIM_SILENT_S = 5.0, 20.0, 5.0
_PUSHED = (
    ("detected", "fault", "the agent sees the kernel's record"),
    ("drained", "detected", "judged, node drained"),
    ("requeued", "drained", "fault noted in the job, job requeued"),
    ("calm", "requeued", "COMPLETING: SIGTERM, KillWait, epilog (Slurm's)"),
)
_BACK = (
    ("start_asked", "calm", "start gap (watchdog.start_gap_s, 1 s) and the next look"),
    ("running", "start_asked", "Slurm's scheduler (sched_min_interval, 2 s), or a free node"),
    ("script", "running", "prolog, job's first command"),
)
GAPS = {
    HANGS: (*_PUSHED, *_BACK),
    TRAPS: (*_PUSHED, *_BACK),
    DIES: (
        ("ended", "fault", "the other ranks end, the job fails"),
        ("drained", "fault", "the agent judges, node drained"),
        ("calm", "drained", "steps' ends, epilogs, event; the watchdog requeues"),
        *_BACK,
    ),
    SILENT: (
        ("down", "fault", "Slurm sees the node DOWN (SlurmdTimeout, its pings)"),
        ("calm", "down", "Slurm requeues the job, the other nodes let go"),
        *_BACK,
    ),
}
"""Per fault: step, the one before it, what happens between them."""
NOTES = (
    "running: Slurm's RUNNING, on other nodes; script: the restarted job's first command, after the prologs.",
    "Stock's script knows of the fault in the same instant, which no site has; AIStation's detection is counted.",
    "Full: backlog of five times the machine by another user, kept at that length; AIStation's job has --nice=200 (below "
    "all of it), stock's job stays above it.",
    "requeue_delay= (25.11) and requeue=expedite (26.05) do not exist on 22.05: StartTime=now is its best.",
    "Stock's two-minute rounds waited beside the others on clusters of their own.",
)


def _sample(way: str, found: Sequence[Recovery], step: str = "running", fault: Optional[str] = None) -> Sample:
    rounds = [one for one in found if one.way == way and fault in (None, one.fault)]
    return Sample(way if fault is None else f"  {fault}", tuple(one.marks[step] for one in rounds if step in one.marks))


def _between(way: str, found: Sequence[Recovery], first: str, second: str, fault: Optional[str] = None) -> Sample:
    """Seconds between two steps of the same rounds; ``first`` may be "fault"."""
    pairs = [
        one.marks
        for one in found
        if one.way == way and fault in (None, one.fault) and second in one.marks and first in (*one.marks, "fault")
    ]
    return Sample(way, tuple(marks[second] - marks.get(first, 0.0) for marks in pairs))


def _ratio(first: Sample, second: Sample) -> Optional[float]:
    return first.median / second.median if first.seconds and second.seconds else None


def show(
    console: Console, ways: Sequence[Way], found: Sequence[Recovery], patience_s: float, waits: dict[str, float]
) -> None:
    _show_all(console, ways, found, patience_s)
    for way in ways:
        for fault in way.faults if way.aistation else ():
            _show_gaps(console, way.name, fault, found)
    for line in _verdicts(found, waits):
        console.print(line, highlight=False)
    for note in NOTES:
        console.print(f"- {note}", highlight=False, style="dim")


def _show_all(console: Console, ways: Sequence[Way], found: Sequence[Recovery], patience_s: float) -> None:
    table = Table(
        "way",
        "n",
        "median",
        "p25 .. p75",
        "p95",
        "max",
        "script p50",
        "overtaken",
        f"not in {patience_s:.0f} s",
        title="Fault to running again, seconds",
    )
    for way in ways:
        for fault in (None, *(way.faults if len(way.faults) > 1 else ())):
            rounds = [one for one in found if one.way == way.name and fault in (None, one.fault)]
            sample, script = (_sample(way.name, found, step, fault) for step in ("running", "script"))
            never = str(sum(one.running is None for one in rounds) or "")
            if not sample.seconds:
                table.add_row(sample.name, "0", "never" if rounds else "not measured", "", "", "", "", "", never)
                continue
            overtaken = str(sum(one.overtook for one in rounds)) if way.full else ""
            cells = [cell.removesuffix(" s") for cell in sample.row()]
            table.add_row(*cells, f"{max(sample.seconds):.2f}", f"{script.median:.2f}", overtaken, never)
    console.print(table)


def _show_gaps(console: Console, way: str, fault: str, found: Sequence[Recovery]) -> None:
    """Where the seconds go: the gaps between steps that followed each other in a round."""
    table = Table("step", "median", "p95", "what", title=f"{way} ({fault}): where the seconds go")
    for step, before, what in GAPS[fault]:
        sample = _between(way, found, before, step, fault)
        if sample.seconds:
            low, high = sample.median, sample.percentile(0.95)
            table.add_row(f"{before} -> {step}", f"{low:.2f}", f"{high:.2f}", what)
    freed = Sample("freed", tuple(one.after_freed for one in found if one.way == way and one.after_freed is not None))
    if freed.seconds:
        what = "after the last backlog job that ended"
        table.add_row("node freed -> running", f"{freed.median:.2f}", f"{freed.percentile(0.95):.2f}", what)
    if table.row_count:
        console.print(table)


def _figures(found: Sequence[Recovery], waits: dict[str, float]) -> dict[str, Optional[float]]:
    """The figures that the aims are about; None where not measured."""
    idle, full = _sample("AIStation, idle", found), _sample("AIStation, full", found)
    default = _sample("stock default, idle: script requeues", found)
    default_full = _sample("stock default, full: script requeues", found)
    silent, stock_silent = _sample("AIStation, silent node", found), _sample("stock default, silent node", found)
    down = _sample("AIStation, silent node", found, "down")
    back = _between("AIStation, silent node", found, "down", "running")
    kill = _between("AIStation, SIGTERM trapped", found, "requeued", "calm")
    rest = [a - b for a, b in zip(_sample("AIStation, SIGTERM trapped", found).seconds, kill.seconds)]

    def p95(sample: Sample) -> Optional[float]:
        return sample.percentile(0.95) if sample.seconds else None

    def median(sample: Sample) -> Optional[float]:
        return sample.median if sample.seconds else None

    return {
        "idle_p95_s": p95(idle),
        "idle_default_over_ours": _ratio(default, idle),
        "idle_best_over_ours": _ratio(_sample("stock best, idle: script, StartTime=now", found), idle),
        "full_p95_s": p95(full),
        "full_default_over_ours": _ratio(default_full, full),
        "full_best_over_ours": _ratio(_sample("stock best, full: script, StartTime=now", found), full),
        "silent_median_s": median(silent),
        "silent_over_slurmd_timeout_s": silent.median - waits["SlurmdTimeout"] if silent.seconds else None,
        "silent_down_seen_median_s": median(down),
        "silent_down_to_running_median_s": median(back),
        "silent_down_to_running_p95_s": p95(back),
        "silent_default_over_ours": _ratio(stock_silent, silent),
        "trap_kill_median_s": median(kill),
        "trap_rest_median_s": median(Sample("rest", tuple(rest))) if rest else None,
    }


def _verdicts(found: Sequence[Recovery], waits: dict[str, float]) -> list[str]:
    """The aims beside what was measured; nothing here is asserted."""
    have = _figures(found, waits)

    def text(key: str) -> str:
        return "not measured" if have[key] is None else f"{have[key]:.2f}"

    return [
        f"GPU or process fault, idle: p95 {text('idle_p95_s')} s (aim <= {AIM_P95_S:g}); medians: stock default / AIStation "
        f"= {text('idle_default_over_ours')} (aim >= {AIM_SHARE:g}), stock best / AIStation = {text('idle_best_over_ours')}",
        f"GPU fault, full: p95 {text('full_p95_s')} s, with the wait for a node; medians: stock default / AIStation = "
        f"{text('full_default_over_ours')}, stock best / AIStation = {text('full_best_over_ours')}",
        f"silent node: SlurmdTimeout {waits['SlurmdTimeout']:g} s + {text('silent_over_slurmd_timeout_s')} s (aim + "
        f"{AIM_SILENT_S:g}); Slurm sees it DOWN at {text('silent_down_seen_median_s')} s, running "
        f"{text('silent_down_to_running_median_s')} s after that (p95 {text('silent_down_to_running_p95_s')}); stock "
        f"default / AIStation = {text('silent_default_over_ours')}",
        f"SIGTERM trapped: kill time {text('trap_kill_median_s')} s (KillWait {waits['KillWait']:g}), all the rest "
        f"{text('trap_rest_median_s')} s",
    ]


def as_json(
    ways: Sequence[Way], found: Sequence[Recovery], patience_s: float, waits: dict[str, float]
) -> dict[str, Any]:
    rows: dict[str, dict[str, float]] = {}
    for way in ways:
        sample = _sample(way.name, found)
        never = sum(one.way == way.name and one.running is None for one in found)
        rows[way.name] = {"n": len(sample.seconds), "never": never}
        if sample.seconds:
            shares = {"median_s": 0.5, "p25_s": 0.25, "p75_s": 0.75, "p95_s": 0.95, "max_s": 1.0}
            rows[way.name].update({key: round(sample.percentile(share), 3) for key, share in shares.items()})
            rows[way.name]["median_s"] = round(sample.median, 3)
    return {
        "settings": {**waits, "patience_s": patience_s},
        "ways": rows,
        "figures": _figures(found, waits),
        "rounds": [one.as_json() for one in found],
        "notes": list(NOTES),
    }
