"""What healing does next about one drain of ours. Pure: values in, one :class:`Next` out.

The ways through a case: open -> act -> judging -> (passes) give_back, or -> act again -> ... -> inspect. Everything that is
not certain waits, and says why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Optional

from aistation_slurm.config import Healing
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.healing.history import Attempt, Case

__all__ = ["Next", "Seen", "answered", "decide", "faults"]

ORPHAN_S = 15.0
"""After its deadline, the action of a killed process has ended for sure: timeout(1) ends it."""
REBOOT_SEEN_S = 90.0
"""slurmctld looks for asked reboots twice a minute; with no REBOOT flag after this long it did not take it, or gave it up."""
CORE = ("gpu.count", "gpu.lost", "gpu.xid", "gpu.driver_hang")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PERSON = (Action.INSPECT, Action.REPLACE_GPU, Action.CHECK_CABLE)


@dataclass(frozen=True)
class Seen:
    """The node now. held: why nothing may be done at all (observe mode, breaker); occupied: why it is not empty.

    findings: of a full look, None where none was made (a job runs, a reboot is under way). conclusive: driver and bus
    answered. rebooting: Slurm shows a REBOOT flag. no_reboot: why Slurm cannot reboot it, "" where it can.
    """

    boot: str
    findings: Optional[Sequence[Finding]] = None
    conclusive: bool = True
    held: str = ""
    occupied: str = ""
    rebooting: bool = False
    no_reboot: str = ""


@dataclass(frozen=True)
class Next:
    """kind: ``wait`` (nothing now), ``act``, ``pass`` (one clean look more), ``give_back``, ``inspect``.

    action: ``gpu_reset``, ``reboot`` or ``command``; targets: PCI addresses of a reset, argv of a command. failed: why the last
    attempt is judged not to have helped, "" where it is not. looked: this look judges the last attempt. blocked: it would
    act, if only ``why`` were not. dirty: something fails, so passed checks count no more.
    covers: the action is for everything that was found, so what the kernel had said before it is dealt with.
    """

    kind: Literal["wait", "act", "pass", "give_back", "inspect"]
    why: str
    action: str = ""
    targets: tuple[str, ...] = ()
    failed: str = ""
    looked: bool = False
    blocked: bool = False
    dirty: bool = False
    covers: bool = False


def faults(findings: Sequence[Finding], case: Case) -> list[Finding]:
    """What keeps the node from being healed: its own fatal findings, and whatever fails of the check that drained it."""
    return [f for f in findings if f.drains or (f.status is Status.FAIL and f.check == case.check)]


def answered(findings: Sequence[Finding], case: Case) -> bool:
    """Whether the checks that matter could look; they cannot after a reset that left the driver out."""
    return not any(f.status is Status.UNKNOWN and f.check in (*CORE, case.check) for f in findings)


def decide(seen: Seen, case: Case, spent: int, rules: Healing, now: float) -> Next:
    """The next step. spent: attempts that count against this drain; now: unix time."""
    if case.state == "judging" and case.counted:
        return _judge(seen, case, spent, rules, now)
    if seen.findings is None:
        return Next("wait", f"not empty: {seen.occupied}", blocked=True)
    return _begin(seen, case, spent, rules)


def _begin(seen: Seen, case: Case, spent: int, rules: Healing, failed: str = "") -> Next:
    """Choose an action for what is found."""
    found = faults(seen.findings or (), case)
    if not found and not failed:
        return Next(
            "wait", "the fault does not show any more, and healing has done nothing about it: left to its owner"
        )
    if seen.held:
        return Next("wait", seen.held, failed=failed, blocked=True)
    if spent >= rules.attempts:
        return Next("inspect", _did_not_help(case, spent), failed=failed)
    # what other nodes may see too is the controller's to judge, and so is the drain for it
    person = next((f for f in found if f.drains and f.action in _PERSON and not _command(f, rules)), None)
    if person is not None:
        return Next("inspect", f"{person.check} asks for {person.action.value}", failed=failed)
    wanted = _remedy(found, rules) or _again(case)
    if wanted is None:
        names = ", ".join(sorted({f.check for f in found}))
        return Next("wait", f"nothing is known that heals {names}", failed=failed)
    action, targets = wanted
    if action not in rules.actions:
        return Next("wait", f"would need {action}, which healing.actions does not allow", failed=failed, blocked=True)
    if action == "reboot" and seen.no_reboot:
        return Next("wait", f"would need a reboot: {seen.no_reboot}", failed=failed, blocked=True)
    if seen.occupied:
        return Next("wait", f"not empty: {seen.occupied}", failed=failed, blocked=True)
    covers = bool(found) and all(_treats(action, targets, f, rules) for f in found)
    return Next("act", f"attempt {spent + 1} of {rules.attempts}", action, targets, failed, covers=covers)


def _treats(action: str, targets: tuple[str, ...], finding: Finding, rules: Healing) -> bool:
    if action == "command":
        return _command(finding, rules) == targets
    return action == "reboot" or (finding.action is Action.GPU_RESET and finding.device in targets)


def _did_not_help(case: Case, spent: int) -> str:
    actions = ", ".join(dict.fromkeys(attempt.action for attempt in case.counted)) or "healing"
    return f"{spent} x {actions} did not help"


def _again(case: Case) -> Optional[tuple[str, tuple[str, ...]]]:
    """The last action once more, where its result could not be judged and so tells nothing new."""
    if not case.counted:
        return None
    last = case.counted[-1]
    return last.action, tuple(last.target.split()) if last.action == "gpu_reset" else (last.target,)


def _remedy(found: Sequence[Finding], rules: Healing) -> Optional[tuple[str, tuple[str, ...]]]:
    """The strongest thing that is asked for: a reboot also resets every GPU; a site's command goes before either."""
    for finding in found:
        argv = _command(finding, rules)
        if argv:
            return "command", argv
    if any(f.action is Action.REBOOT for f in found):
        return "reboot", ()
    resets = [f for f in found if f.action is Action.GPU_RESET]
    if not resets:
        return None
    addresses = tuple(dict.fromkeys(f.device for f in resets if f.device and _PCI.fullmatch(f.device)))
    if len(addresses) < len({f.device for f in resets}):
        return "reboot", ()  # an NVSwitch, or a GPU whose address is not known
    return "gpu_reset", addresses


def _command(finding: Finding, rules: Healing) -> tuple[str, ...]:
    """The longest pattern counts, as with [checks]."""
    fitting = [pattern for pattern in rules.commands if fnmatchcase(finding.check, pattern)]
    return rules.commands[max(fitting, key=lambda p: (len(p), p))] if fitting else ()


# ---- after an action ------------------------------------------------------------------------------------------------


def _judge(seen: Seen, case: Case, spent: int, rules: Healing, now: float) -> Next:
    last = case.counted[-1]
    early = _too_early(seen, last, rules, now)
    if early is not None:
        return early if not early.failed else _begin(seen, case, spent, rules, early.failed)
    if seen.findings is None:
        return Next("wait", f"not empty: {seen.occupied}", dirty=True)
    looked = now if case.looked is None else case.looked
    found = faults(seen.findings, case)
    if found:
        text = "; ".join(f"{f.check} {f.subject} {f.evidence}".strip() for f in found[:3])
        if now - looked < rules.settle_s:
            return Next(
                "wait", f"after {last.action} it still fails, given time to settle: {text}", looked=True, dirty=True
            )
        return _begin(seen, case, spent, rules, f"after {last.action} it still fails: {text}")
    if not seen.conclusive:
        if now - looked < rules.verify_deadline_s:
            return Next("wait", f"after {last.action} driver or bus could not be asked yet", looked=True, dirty=True)
        return _begin(seen, case, spent, rules, f"after {last.action} driver or bus could not be asked for too long")
    others = [f for f in seen.findings if _unfit(f, case, rules)]
    if others:
        text = "; ".join(f"{f.check} {f.subject} {f.evidence}".strip() for f in others[:3])
        return Next("wait", f"healed, but not fit for service yet: {text}", looked=True, dirty=True)
    if case.passes and 0 <= now - case.passed_at < rules.pass_every_s:
        return Next("wait", f"{case.passes} of {rules.passes} checks passed", looked=True)
    if case.passes + 1 < rules.passes:
        return Next("pass", f"{case.passes + 1} of {rules.passes} checks passed", looked=True)
    if seen.held:
        return Next("wait", seen.held, looked=True, blocked=True)
    return Next("give_back", f"{last.action} healed it: {rules.passes} checks passed", looked=True)


def _too_early(seen: Seen, last: Attempt, rules: Healing, now: float) -> Optional[Next]:
    """None where the attempt can be judged; a Next with ``failed`` where it did not even come about."""
    same_boot = seen.boot == last.boot
    if last.action != "reboot":
        if not last.outcome and same_boot and now < last.began + rules.deadline_s * _runs(last) + ORPHAN_S:
            return Next("wait", f"{last.action} was cut off and may still be at work")
        return None
    if not same_boot:
        return Next("wait", "Slurm has not finished with the reboot") if seen.rebooting else None
    if last.outcome.startswith("failed"):
        return Next("wait", "", failed=f"the reboot was not taken: {last.outcome}")
    if seen.rebooting and now < last.began + rules.reboot_deadline_s:
        return Next("wait", "waits for the reboot that Slurm was asked for")
    if seen.rebooting:
        return Next("wait", "", failed=f"not rebooted within {rules.reboot_deadline_s:g} s")
    if now < last.began + REBOOT_SEEN_S:
        return Next("wait", "waits for Slurm to begin the reboot")
    return Next("wait", "", failed="Slurm was asked for a reboot and gave it up, or never began it")


def _runs(last: Attempt) -> int:
    return max(1, len(last.target.split())) if last.action == "gpu_reset" else 1


def _unfit(finding: Finding, case: Case, rules: Healing) -> bool:
    """Not fit for service: a fail of what is to be verified, or a warning of the check that drained it (as with a sweep)."""
    if finding.status is Status.WARN:
        return finding.check == case.check
    return finding.status is Status.FAIL and any(fnmatchcase(finding.check, pattern) for pattern in rules.verify)
