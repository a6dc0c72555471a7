"""``gpu.nvlink`` (links that are down), ``gpu.nvlink_errors`` (by rate), ``gpu.fabric_manager``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, about
from aistation_slurm.detectors.rates import GpuLook, growth, span_s
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.nvml import GpuSnapshot

__all__ = ["findings"]

FABRIC_DONE = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED."""
MIN_SPAN_S = 60.0


def findings(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    yield from _links(facts.gpus, names)
    yield from _errors(facts, names)
    yield from _fabric_manager(facts, names)


def _links(gpus: Sequence[GpuSnapshot], names: Names) -> list[Finding]:
    """A GPU with fewer links up than most like GPUs of the node.

    All GPUs alike is how the board is wired, or a fabric manager that has not started; MIG switches links off.
    """
    everything = [g for g in gpus if g.nvlinks and g.pci and not g.lost and not g.mig]
    found = []
    for name in dict.fromkeys(g.name for g in everything):
        found += _links_of_model([g for g in everything if g.name == name], names)
    return found


def _links_of_model(judged: Sequence[GpuSnapshot], names: Names) -> list[Finding]:
    counts = Counter(sum(g.nvlinks) for g in judged)
    usual, owners = max(counts.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    if not usual:
        return []
    found = []
    for gpu in judged:
        up = sum(gpu.nvlinks)
        if up < usual:
            down = ", ".join(str(i) for i, active in enumerate(gpu.nvlinks) if not active)
            text = f"{up} links up, most GPUs here have {usual}; down: {down}"
            clear = owners > len(judged) / 2
            status, action = (Status.FAIL, Action.GPU_RESET) if clear else (Status.WARN, Action.INSPECT)
            found.append(about(names, gpu.pci, "gpu.nvlink", status, text, action))
    return found or [Finding("gpu.nvlink", Status.OK, "GPUs", f"{usual} links up on each GPU")]


def _errors(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    """A warning: links repair what they can (replay, recovery), and what they cannot is an Xid 74."""
    span, limit = span_s(facts.earlier, facts.now), facts.want.nvlink_errors_per_min
    if span < MIN_SPAN_S:
        return
    for gpu in facts.working:
        grown = {}
        for kind, now in gpu.nvlink_errors.items():

            def read(look: GpuLook, kind: str = kind) -> Optional[int]:
                return look.counters.get(kind)

            grown[kind] = growth(facts.earlier, gpu.pci, read, now)
        per_minute = sum(grown.values()) * 60 / span
        if per_minute > limit:
            kinds = ", ".join(f"{n} {kind}" for kind, n in grown.items() if n)
            text = f"{per_minute:.1f} link errors a minute over {span / 60:.0f} min ({kinds}), limit {limit:g}"
            yield about(names, gpu.pci, "gpu.nvlink_errors", Status.WARN, text, Action.INSPECT)


def _fabric_manager(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    """Without registration CUDA does not start on NVSwitch systems.

    A warning, since it is a service: as a fail, its gate would drain node after node of a whole rack.
    """
    known = [g for g in facts.working if g.fabric_state and not g.mig]
    waiting = [g for g in known if g.fabric_state != FABRIC_DONE]
    refused = [g for g in known if g.fabric_state == FABRIC_DONE and g.fabric_status]
    check, subject = "gpu.fabric_manager", "NVSwitch fabric"
    if not known:
        return
    if waiting or refused:
        which = ", ".join(names.of(g.pci) for g in (*waiting, *refused)[:2])
        what = (
            "not registered with the fabric manager" if waiting else f"refused with status {refused[0].fabric_status}"
        )
        text = f"{len(waiting) + len(refused)} of {len(known)} GPUs {what} ({which}): CUDA does not start on them"
        yield Finding(check, Status.WARN, subject, text, Action.UPDATE_SOFTWARE, Scope.SHARED)
    else:
        yield Finding(check, Status.OK, subject, f"all {len(known)} GPUs registered", scope=Scope.SHARED)
