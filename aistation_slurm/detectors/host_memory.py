"""Memory of the host: ``host.memory``, ``host.swap``, ``host.memory_errors``, ``host.kernel``. Pure.

What jobs use up is shared in scope and never drains; an uncorrected memory error is the node's own hardware.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from aistation_slurm.config import Expect
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.probes.host import Memory
from aistation_slurm.probes.host_memory import MemoryController

__all__ = ["kernel_findings", "memory_error_findings", "memory_findings", "swap_findings"]

DIMM_SHARE = 0.95
"""Firmware and kernel keep some of what is installed; a lost DIMM is more than this."""


def memory_findings(memory: Optional[Memory], want: Expect) -> list[Finding]:
    """``host.memory``: a warning, since a running job may use nearly all of it; fewer DIMMs than expected fail."""
    check, subject = "host.memory", "memory"
    if memory is None:
        return [Finding(check, Status.UNKNOWN, subject, "meminfo cannot be read", scope=Scope.SHARED)]
    found = []
    gib = memory.total / 1048576
    if want.memory_gib is not None and gib < want.memory_gib * DIMM_SHARE:
        text = f"{gib:.0f} GiB, expected {want.memory_gib:g} GiB"
        found.append(Finding(check, Status.FAIL, "memory size", text, Action.INSPECT))
    percent = 100.0 * memory.available / memory.total if memory.total else 0.0
    limit = want.memory_available_percent
    text = f"{percent:.1f} % of {gib:.0f} GiB available, limit {limit:g} %"
    status, action = (Status.WARN, Action.INSPECT) if percent < limit else (Status.OK, Action.NONE)
    return [*found, Finding(check, status, subject, text, action, Scope.SHARED)]


def swap_findings(memory: Optional[Memory], want: Expect) -> Iterator[Finding]:
    if memory is None or not memory.swap_total:
        return
    used = 100.0 * (memory.swap_total - memory.swap_free) / memory.swap_total
    bad = used > want.swap_used_percent
    text = f"{used:.0f} % of {memory.swap_total / 1048576:.1f} GiB in use, limit {want.swap_used_percent:g} %"
    status, action = (Status.WARN, Action.INSPECT) if bad else (Status.OK, Action.NONE)
    yield Finding("host.swap", status, "swap", text, action, Scope.SHARED)


def memory_error_findings(
    controllers: Optional[Sequence[MemoryController]], memory: Optional[Memory], uptime_s: float, want: Expect
) -> Iterator[Finding]:
    """Since boot: one uncorrected error fails, many corrected ones a day warn. uptime_s: infinite where unknown."""
    check, worst = "host.memory_errors", 0
    for controller in controllers or ():
        where = ", ".join(f"{label}: {ue} and {ce}" for label, (ue, ce) in sorted(controller.dimms.items()))
        where = f" ({where} corrected)" if where else ""
        limit = want.memory_uncorrectable
        days = max(1.0, uptime_s / 86400) if uptime_s != float("inf") else 1.0
        rate = controller.corrected / days
        if controller.uncorrected > limit:
            worst = 2
            text = f"{controller.uncorrected} uncorrected errors since boot, limit {limit}{where}"
            yield Finding(check, Status.FAIL, controller.name, text, Action.INSPECT)
        elif rate > want.memory_corrected_per_day:
            worst = max(worst, 1)
            text = f"{rate:.0f} corrected errors a day, limit {want.memory_corrected_per_day:g}{where}"
            yield Finding(check, Status.WARN, controller.name, text, Action.INSPECT)
    if memory is not None and memory.corrupted and worst < 2:
        worst = 1
        text = f"the kernel has put {memory.corrupted} KiB aside as corrupted"
        yield Finding(check, Status.WARN, "memory", text, Action.INSPECT)
    if controllers and not worst:
        total = sum(c.corrected for c in controllers)
        yield Finding(check, Status.OK, "memory", f"no uncorrected error since boot, {total} corrected")


_TAINTS = {
    4: "a machine check happened",
    5: "a bad memory page was found",
    7: "the kernel had an oops",
    14: "a CPU was locked up",
}
"""Bits that tell of a fault. The others tell of modules (the NVIDIA driver's P, O, E) and warnings."""


def kernel_findings(taint: Optional[int]) -> Iterator[Finding]:
    if taint is None:
        return
    told = [text for bit, text in _TAINTS.items() if taint >> bit & 1]
    if told:
        text = f"{', '.join(told)} since boot (tainted {taint})"
        yield Finding("host.kernel", Status.WARN, "kernel", text, Action.REBOOT, Scope.SHARED)
    else:
        yield Finding("host.kernel", Status.OK, "kernel", f"tainted {taint}", scope=Scope.SHARED)
