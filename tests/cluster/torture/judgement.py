"""The invariants. Pure: what was done and what was seen -> violations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from aistation_slurm.placement.note import read_note
from aistation_slurm.recovery.attribution import LATE_EVIDENCE_S
from tests.cluster.torture.history import Attempt, Deed, History, Watched
from tests.cluster.torture.workload import Line

SLACK_S = 6.0
"""Between what happens and what is seen of it: a look of ours, and a poll of the agent's that is under way."""
ENDING = ("requeue", "cancel", "never launched")
"""What is done to a job and ends an attempt of it."""
FAILED = re.compile(r"WEXITSTATUS [1-9]|WTERMSIG")
"""An attempt that failed is restarted for a fault that is seen on its nodes up to LATE_EVIDENCE_S later: which of the two came
first cannot be told."""
LIMIT = 10
"""watchdog.max_restarts of the configuration."""


@dataclass(frozen=True)
class Violation:
    """kind: lost, doubled, overlap, drain, admin, outcome, meddled, daemon. job 0 and node "" where it has none."""

    kind: str
    text: str
    job: int = 0
    node: str = ""


def judge_job(
    watched: Watched, history: History, ledger: Sequence[Line], story: Optional[Mapping[str, Any]]
) -> list[Violation]:
    """Everything that can be said of one job that is over, or that ought to be. story: ``aistation explain --json``."""
    found = [*_overlaps(watched, ledger)]
    attempts = history.attempts_of(watched.job_id)
    _, unexplained = causes(watched, attempts, history.deeds, ledger)
    for attempt in unexplained:
        text = f"the attempt of {_span(attempt)} was ended ({attempt.how}) and no fault of its own explains it"
        found.append(Violation("doubled", text, watched.job_id))
    if watched.plan.opted_in:
        found += _outcome(watched, attempts, history, ledger, story)
    else:
        found += _untouched(watched)
    return found


def _overlaps(watched: Watched, ledger: Sequence[Line]) -> list[Violation]:
    """A line of an attempt after the first line of a later one: both were alive at once."""
    newest = -1
    for line in ledger:
        if line.attempt < newest:
            text = f"attempt {line.attempt} wrote '{line.what} {line.text}' after attempt {newest} had begun"
            return [Violation("overlap", text, watched.job_id)]
        newest = max(newest, line.attempt)
    return []


def causes(
    watched: Watched, attempts: Sequence[Attempt], deeds: Sequence[Deed], ledger: Sequence[Line]
) -> tuple[list[tuple[Attempt, Deed]], list[Attempt]]:
    """What ended each attempt that was followed by another one, and the attempts for which no deed is left.

    Each deed explains one attempt of a job. Assigned by augmenting paths, so that a deed that could explain two is not
    wasted.
    """
    ended = attempts[:-1] if watched.state in ("COMPLETED", "FAILED", "CANCELLED", "RUNNING") else attempts
    choices = [[i for i, deed in enumerate(deeds) if explains(deed, a, watched, ledger)] for a in ended]
    taken: dict[int, int] = {}

    def assign(index: int, tried: set[int]) -> bool:
        for deed in choices[index]:
            if deed not in tried:
                tried.add(deed)
                if deed not in taken or assign(taken[deed], tried):
                    taken[deed] = index
                    return True
        return False

    unexplained = [attempt for index, attempt in enumerate(ended) if not assign(index, set())]
    return [(ended[index], deeds[deed]) for deed, index in sorted(taken.items(), key=lambda t: t[1])], unexplained


def explains(deed: Deed, attempt: Attempt, watched: Watched, ledger: Sequence[Line]) -> bool:
    """Whether this deed can have ended this attempt."""
    end = attempt.ended if attempt.ended is not None else float("inf")
    late = LATE_EVIDENCE_S if FAILED.search(attempt.how) and watched.plan.opted_in else 0.0
    if (
        deed.harmless
        or deed.time > end + late + SLACK_S
        or (deed.until is not None and deed.until < attempt.began - SLACK_S)
    ):
        return False
    if deed.job:
        return deed.job == attempt.job_id and deed.kind in ENDING and deed.time >= attempt.began - SLACK_S
    if deed.node not in attempt.nodes:
        return False
    held = gpus_held(attempt, deed.node, ledger)
    return deed.gpu < 0 or held is None or deed.gpu in held


def gpus_held(attempt: Attempt, node: str, ledger: Sequence[Line]) -> Optional[frozenset[int]]:
    """Slurm's GPU indices of this attempt on a node; None where its task did not come to say so."""
    end = attempt.ended if attempt.ended is not None else float("inf")
    for line in ledger:
        match = re.fullmatch(rf"{node} gpus=([\d,]*) from=\S*", line.text) if line.what == "task" else None
        if match and attempt.began - SLACK_S <= line.time <= end:
            return frozenset(int(gpu) for gpu in match[1].split(",") if gpu)
    return None


def _outcome(
    watched: Watched,
    attempts: Sequence[Attempt],
    history: History,
    ledger: Sequence[Line],
    story: Optional[Mapping[str, Any]],
) -> list[Violation]:
    """An opted-in job ends COMPLETED, or is left or held with a true reason that its story tells."""
    job_id, state = watched.job_id, watched.state
    reason = watched.row.get("state_reason", "")
    told = " | ".join(entry["text"] for entry in story["entries"]) if story else ""
    if state == "COMPLETED":
        return []
    if state == "CANCELLED":
        mine = watched.cancelled_by_us or any(d.job == job_id and d.kind == "cancel" for d in history.deeds)
        return [] if mine else [Violation("outcome", "CANCELLED, but nobody cancelled it", job_id)]
    hits = [a for a in attempts if any(explains(d, a, watched, ledger) and d.node for d in history.deeds)]
    limit = watched.plan.max_restarts or LIMIT
    if len(hits) > limit and "restart limit" in told:
        return []
    if state == "FAILED":
        own = any(line.what == "fails" and attempts and line.time >= attempts[-1].began - 1 for line in ledger)
        if own and ("no fault was found" in told or hits):
            return []
        if _no_step(ledger):
            return []
        if own:
            return [Violation("outcome", f"failed by itself, but its story does not say so: {told}", job_id)]
        return [Violation("lost", f"FAILED although not by itself; its story: {told}", job_id)]
    return [Violation("lost", f"{state} ({reason}) at the end; its story: {told}", job_id)]


def _no_step(ledger: Sequence[Line]) -> bool:
    """The last attempt gave up since srun could start nothing.

    Slurm 22.05 now and then forgets a requeued job's GPUs ("_step_get_gres_cnt: node offset invalid"): no step starts then,
    and the script cannot but fail.
    """
    last = [line.what for line in ledger if ledger and line.attempt == ledger[-1].attempt]
    return "nostep" in last and "task" not in last


def _untouched(watched: Watched) -> list[Violation]:
    """A job that did not opt in keeps Slurm's ways; it is placed like any other, which AdminComment says."""
    row = watched.row
    placed = read_note(str(row.get("admin_comment") or ""))
    touched = [key for key in ("admin_comment", "comment") if re.search(r"\[ais(?!-place )", str(row.get(key) or ""))]
    if row.get("excluded_nodes") and not (placed and placed.excluded):
        touched.append("excluded_nodes")
    if touched:
        return [Violation("meddled", f"did not opt in, yet {', '.join(touched)} was written", watched.job_id)]
    return []


def judge_drain(node: Mapping[str, Any], deeds: Sequence[Deed], now: float) -> Optional[Violation]:
    """A drain of ours needs a fault there, and names it."""
    reason = str(node.get("reason") or "")
    if not reason.startswith("ais:") or "DRAIN" not in node["flags"]:
        return None
    here = [d for d in deeds if d.node == node["name"] and (d.until is None or d.until > now - SLACK_S - 5)]
    if any(d.check and re.match(d.check, reason) for d in here):
        return None
    what = ", ".join(str(d) for d in here) or "nothing"
    return Violation("drain", f"drained for '{reason}'; done there: {what}", node=node["name"])


def judge_admin(node: Mapping[str, Any], reason: str) -> Optional[Violation]:
    """An administrator's drain stays, word for word."""
    if "DRAIN" in node["flags"] and node["reason"] == reason:
        return None
    text = f"an administrator drained it for '{reason}'; now flags {node['flags']}, reason '{node['reason']}'"
    return Violation("admin", text, node=node["name"])


def _span(attempt: Attempt) -> str:
    end = f"{attempt.ended - attempt.began:.1f} s" if attempt.ended is not None else "still on"
    return f"{','.join(attempt.nodes)} ({end})"
