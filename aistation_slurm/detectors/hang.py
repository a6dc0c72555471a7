"""When a job that asked for it counts as hung: no progress of its output or checkpoints for too long. Pure.

Looks are folded into one :class:`Watch` per attempt. Time counts only between two looks that both saw the job run and its
files answer, by the monotonic clock, and never more than ``max_gap_s`` a step: a stopped job, a file system that hangs, an
agent that slept and a clock that jumps all make a verdict later, never earlier. Progress is any change against the last
look, not an age: clocks of file servers do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Optional

from aistation_slurm.probes.gpu_activity import GpuLoad
from aistation_slurm.probes.progress import Source

__all__ = ["Activity", "HangLimits", "Look", "Verdict", "Watch", "activity", "after", "judge"]

Activity = Literal["spinning", "idle", "computing", "mixed", ""]
"""What the job's GPUs of this node do, all of them taken together; "" is not known."""

NOTHING = Source()
BUSY_PERCENT, IDLE_PERCENT = 95.0, 5.0


@dataclass(frozen=True)
class Look:
    """One look at a job. at: monotonic seconds. stopped: every process of the job here is stopped (suspended, debugged)."""

    at: float
    output: Source = NOTHING
    checkpoint: Source = NOTHING
    stopped: bool = False
    gpus: Activity = ""


@dataclass(frozen=True)
class HangLimits:
    """Seconds; see the ``hang`` section of the configuration. timeout_s: what the job asked for."""

    timeout_s: float
    startup_grace_s: float = 1800.0
    checkpoint_allowance_s: float = 600.0
    computing_allowance_s: float = 1800.0
    spin_timeout_s: Optional[float] = None
    max_gap_s: float = 60.0


@dataclass(frozen=True)
class Watch:
    """One attempt so far. age_s: counted time; quiet_s: of it, since the last progress; spin_s: of that, spinning.

    worked_s: ``quiet_s`` when the GPUs were last seen computing. saved: a checkpoint was written in this attempt. moved: what
    made the last progress.
    """

    look: Look
    output: Source
    checkpoint: Source
    age_s: float = 0.0
    quiet_s: float = 0.0
    spin_s: float = 0.0
    worked_s: float = 0.0
    saved: bool = False
    moved: Literal["", "output", "checkpoint"] = ""


@dataclass(frozen=True)
class Verdict:
    """evidence: one line, also while there is no suspicion. limit_s: what ``quiet_s`` is compared with."""

    suspect: bool
    evidence: str
    limit_s: float


def activity(gpus: Sequence[GpuLoad], spin_power_percent: float) -> Activity:
    """``spinning``: all busy at the power of waiting NCCL kernels. One GPU that draws more computes."""
    if not gpus:
        return ""
    powers = [100.0 * g.power_w / g.limit_w if g.power_w is not None and g.limit_w else None for g in gpus]
    if any(power is not None and power >= spin_power_percent for power in powers):
        return "computing"
    loads = [g.utilisation_percent for g in gpus]
    if any(load is None for load in loads) or any(power is None for power in powers):
        return ""
    if all(load is not None and load >= BUSY_PERCENT for load in loads):
        return "spinning"
    return "idle" if all(load is not None and load <= IDLE_PERCENT for load in loads) else "mixed"


def after(watch: Optional[Watch], look: Look, limits: HangLimits) -> Watch:
    """The watch with one more look. The first look of an attempt only says what everything is compared with."""
    if watch is None:
        return Watch(look, look.output, look.checkpoint)
    moved: Literal["", "output", "checkpoint"] = ""
    if _moved(watch.checkpoint, look.checkpoint):
        moved = "checkpoint"
    elif _moved(watch.output, look.output):
        moved = "output"
    step = min(max(look.at - watch.look.at, 0.0), limits.max_gap_s) if _counts(watch.look) and _counts(look) else 0.0
    quiet_s = 0.0 if moved else watch.quiet_s + step
    spins = not moved and look.gpus == "spinning"
    return replace(
        watch,
        look=look,
        output=look.output if look.output.state == "present" else watch.output,
        checkpoint=look.checkpoint if look.checkpoint.state == "present" else watch.checkpoint,
        age_s=watch.age_s + step,
        quiet_s=quiet_s,
        spin_s=watch.spin_s + step if spins and watch.look.gpus == "spinning" else 0.0,
        worked_s=quiet_s if moved or look.gpus == "computing" else watch.worked_s,
        saved=watch.saved or (moved == "checkpoint" and _grew(watch.checkpoint, look.checkpoint)),
        moved=moved or watch.moved,
    )


def judge(watch: Watch, limits: HangLimits) -> Verdict:
    """Whether the attempt is suspect at its last look. Work of its GPUs starts its time anew, within the allowance."""
    allowance_s = limits.checkpoint_allowance_s if watch.moved == "checkpoint" else 0.0
    limit_s = limits.timeout_s + allowance_s + min(watch.worked_s, limits.computing_allowance_s)
    quiet = watch.quiet_s >= limit_s
    spins = limits.spin_timeout_s is not None and watch.spin_s >= limits.spin_timeout_s + allowance_s
    started = watch.saved or watch.age_s >= limits.startup_grace_s
    suspect = _counts(watch.look) and started and (quiet or spins)
    return Verdict(suspect, _evidence(watch, limit_s), limit_s)


def _moved(before: Source, now: Source) -> bool:
    """Only what could be read both times is compared; what comes into being is progress."""
    if now.state != "present" or before.state == "unknown":
        return False
    return now != before


def _grew(before: Source, now: Source) -> bool:
    """Something newer and bigger is there: more than old checkpoints being tidied away at the start."""
    return now.newest_ns > before.newest_ns and now.size > before.size


def _counts(look: Look) -> bool:
    """Whether quiet would mean anything: the job may run, and all there is to judge by could be read."""
    states = (look.output.state, look.checkpoint.state)
    return not look.stopped and "unknown" not in states and "present" in states


def _evidence(watch: Watch, limit_s: float) -> str:
    seen = [name for name, source in (("output", watch.output), ("checkpoints", watch.checkpoint)) if source.entries]
    last = {"": "since it is watched", "output": "after output", "checkpoint": "after a checkpoint"}[watch.moved]
    text = f"no progress of {' and '.join(seen) or 'anything'} for {watch.quiet_s:.0f} s {last}, limit {limit_s:.0f} s"
    gpus = {
        "spinning": "all its GPUs here are busy at idle power",
        "idle": "all its GPUs here are idle",
        "computing": "its GPUs here compute",
        "mixed": "its GPUs here are neither all busy nor all idle",
        "": "",
    }[watch.look.gpus]
    return f"{text}; {gpus}" if gpus else text
