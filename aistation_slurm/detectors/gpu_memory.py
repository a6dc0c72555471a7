"""Memory of the GPU: ``gpu.ecc_uncorrectable``, ``gpu.ecc_corrected``, ``gpu.ecc_mode``, ``gpu.row_remap``,
``gpu.retired_pages``. Pure.

Before Ampere a bad page is retired (page tables); since Ampere a spare row takes its place (row remapping), and SRAM errors
are counted apart. NVIDIA's GPU memory error management: an uncorrectable error is cleared by a reset, a failed remap and an
exceeded SRAM threshold ask for another card, and new work may start while a remap is pending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from aistation_slurm.config import Expect
from aistation_slurm.detectors.gpu_facts import GpuFacts, Names, about
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.nvml import GpuSnapshot

__all__ = ["findings"]

RETIRED_FULL = 64
"""Pages that the card can retire in its life (NVIDIA, dynamic page retirement)."""


def findings(facts: GpuFacts, names: Names) -> Iterator[Finding]:
    for gpu in facts.working:
        yield from _uncorrectable(gpu, names, facts.want)
        yield from _corrected(gpu, names, facts.want)
        yield from _row_remap(gpu, names, facts.want)
        yield from _retired(gpu, names, facts.want)
    yield from _mode(facts.working, names)


def _uncorrectable(gpu: GpuSnapshot, names: Names, want: Expect) -> Iterator[Finding]:
    check, limit = "gpu.ecc_uncorrectable", want.ecc_uncorrectable
    if gpu.ecc_volatile is None:
        return
    if gpu.ecc_volatile > limit:
        sram = f" ({gpu.sram_volatile} of them in SRAM)" if gpu.sram_volatile else ""
        text = f"{gpu.ecc_volatile} uncorrectable errors{sram} since the driver was loaded, limit {limit}"
        yield about(names, gpu.pci, check, Status.FAIL, text, Action.GPU_RESET)
        return
    lifetime = gpu.sram_aggregate
    if gpu.sram_threshold:
        text = "the card says that its threshold of uncorrectable SRAM errors is exceeded"
        yield about(names, gpu.pci, check, Status.WARN, text, Action.REPLACE_GPU)
    elif lifetime is not None and lifetime > want.ecc_sram_lifetime:
        text = f"{lifetime} uncorrectable SRAM errors in the card's life, limit {want.ecc_sram_lifetime}"
        yield about(names, gpu.pci, check, Status.WARN, text, Action.REPLACE_GPU)
    else:
        text = f"{gpu.ecc_volatile} uncorrectable errors"
        text += f", {gpu.ecc_aggregate} in the card's life" if gpu.ecc_aggregate else ""
        yield about(names, gpu.pci, check, Status.OK, text)


def _corrected(gpu: GpuSnapshot, names: Names, want: Expect) -> Iterator[Finding]:
    if gpu.ecc_corrected is not None and gpu.ecc_corrected > want.ecc_corrected:
        text = f"{gpu.ecc_corrected} corrected errors since the driver was loaded, limit {want.ecc_corrected}"
        yield about(names, gpu.pci, "gpu.ecc_corrected", Status.WARN, text, Action.INSPECT)


def _row_remap(gpu: GpuSnapshot, names: Names, want: Expect) -> Iterator[Finding]:
    check = "gpu.row_remap"
    if gpu.remap_failed:
        yield about(names, gpu.pci, check, Status.FAIL, "row remapping failed", Action.REPLACE_GPU)
    elif gpu.remap_pending:
        yield about(names, gpu.pci, check, Status.WARN, "row remap pending, reset when idle", Action.GPU_RESET)
    elif gpu.remap_uncorrectable is not None and gpu.remap_uncorrectable > want.remapped_rows:
        text = f"{gpu.remap_uncorrectable} rows remapped for uncorrectable errors, limit {want.remapped_rows}"
        yield about(names, gpu.pci, check, Status.WARN, text, Action.REPLACE_GPU)
    elif gpu.banks_spent:
        text = f"{gpu.banks_spent} memory banks have no spare row left"
        yield about(names, gpu.pci, check, Status.WARN, text, Action.INSPECT)
    elif gpu.remap_failed is not None:
        yield about(names, gpu.pci, check, Status.OK, "no remap pending")


def _retired(gpu: GpuSnapshot, names: Names, want: Expect) -> Iterator[Finding]:
    check = "gpu.retired_pages"
    if gpu.retired_single is None and gpu.retired_double is None and gpu.retired_pending is None:
        return
    single, double = gpu.retired_single or 0, gpu.retired_double or 0
    pages = single + double
    text = f"{pages} pages retired ({double} for double bit errors)"
    if pages >= RETIRED_FULL:
        text += f", and the card can retire {RETIRED_FULL}"
        yield about(names, gpu.pci, check, Status.FAIL, text, Action.REPLACE_GPU)
    elif gpu.retired_pending:
        text += ", another is pending: reset when idle"
        yield about(names, gpu.pci, check, Status.WARN, text, Action.GPU_RESET)
    elif pages > want.retired_pages:
        yield about(names, gpu.pci, check, Status.WARN, f"{text}, limit {want.retired_pages}", Action.INSPECT)
    else:
        yield about(names, gpu.pci, check, Status.OK, text)


def _mode(gpus: Sequence[GpuSnapshot], names: Names) -> Iterator[Finding]:
    """ECC off on one of several like cards hides its errors; a change that waits for a reset is said too."""
    known = [g for g in gpus if g.ecc_enabled is not None]
    on = Counter(g.name for g in known if g.ecc_enabled)
    for gpu in known:
        if not gpu.ecc_enabled and on[gpu.name]:
            text = f"ECC is off; it is on with {on[gpu.name]} like cards of this node"
            yield about(names, gpu.pci, "gpu.ecc_mode", Status.WARN, text, Action.UPDATE_SOFTWARE)
        elif gpu.ecc_pending is not None and gpu.ecc_pending != gpu.ecc_enabled:
            text = f"ECC will be {'on' if gpu.ecc_pending else 'off'} after the next reset"
            yield about(names, gpu.pci, "gpu.ecc_mode", Status.WARN, text, Action.GPU_RESET)
