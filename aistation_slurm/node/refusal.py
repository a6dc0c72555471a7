"""The gate's failing path: put our own reason on this node, with at most two bounded requests, before exit 1.

What other nodes may have too (everything but GPUs) is refused only where they do not: one look shows all nodes, at a moment
that the node's name decides, so that of the many nodes of one cause the later ones see the first (node/neighbours.py).

Slurm keeps a reason that is there when it drains the node itself for the failed prolog (slurmctld's _drain_node), so
the cause is not lost behind "Prolog error". The same update names the job in the node's Comment, and a record of it is left
on the node (node/refusals.py): a refused job, which Slurm holds, is found again whatever becomes of its event.
"""

from __future__ import annotations

import time

from aistation_slurm.findings import Finding, Status, drain_reason
from aistation_slurm.node import acted, bounded, refusals
from aistation_slurm.node.gate_job import number, plain
from aistation_slurm.node.lock import DrainLock
from aistation_slurm.slurm.node_comment import shown_comment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from aistation_slurm.node.refusals import Refusal
    from aistation_slurm.node.state import DeviceLine, NodeState

__all__ = ["node_flags", "node_name", "of_the_past", "reason_for", "refuse"]

SPREAD_S = 1.5
KEPT_S = 3.0
"""Of the budget, for the requests that follow."""
LOG_WORDS = frozenset({"Xid 79", "fallen off the bus in the kernel log"})
"""All that gpu.lost says (detectors/gpu.py) where bus and driver show nothing."""


def refuse(
    state: NodeState, state_dir: str, line: DeviceLine, env: Mapping[str, str], budget_s: float
) -> tuple[bool, str]:
    """Drain this node with our reason unless it is drained already.

    False with the why where the job must pass after all; else True with a line for the log.
    """
    name = node_name(env)
    reason = reason_for(line, name, state.boot_id)
    job_id = number(env.get("SLURM_JOB_ID", ""), 0)
    refusal = refusals.Refusal(job_id, int(time.time()), state.boot_id, line.check, line.subject, reason)
    # drained for before: it is for whoever gave the node back to know, and where that cannot be asked, doubt starts the job
    told = of_the_past(line) and (line.check, line.subject) in acted.read(state_dir)
    if not told:
        _keep(state_dir, refusal)  # before the requests: we may be killed in the midst of them
    if not name:
        return not told, "no SLURMD_NODENAME: the drain reason is left to Slurm"
    began = time.monotonic()
    if _shared(line.check):
        time.sleep(_moment_s(name, min(SPREAD_S, budget_s - KEPT_S)))
    asking = _Scontrol(state, env, name, budget_s - (time.monotonic() - began))
    refused, why, settled = _tell_slurm(asking, state, state_dir, refusal, told)
    if not refused and not told:
        refusals.forget(state_dir, job_id)
    elif refused and settled:
        refusal.progress, refusal.since = refusals.CLOSED, int(time.time())
        _keep(state_dir, refusal)
    return refused, why


class _Scontrol:
    """Requests about this node, all within one budget."""

    def __init__(self, state: NodeState, env: Mapping[str, str], node: str, budget_s: float) -> None:
        self.node = node
        self.budget_s = budget_s
        self.path = f"{state.bin_dir.rstrip('/')}/scontrol"
        self.env = dict(bounded.PLAIN_ENV)
        conf = state.slurm_conf or env.get("SLURM_CONF", "")
        if conf:
            self.env["SLURM_CONF"] = conf
        self.deadline = time.monotonic() + max(budget_s, 1.0)

    def show(self, everyone: bool) -> bounded.Outcome:
        left = self.deadline - time.monotonic()
        return bounded.run([self.path, "show", "node", *([] if everyone else [self.node])], left / 2, self.env)

    def update(self, *fields: str) -> bounded.Outcome:
        left = max(self.deadline - time.monotonic(), 0.5)
        return bounded.run([self.path, "update", f"NodeName={self.node}", *fields], left, self.env)


def _tell_slurm(
    asking: _Scontrol, state: NodeState, state_dir: str, refusal: Refusal, told: bool
) -> tuple[bool, str, bool]:
    """Whether the job is refused, the line for the log, and whether Slurm now knows all there is to know."""
    node = asking.node
    try:
        with DrainLock(state_dir, min(3.0, asking.budget_s / 2)) as held:
            if not held:
                return not told, "another part of AIStation is draining this node right now", False
            shared = _shared(refusal.check)
            shown = asking.show(everyone=shared)
            own = _own_text(shown.output, node) if shared else shown.output
            if shown.code != 0 or not own:
                # without a look at what is there we would write over an administrator's words
                why = f"it is not known whether {node} is drained, so Slurm's own reason must do: {said(shown)}"
                return not told, why, False
            drained = "DRAIN" in node_flags(own)
            if told and not drained:
                why = f"{node} was drained for this very {refusal.check} and somebody gave it back since"
                return False, why, False
            if shared and not drained:
                why = _why_not_alone(shown.output, node, refusal.check, state)
                if why:
                    return False, why, False
            fields = [] if drained else ["State=DRAIN", f"Reason={refusal.reason}"]
            comment = refusals.comment_field(shown_comment(own), [(refusal.job_id, refusal.time)])
            if comment is not None:
                fields.append(f"Comment={comment}")
            if fields:
                done = asking.update(*fields)
                if done.code != 0:
                    lost = "the job is not named there" if drained else "Slurm drains with its own reason"
                    return True, f"{node} could not be updated, {lost}: {said(done)}", False
            if drained:
                return True, f"{node} is drained already; its reason stays", True
            _note_acted(state_dir, refusal)
            return True, f"{node} drained: {refusal.reason}", True
    except OSError as exc:
        return True, f"drain reason not set, Slurm drains with its own: {exc}", False


def _shared(check: str) -> bool:
    return not check.startswith("gpu.")


def _moment_s(name: str, span_s: float) -> float:
    from aistation_slurm.correlation.published import moment_s

    return moment_s(name, max(span_s, 0.0))


def _own_text(text: str, name: str) -> str:
    from aistation_slurm.node.neighbours import own_text

    return own_text(text, name)


def _why_not_alone(text: str, name: str, check: str, state: NodeState) -> str:
    from aistation_slurm.node.neighbours import read_neighbours, why_not_alone

    return why_not_alone(read_neighbours(text), name, check, state, time.time())


def _note_acted(state_dir: str, refusal: Refusal) -> None:
    """For agent and cron: an administrator who gives the node back is not argued with."""
    try:
        acted.write(state_dir, acted.read(state_dir) | {(refusal.check, refusal.subject)})
    except OSError:
        pass  # the next look then drains again, with the same reason


def _keep(state_dir: str, refusal: Refusal) -> None:
    try:
        refusals.keep(state_dir, refusal)
    except OSError:
        pass  # a full or read-only /run must not let the job start on a sick GPU


def of_the_past(line: DeviceLine) -> bool:
    """Told by the kernel log alone, which keeps it until the next boot, also after the GPU was reset."""
    return line.check == "gpu.xid" or (line.check == "gpu.lost" and set(line.evidence.split(", ")) <= LOG_WORDS)


def reason_for(line: DeviceLine, node: str, boot: str) -> str:
    """The same text as the agent's for the same fault."""
    finding = Finding(check=line.check, status=Status.FAIL, subject=line.subject, evidence=line.evidence)
    return drain_reason(finding, node=node, boot_id=boot)


def node_name(env: Mapping[str, str]) -> str:
    """SLURMD_NODENAME where it is a plain name, else ""."""
    name = env.get("SLURMD_NODENAME", "")
    fit = name.isascii() and 0 < len(name) <= 255 and all(c.isalnum() or c in "._-" for c in name)
    return name if fit and name[0].isalnum() else ""


def node_flags(text: str) -> frozenset[str]:
    """Words of ``State=`` in ``scontrol show node``, e.g. ``State=MIXED+DRAIN+COMPLETING*``."""
    for word in text.split():
        if word.startswith("State="):
            return frozenset(word[6:].rstrip("*~#!%$@^-").upper().split("+"))
    return frozenset()


def said(outcome: bounded.Outcome) -> str:
    return "no answer in time" if outcome.code is None else plain(outcome.output)[:200] or f"exit code {outcome.code}"
