"""One step of healing on this node: look at the drain, look at the node, decide (plan.py), do one thing, remember it.

Called by ``aistation heal`` from cron and by the agent's thread. Every step can be the last one of this process: what is to be
done is on the disk before it is done, and the next process goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

import msgspec

from aistation_slurm.config import Config
from aistation_slurm.correlation.marker import breaker_says_no
from aistation_slurm.errors import SlurmError, SlurmUnavailable, StateFileError
from aistation_slurm.healing import actions, evidence, history, occupants, reason
from aistation_slurm.healing.cards import Cards, identities
from aistation_slurm.healing.history import Attempt, Case, HealLock, History
from aistation_slurm.healing.plan import Next, Seen, answered, decide, faults
from aistation_slurm.healing.result import Result
from aistation_slurm.node import acted
from aistation_slurm.node import history as klog_history
from aistation_slurm.node.drain import LOCK_WAIT_S, conclusive, drain_lock, look, resume_node
from aistation_slurm.node.drain import Outcome as DrainOutcome
from aistation_slurm.node.health import NodeReport, check_node
from aistation_slurm.node.lock import DrainLock
from aistation_slurm.probes.host import boot_id
from aistation_slurm.probes.nvml import NvmlSnapshot, read_nvml
from aistation_slurm.slurm.client import Node, SlurmClient
from aistation_slurm.slurm.reboot import reboot_settings

__all__ = ["Healer", "enforcing", "full_check"]

EVIDENCE_RETRY_S = 3600.0
BOOT_S = 600
"""A GPU server may take this long to boot."""
_REBOOT_FLAGS = ("REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT")


def enforcing(config: Config) -> bool:
    """Healing's own mode, else the agent's, else that of all."""
    return (config.healing.mode or config.agent.mode or config.mode) == "enforce"


def full_check(config: Config, node: str) -> NodeReport:
    """Every check of this node, nothing remembered of earlier ones; kernel messages that were dealt with do not count."""
    events = klog_history.events(config)
    return check_node(config, now=time.time(), profile="full", events=events, node=node, slow_max_age_s=0.0)


@dataclass
class _Look:
    """The node as found by this step."""

    node: Node
    base: str
    seen: Seen
    report: Optional[NodeReport] = None


@dataclass
class Healer:
    """check: one full look at this node; publish: makes it known to the gate before the node goes back; say: one line of log;
    on_node: as occupants.on_node."""

    config: Config
    client: SlurmClient
    own_name: Callable[[], str]
    check: Callable[[], NodeReport]
    publish: Callable[[NodeReport], object]
    say: Callable[[str], None]
    now: Callable[[], float] = time.time
    boot: Callable[[], str] = boot_id
    on_node: Callable[[Config, str, NvmlSnapshot], str] = occupants.on_node
    _history: History = field(default_factory=History)
    _saved: bytes = b""

    def step(self, dry: bool = False) -> Result:
        """dry: say what would be done, do and remember nothing.

        Raises StateFileError (history or lock: nothing was done) and SlurmError (Slurm gave no answer, try again).
        """
        with HealLock(self.config.node.state_dir) as held:
            if not held:
                return Result("busy", "another process heals this node right now", open=True)
            return self._step(self.own_name(), dry)

    def _step(self, name: str, dry: bool) -> Result:
        self._history = history.load(self.config.healing.dir, name)
        self._saved = msgspec.json.encode(self._history)
        node = self._node(name)
        base = reason.without_reboot(node.reason)
        case = self._history.current
        if case is not None and not _still_ours(node, base, case):
            return self._let_go(case, node, dry)
        ident = reason.ident_of(base)
        if ident is None or not (node.drained or (case is not None and base != node.reason)):
            if not dry:
                self._learn_daily(name)
            return Result("none", f"{name} is not drained by AIStation: {node.reason or 'no reason'}")
        if case is None:
            if reason.asks_to_inspect(base):
                return Result("inspect", f"{name} waits for a person: {base}")
            last = self._history.case_of(ident)
            if last is not None and last.state == "left" and last.left_to == base:
                return Result("left", f"{name}: somebody else wrote this reason over ours: {base}", last)
            case = self._open(name, base, ident)
        if case.state == "inspect" or reason.asks_to_inspect(base):
            return self._wait_for_person(case, base, dry)
        if dry:
            look = self._look(node, base, case)
            return self._dry(case, decide(look.seen, case, self._spent(case), self.config.healing, self.now()))
        if base != node.reason and not _rebooting(node) and not self._held(name):
            node = self._restore(name, node.reason, base)
            case.say(self.now(), "the drain stands again as before the reboot")
        look = self._look(node, base, case)
        return self._do(case, look, decide(look.seen, case, self._spent(case), self.config.healing, self.now()))

    def _spent(self, case: Case) -> int:
        return self._history.spent(case, self.now(), self.config.healing.same_fault_s)

    # ---- the drain --------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        return look(self.client, name)

    def _open(self, name: str, base: str, ident: str) -> Case:
        case = self._history.case_of(ident)
        if case is None or case.reason != base:
            case = Case(ident, name, base, reason.check_of(base), self.now(), attempts=[], steps=[])
            self._history.cases.append(case)
        else:  # the same fault of the same boot has drained it again
            self._history.cases.remove(case)
            self._history.cases.append(case)
            case.state, case.looked, case.passes = "open", None, 0
        return case

    def _let_go(self, case: Case, node: Node, dry: bool) -> Result:
        """Somebody else drained it, wrote another reason, or gave it back: from here on it is theirs."""
        if node.drained:
            text = f"hands off: the reason is no longer that of our drain, but: {node.reason or 'none'}"
        else:
            text = "hands off: somebody gave the node back or set it to another state"
        if not dry:
            case.repaired = case.state == "inspect" and not node.drained
            case.state, case.left_to = "left", reason.without_reboot(node.reason) if node.drained else ""
            self._remember(case, text)
        return Result("left", f"{case.node}: {text}", case)

    def _restore(self, name: str, shown: str, base: str) -> Node:
        """Slurm appended to the reason, or (a boot longer than ResumeTimeout) lost the drain: both are set right."""
        with drain_lock(self.config.node.state_dir):
            node = self._node(name)
            if node.reason == shown:
                if node.drained:
                    self.client.update_node(name, Reason=base)
                else:
                    self.client.drain(name, base)
            node = self._node(name)
        if reason.without_reboot(node.reason) != base:
            raise SlurmUnavailable(f"{name}: the reason was changed in the same moment: {node.reason}")
        return node

    # ---- looking ----------------------------------------------------------------------------------------------------

    def _look(self, node: Node, base: str, case: Case) -> _Look:
        """A full look, but only at a node that is empty: nothing heavy beside a job."""
        config, boot = self.config, self.boot()
        held, occupied = self._held(node.name), occupants.in_slurm(node)
        if _rebooting(node) or occupied:
            if not occupied:
                occupied = "a reboot is under way"
            return _Look(node, base, Seen(boot, None, False, held, occupied, _rebooting(node)))
        occupied = self.on_node(config, boot, NvmlSnapshot())
        if occupied:
            return _Look(node, base, Seen(boot, None, False, held, occupied))
        report = self.check()
        occupied = self.on_node(config, boot, report.nvml)
        if not case.subject:
            case.subject = next((f.subject for f in report.findings if reason.tells_of(base, f.check, f.subject)), "")
        found = faults(report.findings, case)
        no_reboot = self._no_reboot() if found else ""
        told = conclusive(report) and answered(report.findings, case)
        seen = Seen(boot, report.findings, told, held, occupied, False, no_reboot)
        return _Look(node, base, seen, report)

    def _held(self, name: str) -> str:
        if not enforcing(self.config):
            return "observe mode: nothing is done"
        try:
            if breaker_says_no(self.client, name, self.config.node.state_dir, self.now()):
                return "the mass-drain breaker is open: nothing is done until the common cause is found"
        except SlurmUnavailable as exc:
            return f"whether the mass-drain breaker is open cannot be told: {exc}"
        return ""

    def _no_reboot(self) -> str:
        if history.volatile(self.config.healing.dir):
            return f"{self.config.healing.dir} is in memory and would forget it; put healing.dir on a disk"
        try:
            found = reboot_settings(self.config.slurm)
        except SlurmError as exc:
            return f"whether Slurm can reboot nodes is not known: {exc}"
        if not found.program:
            return "slurm.conf has no RebootProgram, so `scontrol reboot` does nothing; set it"
        if found.returns_any and found.resume_timeout_s < BOOT_S:
            return (
                f"with ReturnToService=2, Slurm would put a node whose boot takes longer than ResumeTimeout "
                f"({found.resume_timeout_s} s) into service unchecked; set ResumeTimeout to {BOOT_S} or more"
            )
        return ""

    def _learn_daily(self, name: str) -> None:
        """Where no agent does it: for the evidence of a card that will have fallen silent."""
        cards = Cards(self.config.healing.dir, name)
        if cards.stale():
            cards.learn(identities(read_nvml(self.config.probe)[0]))

    # ---- doing ------------------------------------------------------------------------------------------------------

    def _dry(self, case: Case, step: Next) -> Result:
        what = {"act": f"would {_in_words(step)}", "give_back": "would give the node back"}.get(step.kind, step.kind)
        failed = f"{step.failed}; " if step.failed else ""
        return Result("waiting", f"{case.node}: {failed}{what}: {step.why}", case, open=True)

    def _do(self, case: Case, look: _Look, step: Next) -> Result:
        if look.report is not None:
            Cards(self.config.healing.dir, case.node).learn(identities(look.report.nvml))
        if step.looked and case.looked is None:
            case.looked = self.now()
        if step.failed and step.kind in ("act", "inspect") and case.counted:
            case.counted[-1].verdict = step.failed
            self._remember(case, step.failed)
        if step.kind == "act":
            return self._act(case, look, step)
        if step.kind == "inspect":
            return self._inspect(case, look, step.why)
        if step.kind == "give_back":
            return self._give_back(case, look, step.why)
        if step.kind == "pass":
            case.passes, case.passed_at = case.passes + 1, self.now()
            self._remember(case, step.why)
            return Result("passed", f"{case.node}: {step.why}", case, open=True)
        case.passes = 0 if step.dirty else case.passes
        text = f"{step.failed}; {step.why}" if step.failed else step.why
        self._remember(case, f"waits: {text}")
        return Result("waiting", f"{case.node}: {text}", case, open=True)

    def _act(self, case: Case, look: _Look, step: Next) -> Result:
        """Remember first, look again, then act: whoever is ended in between leaves an attempt that counts."""
        config = self.config
        cut = klog_history.newest(config)
        target = " ".join(step.targets) if step.action == "gpu_reset" else (step.targets or ("",))[0]
        attempt = Attempt(step.action, target, look.seen.boot, self.now(), kernel=evidence.kernel_lines(config))
        case.attempts.append(attempt)
        case.state, case.looked, case.passes = "judging", None, 0
        self._remember(case, f"{_in_words(step)}: {step.why}")
        changed = self._changed(case, look)
        if changed:
            attempt.counted, attempt.outcome = False, f"not done: {changed}"
            case.state = "judging" if case.counted else "open"
            self._remember(case, f"{step.action} not done: {changed}")
            return Result("waiting", f"{case.node}: {changed}", case, open=True)
        if step.action == "gpu_reset":
            attempt.outcome = actions.reset_gpus(config, case.node, step.targets)
        elif step.action == "command":
            attempt.outcome = actions.run_command(config, case.node, step.targets)
        else:
            attempt.outcome = actions.ask_for_reboot(config, case.node)
        attempt.ended = self.now()
        if attempt.outcome == "done" and step.covers:
            self._forget_messages(cut)
        self._remember(case, f"{step.action}: {attempt.outcome or 'Slurm did not answer; it may have heard it'}")
        return Result("acted", f"{case.node}: {_in_words(step)}: {attempt.outcome}", case, open=True)

    def _changed(self, case: Case, look: _Look) -> str:
        """What became of the node since it was looked at, in words; "" where all is as it was."""
        try:
            node = self._node(case.node)
        except SlurmError as exc:
            return str(exc)
        if not node.drained or node.reason != look.base:
            return f"the drain was changed meanwhile: {node.reason or 'given back'}"
        return occupants.in_slurm(node) or self.on_node(self.config, look.seen.boot, NvmlSnapshot())

    def _forget_messages(self, cut: float) -> None:
        """The kernel's log keeps the Xids of before until the next boot; the card has left them behind."""
        if cut == float("inf"):
            return
        try:
            klog_history.healed(self.config, cut)
        except OSError as exc:
            self.say(f"{self.config.node.state_dir}/klog-since: {exc.strerror}; the old messages still count")

    def _give_back(self, case: Case, look: _Look, why: str) -> Result:
        if look.report is not None:
            try:
                self.publish(look.report)  # else the gate would refuse the next job for what is healed
            except StateFileError as exc:
                self._remember(case, f"not given back: {exc}")
                return Result("waiting", f"{case.node}: {exc}", case, open=True)
        case.passes += 1
        if case.counted:
            case.counted[-1].verdict = why
        self._remember(case, f"{why}; giving the node back")
        result = resume_node(self.client, case.node, look.base, self.config.node.state_dir)
        if result.outcome is not DrainOutcome.RESUMED:
            case.state = "left"
            self._remember(case, f"not given back, since the reason changed: {result.reason or 'none'}")
            return Result("left", f"{case.node}: not given back: {result.reason or 'it is in service'}", case)
        case.state = "returned"
        self._forget_faults(look.report)
        self._remember(case, "back in service")
        return Result("returned", f"{case.node} is back in service: {why}", case)

    def _forget_faults(self, report: Optional[NodeReport]) -> None:
        """What does not show any more is news when it comes again: nobody gave the node back against our advice."""
        present = {(f.check, f.subject) for f in report.findings if f.drains} if report is not None else set()
        try:
            acted.write(self.config.node.state_dir, acted.read(self.config.node.state_dir) & present)
        except OSError as exc:
            self.say(f"{self.config.node.state_dir}/acted: {exc.strerror}")

    # ---- giving up --------------------------------------------------------------------------------------------------

    def _inspect(self, case: Case, look: _Look, why: str) -> Result:
        case.inspect_reason = reason.inspect_reason(case.reason, case.subject, reason.plain(why))
        case.state = "inspect"
        case.say(self.now(), f"gives up, a person has to inspect it: {why}")
        self._keep_evidence(case, look.report)
        self._save(case)
        self.say(f"{case.node}: gives up, a person has to inspect it: {why}; evidence: {case.evidence or 'none'}")
        return self._tell_inspect(case)

    def _wait_for_person(self, case: Case, base: str, dry: bool) -> Result:
        if not dry:
            if case.state != "inspect":
                case.state, case.inspect_reason = "inspect", base
                self._save(case)
            if not case.evidence and self.now() - case.evidence_tried >= EVIDENCE_RETRY_S and not self._held(case.node):
                self._keep_evidence(case, self.check())
                self._save(case)
            if base == case.reason and case.inspect_reason != base and not self._held(case.node):
                return self._tell_inspect(case)
        return Result("inspect", f"{case.node} waits for a person; evidence: {case.evidence or 'none'}", case)

    def _tell_inspect(self, case: Case) -> Result:
        """Put the word into the reason, if that still is exactly ours."""
        with DrainLock(self.config.node.state_dir, LOCK_WAIT_S) as held:
            node = self._node(case.node) if held else None
            if node is not None and node.drained and reason.without_reboot(node.reason) == case.reason:
                self.client.update_node(case.node, Reason=case.inspect_reason)
                self._node(case.node)
        return Result("inspect", f"{case.inspect_reason}; evidence: {case.evidence or 'none'}", case)

    def _keep_evidence(self, case: Case, report: Optional[NodeReport]) -> None:
        case.evidence_tried = self.now()
        try:
            known = Cards(self.config.healing.dir, case.node).known()
            case.evidence = evidence.write_evidence(self.config, case, report or self.check(), known, self.now())
            case.say(self.now(), f"evidence in {case.evidence}")
        except StateFileError as exc:
            case.say(self.now(), str(exc))
            self.say(str(exc))

    # ---- remembering ------------------------------------------------------------------------------------------------

    def _remember(self, case: Case, text: str) -> None:
        """On the disk and in the log; what was said last is not said again. Raises StateFileError."""
        news = case.say(self.now(), text)
        self._save(case)
        if news:
            self.say(f"{case.node} [{case.ident}]: {text}")

    def _save(self, case: Case) -> None:
        data = msgspec.json.encode(self._history)
        if data != self._saved:
            history.save(self.config.healing.dir, case.node, self._history)
            self._saved = data


def _still_ours(node: Node, base: str, case: Case) -> bool:
    """Exactly the reason of the case, with at most what Slurm itself appends; DRAIN may be lost to a slow reboot alone."""
    if base not in (case.reason, case.inspect_reason):
        return False
    return node.drained or (base != node.reason and node.state == "DOWN")


def _rebooting(node: Node) -> bool:
    return any(flag in node.flags for flag in _REBOOT_FLAGS)


def _in_words(step: Next) -> str:
    if step.action == "gpu_reset":
        return f"reset {', '.join(step.targets)}"
    return "reboot the node" if step.action == "reboot" else f"run {' '.join(step.targets)}"
