"""Memory of the host, from values."""

from __future__ import annotations

from aistation_slurm.config import Expect
from aistation_slurm.detectors import host_memory
from aistation_slurm.findings import Status
from aistation_slurm.probes.host import Memory
from aistation_slurm.probes.host_memory import MemoryController

OK, WARN, FAIL, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.UNKNOWN
GIB = 1048576
DAY = 86400.0


def test_memory_in_use_is_a_warning_and_a_lost_dimm_a_fail() -> None:
    want = Expect(memory_available_percent=2, memory_gib=1024)
    whole = Memory(1008 * GIB, 500 * GIB)
    assert [f.status for f in host_memory.memory_findings(whole, want)] == [OK], (
        "the kernel keeps some of what is there"
    )
    busy = host_memory.memory_findings(Memory(1008 * GIB, 10 * GIB), want)
    assert [(f.status, f.drains) for f in busy] == [(WARN, False)]
    lost = host_memory.memory_findings(Memory(944 * GIB, 500 * GIB), want)
    assert [(f.subject, f.status, f.drains) for f in lost] == [("memory size", FAIL, True), ("memory", OK, False)]
    assert lost[0].evidence == "944 GiB, expected 1024 GiB"
    assert [f.status for f in host_memory.memory_findings(None, want)] == [UNKNOWN]


def test_swap_counts_only_where_there_is_some() -> None:
    assert list(host_memory.swap_findings(Memory(100, 50), Expect())) == []
    (used,) = host_memory.swap_findings(Memory(100, 50, swap_total=8 * GIB, swap_free=2 * GIB), Expect())
    assert (used.status, used.evidence) == (WARN, "75 % of 8.0 GiB in use, limit 50 %")
    (free,) = host_memory.swap_findings(Memory(100, 50, swap_total=8 * GIB, swap_free=8 * GIB), Expect())
    assert free.status is OK


def test_one_uncorrected_error_fails_and_names_the_dimm() -> None:
    controllers = [MemoryController("mc0", 0, 12), MemoryController("mc1", 1, 3, {"CPU1_DIMM_B2": (1, 3)})]
    (found,) = host_memory.memory_error_findings(controllers, None, DAY, Expect())
    assert (found.status, found.subject, found.drains) == (FAIL, "mc1", True)
    assert found.evidence == "1 uncorrected errors since boot, limit 0 (CPU1_DIMM_B2: 1 and 3 corrected)"


def test_corrected_errors_count_by_the_day() -> None:
    controllers = [MemoryController("mc0", 0, 5000)]
    (young,) = host_memory.memory_error_findings(controllers, None, DAY, Expect())
    assert (young.status, young.drains) == (WARN, False)
    (old,) = host_memory.memory_error_findings(controllers, None, 100 * DAY, Expect())
    assert (old.status, old.evidence) == (OK, "no uncorrected error since boot, 5000 corrected")


def test_pages_put_aside_are_a_warning() -> None:
    (found,) = host_memory.memory_error_findings(None, Memory(100, 50, corrupted=4), DAY, Expect())
    assert (found.status, found.drains) == (WARN, False)
    assert list(host_memory.memory_error_findings(None, Memory(100, 50), DAY, Expect())) == []


def test_taints_of_modules_and_warnings_are_no_fault() -> None:
    proprietary = 1 << 0 | 1 << 12 | 1 << 13 | 1 << 9
    assert [f.status for f in host_memory.kernel_findings(proprietary)] == [OK]
    (found,) = host_memory.kernel_findings(proprietary | 1 << 4 | 1 << 7)
    assert (found.status, found.drains) == (WARN, False)
    assert found.evidence.startswith("a machine check happened, the kernel had an oops since boot")
    assert list(host_memory.kernel_findings(None)) == []
