"""Counters over looks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aistation_slurm.config import Expect
from aistation_slurm.detectors import gpu
from aistation_slurm.detectors.gpu_processes import GpuHolder
from aistation_slurm.detectors.gpu_processes import findings as process_findings
from aistation_slurm.detectors.rates import WINDOW_S, GpuLook, Look, gpu_looks, growth, slow_clock, slow_link
from aistation_slurm.findings import Status
from aistation_slurm.probes.gpu_setup import DriverSetup
from aistation_slurm.probes.nvml import GpuSnapshot, NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu

PCI = "0000:18:00.0"


def looks(*values: Any) -> list[Look]:
    return [Look(30.0 * i, {PCI: GpuLook(counters={} if v is None else {"replay": v})}) for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("earlier", "now", "grown"),
    [
        ([], 7, 0),
        ([5], 7, 2),
        ([5, 6], 7, 2),
        ([5, 0], 3, 3),
        ([5, None, 6], 7, 2),
        ([5], None, 0),
        ([2**64 - 1], 3, 3),
    ],
    ids=["first look", "one", "two", "reset", "a look without it", "not told now", "never a huge number"],
)
def test_growth(earlier: list[Any], now: Any, grown: int) -> None:
    assert growth(looks(*earlier), PCI, lambda look: look.counters.get("replay"), now) == grown


def test_speed_and_clock_say_nothing_without_load() -> None:
    idle = GpuSnapshot(
        0, pci=PCI, utilization=3, pcie_gen=1, pcie_max_gen=5, sm_clock=210, sm_clock_max=1980, throttle=1
    )
    assert (slow_link(idle), slow_clock(idle)) == (None, None)
    untold = GpuSnapshot(0, pci=PCI)
    assert (slow_link(untold), slow_clock(untold)) == (None, None)
    loaded = GpuSnapshot(0, pci=PCI, utilization=99, pcie_gen=4, pcie_max_gen=4, sm_clock=1700, sm_clock_max=1980)
    assert (slow_link(loaded), slow_clock(loaded)) == (False, False)
    capped = GpuSnapshot(0, pci=PCI, utilization=99, sm_clock=500, sm_clock_max=1980, throttle=0x4)
    assert slow_clock(capped) is False


def test_lost_cards_leave_no_look() -> None:
    assert gpu_looks([GpuSnapshot(0, pci=PCI, lost=True), GpuSnapshot(1)]) == {}


def test_a_clean_node_is_never_drained_over_a_thousand_looks_with_everything_moving() -> None:
    """Load, heat, clocks, link speed, replays and corrected errors move as on a node in use."""
    dice = random.Random(4)
    addresses = [f"0000:{0x10 + i:02x}:00.0" for i in range(8)]
    replays, corrected, thermal = [0] * 8, [0] * 8, [0] * 8
    earlier: list[Look] = []
    setup = DriverSetup("550.90.07", modules=frozenset({"nvidia", "nvidia_peermem"}))
    for number in range(1000):
        gpus = []
        for i, address in enumerate(addresses):
            busy = dice.random() < 0.7
            replays[i] += dice.randint(0, 1)
            corrected[i] += dice.randint(0, 2)
            thermal[i] += dice.randint(0, 10**8)
            held = dice.choice([0, 0, 0, 0x4, 0x20, 0x8])
            facts = {"pci": address, "minor": i, "name": "H100", "ecc_volatile": 0, "ecc_corrected": corrected[i]}
            facts |= {
                "utilization": dice.randint(60, 100) if busy else 0,
                "pcie_gen": 5 if busy else dice.randint(1, 5),
            }
            facts |= {"pcie_max_gen": 5, "pcie_width": 16, "pcie_max_width": 16, "sm_clock": dice.randint(1200, 1980)}
            facts |= {"sm_clock_max": 1980, "throttle": held if busy else 0x1, "thermal_ns": thermal[i]}
            facts |= {"temperature": dice.randint(30, 86), "temperature_slowdown": 89, "nvlinks": (True,) * 18}
            facts |= {"nvlink_errors": {"replay": replays[i]}, "pcie_replays": replays[i], "remap_failed": False}
            facts |= {"power_limit": 700_000, "persistence": True, "recovery_action": 0, "vbios": "96"}
            gpus.append(GpuSnapshot(i, **facts))  # type: ignore[arg-type]
        pci = [PciGpu(a, True, i, width=16, max_width=16, speed=2.5, max_speed=32.0) for i, a in enumerate(addresses)]
        now = 30.0 * number
        snapshot = NvmlSnapshot(tuple(gpus), driver="550.90.07")
        given = gpu.GpuFacts(snapshot, pci, expected=8, want=Expect(), earlier=earlier, now=now, setup=setup)
        bad = [f for f in gpu.findings(given, rdma=True) if f.status is not Status.OK]
        assert [f for f in bad if f.check != "gpu.throttle"] == []
        assert not [f for f in bad if f.drains]
        earlier = [look for look in [*earlier, Look(now, gpu_looks(gpus))] if look.time > now - WINDOW_S]


def test_processes_that_belong_to_no_job() -> None:
    names = gpu.Names(gpu.GpuFacts(None, [PciGpu(PCI, True, 2)]))
    holders = [
        GpuHolder(PCI, 10, "python", 1000, live=False, used=3 << 20),
        GpuHolder(PCI, 11, "python", 1000, live=True),
        GpuHolder(PCI, 12, "nvidia-smi", 0, live=False),
        GpuHolder(PCI, 13, "nvidia-cuda-mps-server", 1000, live=False),
        GpuHolder(PCI, 14, "gone", None, live=False),
    ]
    (found,) = process_findings(holders, names, ("nvidia-cuda-mps*",))
    assert (found.status, found.subject, found.drains) == (Status.WARN, "GPU2 0000:18:00", False)
    assert found.evidence == "process 10 (python, uid 1000, 3 MiB) belongs to no job on this node"
    assert [f.status for f in process_findings(None, names, ())] == [Status.UNKNOWN]
