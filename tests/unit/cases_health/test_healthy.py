"""A healthy node stays healthy, look after look, while everything that moves on a node in use moves.

``AIS_HEALTHY_LOOKS`` is how many looks (60); 1000 is the long form.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from aistation_slurm.findings import Status
from aistation_slurm.node.health import check_node
from tests.cluster import faults
from tests.unit.cases_health.node import Node

LOOKS = int(os.environ.get("AIS_HEALTHY_LOOKS", "60"))
BETWEEN_S = 30.0
WRAP = 2**32


def move(node: Node, drawn: random.Random, look: int) -> None:
    """What a training does to a node's sensors and counters in half a minute."""
    hardware = node.hardware
    for gpu in range(len(hardware.gpus)):
        busy = drawn.random() < 0.9
        moved = {
            "temperature": drawn.randint(55, 74) if busy else drawn.randint(30, 40),
            "power_mw": drawn.randint(400_000, 690_000) if busy else drawn.randint(70_000, 90_000),
            "clock.sm": drawn.randint(1500, 1980) if busy else 345,
            "throttle": "0x4" if busy and drawn.random() < 0.3 else "0x0" if busy else "0x1",
            "ecc.volatile.corrected": look // 50,
            "pcie.replays": look // 20,
            "memory_used": drawn.randint(1 << 30, 70 << 30),
        }
        for name, value in moved.items():
            hardware.nvml.set(f"gpu.{gpu}.{name}", value)
    hardware.nvml.write()
    for slot, hca in enumerate(hardware.hcas):
        port = f"sys/class/infiniband/{hca.name}/ports/1/"
        for name in ("port_xmit_data", "port_rcv_data"):
            folder = port + "counters/"
            now = int(hardware.read(folder + name)) + drawn.randint(0, 2**30)
            hardware.put(folder + name, f"{now % WRAP}\n")
        served = port + "hw_counters/rx_write_requests"  # starts just below its wrap
        hardware.put(served, f"{(WRAP - 1_000_000 + look * 100_000) % WRAP}\n")
        if (look + slot) % 100 == 0:  # far below what a cable may show in an hour
            hardware.raise_counter(hca.name, "symbol_error", 1)
    hardware.write_meminfo(available_kib=drawn.randint(400_000_000, 1_900_000_000))


@pytest.mark.timeout(1800)
def test_a_healthy_node_in_use_is_never_judged_bad(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, began = random.Random(20261201), time.time()
    uptime = [90_000.0]
    monkeypatch.setattr("aistation_slurm.probes.host.uptime_s", lambda root=None: uptime[0])
    for look in range(LOOKS):
        move(node, drawn, look)
        uptime[0] += BETWEEN_S
        report = check_node(node.config, now=began + look * BETWEEN_S, node="gpu1")
        bad = [(f.check, f.subject, f.status.value, f.evidence) for f in report.findings if f.status is not Status.OK]
        assert not bad, f"look {look}: {bad}"
    node.inject(faults.ecc_uncorrectable(1), faults.ib_down(node.hardware.hcas[0].name))
    sick = check_node(node.config, now=began + LOOKS * BETWEEN_S, node="gpu1").findings
    assert {"gpu.ecc_uncorrectable", "fabric.port_state"} <= {f.check for f in sick if f.status is Status.FAIL}
