"""Whether Slurm lets jobs be requeued, and what else requeues them."""

from __future__ import annotations

from collections.abc import Iterator

from aistation_slurm.doctor.model import Item, Severity, Site

__all__ = ["judge"]

REFUSED_START = 75
"""Exit code of a job whose checkpoints cannot be used (prolog/aistation-task-prolog)."""
NO_HOLD = "nohold_on_prolog_fail"
COUNTED_SINCE = (23, 2)


def judge(site: Site) -> Iterator[Item]:
    if site.value("JobRequeue", "1") == "0":
        yield site.advise(
            "requeue.job_requeue",
            Severity.ERROR,
            "JobRequeue",
            "JobRequeue=0: jobs may be requeued only where they ask for it with --requeue",
            "a job that opted in with --ais-resume alone is not restarted, and a node failure ends it",
            "1",
        )
    yield from _exit_codes(site)
    yield from _scheduler(site)


def _exit_codes(site: Site) -> Iterator[Item]:
    for key in ("RequeueExit", "RequeueExitHold"):
        codes = _codes(site.value(key))
        kept = ",".join(str(code) for code in sorted(codes - {0, REFUSED_START}))
        what = "holds" if key.endswith("Hold") else "requeues, without any limit,"
        if REFUSED_START in codes:
            yield site.advise(
                "requeue.exit_code",
                Severity.WARNING,
                key,
                f"{key} has {REFUSED_START}",
                f"Slurm {what} every job whose checkpoints cannot be read or are still written to, past the limits of [watchdog]",
                kept or None,
                "" if kept else "remove the line",
            )
        elif 0 in codes:
            yield site.advise(
                "requeue.exit_code",
                Severity.WARNING,
                key,
                f"{key} has 0",
                f"Slurm {what} jobs that ended well, and batch scripts that a signal ended",
                kept or None,
                "" if kept else "remove the line",
            )
        elif codes and key == "RequeueExit":
            yield site.advise(
                "requeue.exit_code",
                Severity.NOTE,
                key,
                f"RequeueExit={site.value(key)}",
                "Slurm requeues these without limit and with its delay of 121 s; the watchdog does both for jobs that opted in",
            )


def _scheduler(site: Site) -> Iterator[Item]:
    words = site.words("SchedulerParameters")
    if NO_HOLD in words:
        old = site.version < COUNTED_SINCE
        yield site.advise(
            "requeue.nohold_on_prolog_fail",
            Severity.WARNING if old else Severity.NOTE,
            "SchedulerParameters",
            f"SchedulerParameters has {NO_HOLD}",
            "not needed: the watchdog releases what the gate refused. "
            + (
                "Slurm 22.05 requeues such a job again and again, without a count"
                if old
                else "The count is Slurm's then"
            ),
            ",".join(word for word in site.value("SchedulerParameters").split(",") if word.lower() != NO_HOLD) or None,
        )
    if "defer" in words:
        yield site.advise(
            "requeue.defer",
            Severity.NOTE,
            "SchedulerParameters",
            "SchedulerParameters has defer",
            "a restarted job waits for the next round of the scheduler (sched_interval, 60 s by default) instead of starting "
            "within some seconds",
        )
    if site.value("JobFileAppend", "0") == "0":
        yield site.advise(
            "requeue.job_file_append",
            Severity.NOTE,
            "JobFileAppend",
            "JobFileAppend=0: a restarted job begins its output file anew",
            "what the attempt before it said is lost, unless the job asks for --open-mode=append",
            "1",
        )


def _codes(text: str) -> set[int]:
    """``1,5-7`` -> {1, 5, 6, 7}."""
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            found.update(range(int(low), min(255, int(high or low)) + 1))
    return found
