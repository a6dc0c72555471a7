"""Counters over looks: what they rose by, flaps and error rates."""

from __future__ import annotations

import random
from typing import Any, Optional

import msgspec
import pytest

from aistation_slurm.config import Expect, Fabric
from aistation_slurm.detectors import fabric
from aistation_slurm.detectors.fabric.errors import LIMITS, error_finding, gbit_per_s, symbol_limit
from aistation_slurm.detectors.fabric.flap import flap_finding
from aistation_slurm.detectors.fabric.history import CounterHistory, advance, risen
from aistation_slurm.detectors.fabric.pfc import pause_counters, pause_finding
from aistation_slurm.findings import Finding, Status
from aistation_slurm.probes.roce import Netdev
from tests.unit.detectors.test_fabric import port

DAY = 86400.0
WINDOWS = {"n": 3600.0, "link_downed": 43200.0}


def over(*looks: tuple[float, int], name: str = "n", settled: bool = True) -> CounterHistory:
    history: Optional[CounterHistory] = None
    for now, value in looks:
        history = advance(history, {name: value}, now, WINDOWS, settled)
    assert history is not None
    return history


@pytest.mark.parametrize(
    ("looks", "rise"),
    [
        ([(0, 500)], 0),
        ([(0, 500), (60, 500)], 0),
        ([(0, 500), (60, 507)], 7),
        ([(0, 500), (60, 507), (120, 510)], 10),
        ([(0, 500), (60, 3), (120, 5)], 2),
        ([(0, 2**64 - 1), (60, 4)], 0),
        ([(0, 0), (7200, 10)], 5),  # half of that time lies before the window
        ([(0, 0), (10, 10), (3700, 10)], 0),
        ([(5000, 0), (100, 9), (160, 10)], 1),  # the clock began anew
        ([(60, 1), (60, 3)], 0),  # no time in between: not the same node
    ],
)
def test_rises(looks: list[tuple[float, int]], rise: float) -> None:
    assert risen(over(*looks), "n", 3600.0) == pytest.approx(rise)


def test_a_counter_that_never_rests_stays_a_short_list_and_a_true_sum() -> None:
    history = over(*((30.0 * i, 7 * i) for i in range(2000)), name="link_downed")
    assert len(history.rises["link_downed"]) <= 43200 / 600 * 2
    assert risen(history, "link_downed", 43200.0) == pytest.approx(43200 / 30 * 7, rel=0.02)


def test_rises_while_the_fabric_comes_up_only_move_the_baseline() -> None:
    assert risen(over((0, 0), (60, 9), settled=False), "n", 3600.0) == 0


def test_a_counter_that_is_not_read_in_one_look_is_compared_with_the_last_one_known() -> None:
    history = advance(None, {"n": 5}, 0.0, WINDOWS)
    history = advance(history, {}, 30.0, WINDOWS)
    assert risen(advance(history, {"n": 8}, 60.0, WINDOWS), "n", 3600.0) == 3


def flaps(*looks: tuple[float, int], limits: Fabric = Fabric(), **facts: Any) -> Finding:  # noqa: B008
    found = flap_finding(port(**facts), over(*looks, name="link_downed"), limits)
    assert found is not None
    return found


def test_flaps_warn_fail_and_clear() -> None:
    assert flaps((0, 250)).status is Status.OK
    assert flaps((0, 0), (60, 2)).status is Status.OK
    assert flaps((0, 0), (60, 2), (4000, 3)).status is Status.WARN
    assert flaps((0, 0), (60, 10)).status is Status.WARN
    assert flaps((0, 0), (60, 11)).status is Status.FAIL
    assert flaps((0, 0), (60, 11), (60 + 43201, 11)).status is Status.OK
    assert flaps((0, 0), (60, 11), limits=Fabric(flap_fail=50)).status is Status.WARN
    assert not flaps((0, 0), (60, 11)).drains


def test_carrier_losses_of_the_interface_and_link_downed_are_the_same_losses() -> None:
    first = advance(
        None, {"link_downed": 0, "carrier_down_count": 5}, 0.0, {"link_downed": 9e9, "carrier_down_count": 9e9}
    )
    then = advance(
        first, {"link_downed": 3, "carrier_down_count": 9}, 60.0, {"link_downed": 9e9, "carrier_down_count": 9e9}
    )
    found = flap_finding(port(), then, Fabric())
    assert found is not None
    assert "went down 4 times" in found.evidence


def test_units() -> None:
    assert gbit_per_s(3_000_000_000, 1.0) == 96.0
    assert symbol_limit(400.0, 3600.0, 1e-12) == pytest.approx(1440)
    assert symbol_limit(None, 3600.0, 1e-12) == symbol_limit(10.0, 1.0, 1e-12) == 10


@pytest.mark.parametrize("name", sorted(set(LIMITS) - {"symbol_error"}))
def test_each_error_counter_has_a_limit(name: str) -> None:
    windows = dict.fromkeys(LIMITS, 3600.0)

    def judge(rise: int, limits: Fabric = Fabric()) -> Status:  # noqa: B008
        history = advance(advance(None, {name: 10**6}, 0.0, windows), {name: 10**6 + rise}, 60.0, windows)
        found = error_finding(port(), history, limits)
        assert found is not None
        return found.status

    assert judge(LIMITS[name] - 1) is Status.OK
    assert judge(LIMITS[name]) is Status.WARN
    assert judge(LIMITS[name], Fabric(errors_per_hour={name: LIMITS[name] + 1})) is Status.OK


def test_congestion_and_multicast_are_no_errors() -> None:
    assert not {"port_xmit_wait", "port_rcv_switch_relay_errors", "VL15_dropped"} & set(LIMITS)


def paused(us: int, storms: int = 0, seconds: float = 100.0) -> Status:
    windows = {"pause_sent_us": 1800.0, "pause_storms": 1800.0, "pause_frames_sent": 1800.0}
    first = advance(None, {"pause_sent_us": 10**9, "pause_storms": 7}, 0.0, windows)
    then = advance(first, {"pause_sent_us": 10**9 + us, "pause_storms": 7 + storms}, seconds, windows)
    found = pause_finding(port(link_layer="Ethernet"), then, Fabric())
    assert found is not None
    return found.status


def test_pauses() -> None:
    assert paused(0) is Status.OK
    assert paused(9_000_000) is Status.OK
    assert paused(11_000_000) is Status.WARN
    assert paused(9_000_000, seconds=10.0) is Status.OK, "too short to be told"
    assert paused(0, storms=1) is Status.WARN
    mlx5 = {
        "tx_prio3_pause_duration": 5,
        "tx_prio0_pause_duration": 2,
        "tx_pause_storm_warning_events": 1,
        "rx_prio3_pause": 9,
    }
    assert pause_counters([mlx5, {"tx_prio3_pause_duration": 1}]) == {"pause_sent_us": 8, "pause_storms": 1}
    assert pause_counters([{"tx_pfc_frames": 4, "rx_pfc_frames": 9}]) == {"pause_frames_sent": 4}
    assert pause_counters([{}]) == {}


def test_only_ports_that_jobs_use_are_counted() -> None:
    roce = port(
        "mlx5_bond_0",
        link_layer="Ethernet",
        lid=0,
        counters={"link_downed": 3},
        netdev=Netdev("bond0", carrier_downs=2),
    )
    ib, virtual = port(counters={"link_downed": 1}), port("mlx5_9", virtual=True, counters={"link_downed": 1})
    soft = port("rxe0", software=True, link_layer="Ethernet")

    def names(*ports: Any) -> list[str]:
        return list(fabric.counted(ports, Expect(), {}, 9000.0, 9000.0, Fabric()))

    assert names(ib, roce, virtual, soft) == ["ib mlx5_0/1"]
    assert names(roce, virtual, soft) == ["roce mlx5_bond_0/1"]
    alone = fabric.counted([roce], Expect(), {}, 9000.0, 9000.0, Fabric(), {"bond0": {"tx_pfc_frames": 3}})
    assert alone["roce mlx5_bond_0/1"].last == {"link_downed": 3, "carrier_down_count": 2, "pause_frames_sent": 3}


def test_a_card_in_another_slot_is_another_card() -> None:
    old = fabric.counted([port(pci="0000:19:00.0", counters={"link_downed": 0})], Expect(), {}, 9000.0, 9e3, Fabric())
    moved = [port(pci="0000:2b:00.0", counters={"link_downed": 90})]
    new = fabric.counted(moved, Expect(), old, 9030.0, 9e3, Fabric())
    found = {f.check: (f.status, f.evidence) for f in fabric.findings(moved, Expect(), 9e3, new)}
    assert found["fabric.flap"] == (Status.OK, "link_downed 90, the baseline from now on")


def test_a_port_that_was_there_earlier_in_this_boot() -> None:
    both = [port(pci="0000:19:00.0"), port("mlx5_1", pci="0000:2b:00.0")]
    seen = fabric.counted(both, Expect(), {}, 9000.0, 9e3, Fabric())

    def gone(ports: list[Any], **want: Any) -> list[tuple[str, Status]]:
        later = fabric.counted(ports, Expect(**want), seen, 9030.0, 9e3, Fabric())
        found = fabric.findings(ports, Expect(**want), 9e3, later)
        return [(f.subject, f.status) for f in found if "is gone" in f.evidence]

    assert gone(both) == []
    assert gone(both[:1]) == [("mlx5_1/1", Status.WARN)]
    assert gone([both[0], port("mlx5_7", pci="0000:2b:00.0")]) == [], "only its name is another"
    assert gone(both[:1], ignore_hcas=("mlx5_1",)) == gone(both[:1], ignore_hcas=("0000:2b:*",)) == []
    later = fabric.counted(both[:1], Expect(), seen, 9030.0, 9e3, Fabric())
    again = fabric.counted(both[:1], Expect(), later, 9060.0, 9e3, Fabric())
    assert [f.subject for f in fabric.findings(both[:1], Expect(), 9e3, again) if "is gone" in f.evidence] == [
        "mlx5_1/1"
    ]
    back = fabric.counted(both, Expect(), again, 9090.0, 9e3, Fabric())
    assert [f for f in fabric.findings(both, Expect(), 9e3, back) if "is gone" in f.evidence] == []


def test_a_busy_clean_node_is_never_blamed_over_a_thousand_looks() -> None:
    dice = random.Random(11)
    counters = [
        {
            "port_xmit_data": 0,
            "port_rcv_data": 0,
            "link_downed": 11,
            "symbol_error": 900,
            "port_rcv_errors": 77,
            "port_xmit_wait": 5,
        }
        for _ in range(8)
    ]
    histories: dict[str, CounterHistory] = {}
    for look in range(1000):
        for number, mine in enumerate(counters):
            mine["port_xmit_data"] += dice.randrange(10**11)
            mine["port_rcv_data"] += dice.randrange(10**11)
            mine["port_xmit_wait"] += dice.randrange(10**9)
            mine["symbol_error"] += dice.random() < 0.02
            mine["port_rcv_errors"] += dice.random() < 0.02
            # somebody works on the cabling: each port loses its link once in six hours
            mine["link_downed"] += look % 720 == 90 * number
        ports = [port(f"mlx5_{number}", counters=dict(mine)) for number, mine in enumerate(counters)]
        histories = fabric.counted(ports, Expect(), histories, 500.0 + 30 * look, 500.0 + 30 * look, Fabric())
        found = fabric.findings(ports, Expect(), 500.0 + 30 * look, histories)
        assert [f for f in found if f.status is not Status.OK] == [], look
    assert len(msgspec.json.encode(histories)) < 30_000
