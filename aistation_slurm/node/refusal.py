"""The gate's failing path: put our own reason on this node, with at most two bounded requests, before exit 1.

Slurm keeps a reason that is there when it drains the node itself for the failed prolog (slurmctld's _drain_node), so
the cause is not lost behind "Prolog error".
"""

from __future__ import annotations

import time

from aistation_slurm.findings import Finding, Status, drain_reason
from aistation_slurm.node import acted, bounded
from aistation_slurm.node.gate_job import plain
from aistation_slurm.node.lock import DrainLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from aistation_slurm.node.state import DeviceLine, NodeState

__all__ = ["node_flags", "node_name", "of_the_past", "reason_for", "refuse"]

LOG_WORDS = frozenset({"Xid 79", "fallen off the bus in the kernel log"})
"""All that gpu.lost says (detectors/gpu.py) where bus and driver show nothing."""


def refuse(
    state: NodeState, state_dir: str, line: DeviceLine, env: Mapping[str, str], budget_s: float
) -> tuple[bool, str]:
    """Drain this node with our reason unless it is drained already.

    False with the why where the job must pass after all; else True with a line for the log.
    """
    deadline = time.monotonic() + max(budget_s, 1.0)
    name = node_name(env)
    reason = reason_for(line, name, state.boot_id)
    # drained for before: it is for whoever gave the node back to know, and where that cannot be asked, doubt starts the job
    told = of_the_past(line) and (line.check, line.subject) in acted.read(state_dir)
    if not name:
        return not told, "no SLURMD_NODENAME: the drain reason is left to Slurm"
    scontrol = f"{state.bin_dir.rstrip('/')}/scontrol"
    plain_env = dict(bounded.PLAIN_ENV)
    conf = state.slurm_conf or env.get("SLURM_CONF", "")
    if conf:
        plain_env["SLURM_CONF"] = conf
    try:
        with DrainLock(state_dir, min(3.0, budget_s / 2)) as held:
            if not held:
                return not told, "another part of AIStation is draining this node right now"
            left = deadline - time.monotonic()
            shown = bounded.run([scontrol, "-o", "show", "node", name], left / 2, plain_env)
            if shown.code != 0:
                # without a look at what is there we would write over an administrator's words
                return (
                    not told,
                    f"it is not known whether {name} is drained, so Slurm's own reason must do: {said(shown)}",
                )
            if "DRAIN" in node_flags(shown.output):
                return True, f"{name} is drained already; its reason stays"
            if told:
                return False, f"{name} was drained for this very {line.check} and somebody gave it back since"
            update = [scontrol, "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}"]
            done = bounded.run(update, max(deadline - time.monotonic(), 0.5), plain_env)
            if done.code != 0:
                return True, f"drain reason not set, Slurm drains with its own: {said(done)}"
            return True, f"{name} drained: {reason}"
    except OSError as exc:
        return True, f"drain reason not set, Slurm drains with its own: {exc}"


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
    """Words of ``State=`` in ``scontrol -o show node``, e.g. ``State=MIXED+DRAIN+COMPLETING*``."""
    for word in text.split():
        if word.startswith("State="):
            return frozenset(word[6:].rstrip("*~#!%$@^-").upper().split("+"))
    return frozenset()


def said(outcome: bounded.Outcome) -> str:
    return "no answer in time" if outcome.code is None else plain(outcome.output)[:200] or f"exit code {outcome.code}"
