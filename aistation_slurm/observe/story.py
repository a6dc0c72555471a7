"""The story of one job, in order: starts, ends, judgements, actions, and what they cost. Pure.

Rows come from the recovery journal; where it cannot be read (a user on a login node), Slurm's own fields tell it in short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from aistation_slurm.slurm import hostlist, tags
from aistation_slurm.slurm.client import Job

__all__ = ["Entry", "Story", "from_journal", "from_slurm"]


@dataclass(frozen=True)
class Entry:
    """One line. time: unix seconds, None where only the order is known."""

    time: Optional[float]
    kind: str
    text: str

    def as_json(self) -> dict[str, Any]:
        return {"time": self.time, "kind": self.kind, "text": self.text}


@dataclass(frozen=True)
class Story:
    """restarts: as Slurm counts them, whoever asked. source: who told it.

    idle_s: seconds between the end of an attempt and the start of the next, over all starts that were seen.
    """

    job_id: int
    entries: tuple[Entry, ...]
    restarts: int
    idle_s: float
    source: str

    def as_json(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "restarts": self.restarts,
            "idle_s": round(self.idle_s, 1),
            "source": self.source,
            "entries": [e.as_json() for e in self.entries],
        }


def from_journal(
    job_id: int,
    attempts: Sequence[Mapping[str, Any]],
    actions: Sequence[Mapping[str, Any]],
    incidents: Sequence[Mapping[str, Any]],
    job: Optional[Job],
) -> Story:
    """Merge the journal's rows of one job; ``job`` adds how it stands now."""
    entries = [Entry(row["time"], row["kind"], row["text"]) for row in incidents]
    told = {(round(e.time or 0), e.kind) for e in entries}
    for row in actions:
        when = row["done"] if row["done"] is not None else row["intended"]
        if (round(when), row["kind"]) not in told:
            outcome = row["outcome"] or "intended, not known to be done"
            entries.append(Entry(when, row["kind"], f"{row['kind']}: {outcome}; {row['detail']}".rstrip("; ")))
    idle, last_end = 0.0, None
    for row in sorted(attempts, key=lambda r: r["start_time"]):
        began = float(row["start_time"])
        # of an attempt too short to be seen running, start_time is the time of its end: no gap can be told from it
        if row["seen"] and last_end is not None and began >= last_end:
            idle += began - last_end
            entries.append(Entry(began, "running_again", f"runs again after {began - last_end:.0f} s"))
        last_end = row["ended"]
    entries.sort(key=lambda e: (e.time or 0.0, e.kind == "now"))
    if job is not None:
        entries.append(Entry(None, "now", _now(job)))
    restarts = job.restart_cnt if job is not None else sum(1 for row in attempts if row["state"] == "restarted")
    return Story(job_id, tuple(entries), restarts, idle, "journal")


def from_slurm(job: Job) -> Story:
    """What Slurm itself shows to whoever may see the job."""
    entries = []
    tag = tags.read_tag(job.admin_comment)
    if not tag:
        entries.append(
            Entry(None, "not_managed", "the job did not opt in (--ais-resume): it is not restarted after a fault")
        )
    else:
        asked = f", at most {tag['max']} restarts" if "max" in tag else ""
        entries.append(Entry(None, "managed", f"resumes with {tag.get('resume', '?')}{asked}"))
    if "act" in tag:
        text = f"restart {tag.get('attempt', '?')}: {tag['act']} because of {tag.get('why', '?')}"
        own = tag.get("own", "0")
        entries.append(
            Entry(None, "restarted", text if own == "0" else f"{text}; {own} of them not for the machine's faults")
        )
    if tag.get("idle", "0") != "0":
        newest = f"step {tag['step']}" if "step" in tag else "the beginning"
        entries.append(
            Entry(None, "no_progress", f"{tag['idle']} restarts in a row without a newer checkpoint than {newest}")
        )
    run = tags.read_run(job.comment)
    if run is not None:
        where = "began anew" if run.step is None else f"resumed from step {run.step}"
        entries.append(Entry(None, "start_up", f"attempt {run.attempt} {where} ({run.verdict})"))
    note = tags.read_note(job.comment)
    if note:
        entries.append(Entry(None, "note", note))
    entries.append(Entry(None, "now", _now(job)))
    attempt = tag.get("attempt", "0")
    return Story(job.job_id, tuple(entries), int(attempt) if attempt.isdigit() else 0, 0.0, "slurm")


def _now(job: Job) -> str:
    where = f" on {hostlist.fold(job.nodes)}" if job.nodes else ""
    why = f" ({job.reason})" if job.reason and job.reason != "None" else ""
    away = f", kept away from {hostlist.fold(job.excluded_nodes)}" if job.excluded_nodes else ""
    return (
        f"{job.state}{where}{why}, started {job.restart_cnt + 1} times{away}"
        if job.state != "PENDING"
        else (f"PENDING{why}, {job.restart_cnt} restarts so far{away}")
    )
