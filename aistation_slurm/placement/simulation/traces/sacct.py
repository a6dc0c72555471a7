"""Slurm's own accounting: ``sacct -X -a -P --format=JobIDRaw,Submit,Eligible,Start,End,NNodes,TimelimitRaw,State``.

Format: sacct(1). TimelimitRaw is in minutes. Steps and jobs that never started are left out; requeued jobs count as they ran last.
"""

from __future__ import annotations

from aistation_slurm.placement.simulation.traces.loaded import Collector, Loaded, Row, TraceError, rows

__all__ = ["read"]

NODES = ("NNodes", "AllocNodes")


def read(text: str, source: str, gpus_per_node: int) -> Loaded:
    """gpus_per_node is not used: Slurm says how many nodes a job had."""
    found = Collector(source)
    columns = [name.strip() for name in text.lstrip("\ufeff").split("\n", 1)[0].split("|")]
    nodes_column = next((name for name in NODES if name in columns), None)
    if nodes_column is None:
        raise TraceError(f"{source}:1: no column {' or '.join(NODES)}; there are: {', '.join(columns)[:200]}")
    for row in rows(text, source, ("Submit", "Start", "End"), delimiter="|"):
        if "." in row.text("JobID") or "." in row.text("JobIDRaw"):
            found.left_out["that are steps"] += 1
            continue
        submit, start, end = row.time("Submit"), row.time("Start"), row.time("End")
        submit = max(filter(None, (submit, row.time("Eligible"))), default=None)
        if submit is None or start is None or end is None:
            found.left_out["that did not run to an end"] += 1
            continue
        found.add(submit, max(1, int(row.number(nodes_column))), end - start, _limit_s(row))
    return found.loaded()


def _limit_s(row: Row) -> float:
    """0 where it is not told, or unlimited."""
    text = row.text("TimelimitRaw")
    if not text or not text[0].isdigit():
        return 0.0
    return row.number("TimelimitRaw") * 60
