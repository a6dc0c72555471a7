"""The table at the end, and all that tells of a violation."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tests.cluster.torture import workload
from tests.cluster.torture.history import clock
from tests.cluster.torture.judgement import Violation, causes

if TYPE_CHECKING:
    from tests.cluster.torture.campaign import Campaign

KINDS = {
    "lost": "opted-in jobs lost",
    "doubled": "restarts without a fault of their own",
    "overlap": "two attempts of one job alive at once",
    "admin": "administrators' drains touched",
    "drain": "nodes drained without the fault",
    "outcome": "ends without a true reason",
    "meddled": "jobs changed that did not opt in",
    "daemon": "daemons that ended by themselves",
}


def tell(campaign: Campaign, violation: Violation) -> str:
    """Everything needed to mend it: the job's story, its ledger, what was done, the logs."""
    site, history = campaign.site, campaign.history
    lines = [f"seed {campaign.seed}, round {campaign.round}: {violation.kind}: {violation.text}"]
    nodes = {violation.node} - {""}
    if violation.job:
        job = history.jobs[violation.job]
        lines.append(f"-- job {job.job_id}, submitted in round {job.round}: {job.plan}")
        keys = ("job_state", "state_reason", "restart_cnt", "nodes", "excluded_nodes", "comment", "admin_comment")
        lines.append("   " + ", ".join(f"{key}={job.row.get(key)!r}" for key in keys))
        for attempt in history.attempts_of(job.job_id):
            nodes |= set(attempt.nodes)
            end = f"{clock(attempt.ended)} {attempt.how}" if attempt.ended is not None else "now"
            lines.append(f"   allocated {clock(attempt.began)} on {','.join(attempt.nodes)} to {end}")
        lines.append("-- aistation explain")
        lines.append(site.try_run("aistation", "explain", str(job.job_id))[1].rstrip())
        lines.append("-- ledger")
        for line in workload.read_ledger(site, job.job_id):
            lines.append(f"   {clock(line.time)} attempt {line.attempt}: {line.what} {line.text}")
    lines.append("-- what was done there, and to the controller")
    for deed in history.deeds:
        if (not deed.node and not deed.job) or deed.node in nodes or (deed.job and deed.job == violation.job):
            lines.append(f"   {deed}")
    wanted = [f"JobId={violation.job} "] if violation.job else [f"{violation.node} "]
    if violation.kind == "lost":
        for words in (("job", str(violation.job)), ("nodes", "-d"), ("reservation",)):
            lines.append(f"-- scontrol show {' '.join(words)}")
            lines += [f"   {line}" for line in site.try_run("scontrol", "show", *words)[1].splitlines()]
    lines.append("-- slurmctld's log")
    told = [f"   {clock(at)} {line}" for at, line in history.controller_log if any(w in line + " " for w in wanted)]
    lines += told[-60:]
    lines.append("-- watchdog's log")
    lines += _tail(site.logs("watchdog"), f"job {violation.job}:" if violation.job else "", 40)
    for node in sorted(nodes):
        lines.append(f"-- slurmd of {node}")
        lines += _tail(site.logs(f"slurmd.{node}"), "", 25)
        lines.append(f"-- agent of {node}")
        lines += _tail(site.logs(f"agent.{node}"), "", 25)
    return "\n".join(lines)


def _tail(text: str, word: str, count: int) -> list[str]:
    chosen = [line for line in text.splitlines() if word in line or " INFO job " not in line]
    return [f"   {line}" for line in chosen[-count:]]


def table(campaign: Campaign) -> Table:
    """One row a kind of trouble: how often, attempts that it ended, seconds until the job was allocated nodes again."""
    times: dict[str, list[float]] = {}
    hits: Counter[str] = Counter()
    for job in campaign.history.jobs.values():
        attempts = campaign.history.attempts_of(job.job_id)
        ledger = workload.read_ledger(campaign.site, job.job_id)
        for attempt, deed in causes(job, attempts, campaign.history.deeds, ledger)[0]:
            hits[_kind(deed.kind)] += 1
            after = [a.began for a in attempts if a.began > attempt.began]
            if after and job.plan.opted_in and deed.node:
                times.setdefault(_kind(deed.kind), []).append(after[0] - max(deed.time, attempt.began))
    shown = Table(title=f"torture: {campaign.rounds} rounds, seed {campaign.seed}")
    for name, justify in (("trouble", "left"), ("times", "right"), ("restarts", "right"), ("back, median", "right")):
        shown.add_column(name, justify=justify)  # type: ignore[arg-type]
    shown.add_column("slowest", justify="right")
    done = Counter(_kind(deed.kind) for deed in campaign.history.deeds)
    for kind, count in done.most_common():
        took = times.get(kind, [])
        middle, most = (f"{statistics.median(took):.1f} s", f"{max(took):.1f} s") if took else ("", "")
        shown.add_row(kind, str(count), str(hits[kind] or ""), middle, most)
    return shown


def _kind(kind: str) -> str:
    return "clock jump" if kind.startswith("clock ") else kind


def verdict(campaign: Campaign) -> Table:
    """How the jobs ended, and the count of each kind of violation."""
    shown = Table(show_header=False)
    shown.add_column("what")
    shown.add_column("count", justify="right")
    jobs = list(campaign.history.jobs.values())
    for name, chosen in (
        ("opted in", [j for j in jobs if j.plan.opted_in]),
        ("not opted in", [j for j in jobs if not j.plan.opted_in]),
    ):
        ends = Counter(job.state for job in chosen)
        shown.add_row(f"jobs {name}", f"{len(chosen)}: " + ", ".join(f"{n} {state}" for state, n in ends.most_common()))
    restarts = sum(int(job.row.get("restart_cnt") or 0) for job in jobs)
    shown.add_row("restarts; lives of the watchdog", f"{restarts}; {campaign.watchdog_lives}")
    shown.add_row("jobs left to Slurm's own delay after a fault", str(len(campaign.delayed)))
    counts = Counter(found.violation.kind for found in campaign.found)
    for kind, text in KINDS.items():
        shown.add_row(text, f"[red]{counts[kind]}" if counts[kind] else "0")
    return shown


def print_all(campaign: Campaign, console: Console) -> None:
    for found in campaign.found:
        console.rule(f"violation: {found.violation.kind}")
        console.print(found.story, markup=False, highlight=False, soft_wrap=True)
    console.print(table(campaign))
    console.print(verdict(campaign))
