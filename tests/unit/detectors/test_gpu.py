"""GPU findings from snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from aistation_slurm.detectors.gpu import GpuFacts, findings
from aistation_slurm.detectors.kernel_events import Event, find_events
from aistation_slurm.findings import Action, Finding, Status
from aistation_slurm.probes.klog_text import read_text
from aistation_slurm.probes.nvml import GpuSnapshot, NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu

ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3A, 0x5D)]
OK, WARN, FAIL, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.UNKNOWN


def healthy(index: int, **changes: Any) -> GpuSnapshot:
    facts: dict[str, Any] = {"pci": ADDRESSES[index], "minor": index, "ecc_volatile": 0, "remap_failed": False}
    facts.update(remap_pending=False, nvlinks=(True,) * 18, throttle=0, recovery_action=0)
    return GpuSnapshot(index, **{**facts, **changes})


def facts(*changed: GpuSnapshot, events: tuple[Event, ...] = (), **options: Any) -> GpuFacts:
    by_index = {g.index: g for g in changed}
    gpus = tuple(by_index.get(i, healthy(i)) for i in range(4))
    pci = [PciGpu(address, True, i) for i, address in enumerate(ADDRESSES)]
    return GpuFacts(**{"nvml": NvmlSnapshot(gpus=gpus), "pci": pci, "events": events, "expected": 4, **options})


def bad(given: GpuFacts) -> list[tuple[str, Status, str]]:
    return [(f.check, f.status, f.subject) for f in findings(given) if f.status is not OK]


def one(given: GpuFacts, check: str) -> Finding:
    (found,) = [f for f in findings(given) if f.check == check and f.status is not OK]
    return found


def klog(*lines: str) -> tuple[Event, ...]:
    return tuple(find_events(read_text(lines)))


XID = "[1.5] NVRM: Xid (PCI:0000:3a:00): {}, pid=7, name=x, text"


def test_a_healthy_node_passes_every_check() -> None:
    found = findings(facts())
    assert {f.status for f in found} == {OK}
    assert {f.check for f in found} == {
        "gpu.count",
        "gpu.lost",
        "gpu.xid",
        "gpu.ecc_uncorrectable",
        "gpu.row_remap",
        "gpu.nvlink",
    }


def test_a_node_without_gpus_has_no_gpu_findings() -> None:
    for nvml in (NvmlSnapshot(absent=True, error="no library"), NvmlSnapshot(error="nvmlInit: DRIVER_NOT_LOADED")):
        assert findings(GpuFacts(nvml, pci=(), log_error="/dev/kmsg: not permitted")) == []
    assert bad(GpuFacts(NvmlSnapshot(error="x"), pci=(), expected=8))[0][:2] == ("gpu.count", UNKNOWN)


def test_fewer_gpus_than_expected() -> None:
    found = one(facts(expected=5), "gpu.count")
    assert (found.status, found.action, found.device) == (FAIL, Action.REBOOT, None)
    assert found.evidence == "4 found, 4 on the PCI bus, expected 5"
    assert bad(facts(expected=None)) == []
    assert bad(facts(expected=5, whole_node=False)) == [("gpu.count", UNKNOWN, "GPUs")]


def test_nvml_that_does_not_answer_is_unknown_and_the_bus_still_tells() -> None:
    nvml = NvmlSnapshot(error="nvmlInit is blocked in the kernel")
    assert bad(facts(nvml=nvml)) == [("gpu.count", UNKNOWN, "GPUs")]
    assert one(facts(nvml=nvml, expected=5), "gpu.count").evidence == "4 on the PCI bus, expected 5"
    pci = [PciGpu(ADDRESSES[0], True), PciGpu(ADDRESSES[1], False)]
    assert ("gpu.lost", FAIL, "GPU 0000:2a:00") in bad(facts(nvml=nvml, pci=pci, expected=2))


@pytest.mark.parametrize("source", ["bus", "nvml", "xid", "sentence", "all"])
def test_a_lost_gpu_by_each_of_its_signs(source: str) -> None:
    pci = [PciGpu(a, not (i == 2 and source in ("bus", "all")), i) for i, a in enumerate(ADDRESSES)]
    gpus = (healthy(2, lost=True),) if source in ("nvml", "all") else ()
    lines = {"xid": [XID.format(79)], "sentence": ["[1.5] NVRM: GPU 0000:3a:00.0: GPU has fallen off the bus."]}
    lines["all"] = lines["xid"] + lines["sentence"]
    found = one(facts(*gpus, pci=pci, events=klog(*lines.get(source, []))), "gpu.lost")
    assert (found.status, found.subject, found.device) == (FAIL, "GPU2 0000:3a:00", "0000:3a:00.0")
    assert (found.action, found.drains) == (Action.REBOOT, True)
    assert found.evidence.count(",") == (2 if source == "all" else 0)


def test_a_lost_gpu_that_nvml_refuses_to_name_is_named_by_the_bus() -> None:
    nameless = GpuSnapshot(2, lost=True, errors={"nvmlDeviceGetHandleByIndex": "NVML_ERROR_GPU_IS_LOST"})
    assert one(facts(nameless), "gpu.lost").device == ADDRESSES[2]
    found = one(facts(nameless, pci=()), "gpu.lost")
    assert (found.subject, found.device) == ("NVML index 2", None)


def test_a_loss_before_the_driver_was_loaded_anew_does_not_count() -> None:
    reload = "[2.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 236"
    assert bad(facts(events=klog(XID.format(79), XID.format(119), reload))) == []


def test_only_what_the_table_says_drains() -> None:
    for code in (13, 31, 43, 45, 63, 94):
        assert bad(facts(events=klog(XID.format(code)))) == [], code
    for code in (92, 157, 999):
        assert bad(facts(events=klog(XID.format(code)))) == [("gpu.xid", WARN, "GPU2 0000:3a:00")], code
    for code, action in ((48, Action.GPU_RESET), (64, Action.REPLACE_GPU), (119, Action.GPU_RESET)):
        found = one(facts(events=klog(XID.format(code))), "gpu.xid")
        assert (found.status, found.action, found.device, found.drains) == (FAIL, action, ADDRESSES[2], True)
        assert found.evidence.startswith(f"Xid {code}: ")


def test_the_most_severe_xid_decides_and_all_are_named() -> None:
    found = one(facts(events=klog(XID.format(48), XID.format(64), XID.format(94))), "gpu.xid")
    assert (found.evidence, found.action) == ("Xid 64, Xid 48: GPU memory remapping failure", Action.REPLACE_GPU)


def test_a_fatal_switch_fault_is_the_nodes_own() -> None:
    line = "[1.5] nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 63 LTSSM Fault Up"
    found = one(facts(events=klog(line)), "gpu.xid")
    assert (found.subject, found.device, found.status) == ("nvswitch2 0000:85:00", None, FAIL)


def test_a_kernel_log_that_cannot_be_read_is_not_a_clean_one() -> None:
    given = facts(log_error="/dev/kmsg: Operation not permitted; without the kernel log an Xid is not seen")
    assert bad(given) == [("gpu.xid", UNKNOWN, "GPUs")]
    assert not [f for f in findings(facts(log_error=None)) if f.check == "gpu.xid"], "a capture without a log"


def test_blocked_sysfs_is_unknown() -> None:
    given = facts(pci=(), pci_error="sysfs of 0000:18:00.0 is blocked in the kernel")
    assert bad(given) == [("gpu.lost", UNKNOWN, "GPUs")]


@pytest.mark.parametrize(
    ("changes", "check", "status", "action"),
    [
        ({"ecc_volatile": 3}, "gpu.ecc_uncorrectable", FAIL, Action.GPU_RESET),
        ({"remap_failed": True}, "gpu.row_remap", FAIL, Action.REPLACE_GPU),
        ({"remap_pending": True}, "gpu.row_remap", WARN, Action.GPU_RESET),
        ({"recovery_action": 1}, "gpu.recovery", FAIL, Action.GPU_RESET),
        ({"recovery_action": 2}, "gpu.recovery", FAIL, Action.REBOOT),
        ({"recovery_action": 4}, "gpu.recovery", FAIL, Action.GPU_RESET),
        ({"recovery_action": 5}, "gpu.recovery", WARN, Action.INSPECT),
        ({"recovery_action": 99}, "gpu.recovery", WARN, Action.INSPECT),
        ({"throttle": 0x8 | 0x40, "temperature": 91}, "gpu.throttle", WARN, Action.INSPECT),
        ({"nvlinks": (True,) * 17 + (False,)}, "gpu.nvlink", FAIL, Action.GPU_RESET),
    ],
)
def test_telemetry(changes: dict[str, Any], check: str, status: Status, action: Action) -> None:
    found = one(facts(healthy(1, **changes)), check)
    assert (found.status, found.action, found.device) == (status, action, ADDRESSES[1])
    assert len(bad(facts(healthy(1, **changes)))) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"ecc_volatile": None, "remap_failed": None, "remap_pending": None},
        {"throttle": 0x1 | 0x4 | 0x20},
        {"nvlinks": ()},
        {"nvlinks": (False,) * 18, "mig": True},
        {"recovery_action": None},
        {"errors": {"nvmlDeviceGetComputeRunningProcesses": "NVML_ERROR_NO_PERMISSION"}},
    ],
    ids=["no ECC", "policy throttle", "no NVLink", "MIG", "old driver", "not root"],
)
def test_what_is_no_fault(changes: dict[str, Any]) -> None:
    assert bad(facts(healthy(1, **changes))) == []


def test_links_that_are_down_alike_everywhere_are_wiring_or_a_service() -> None:
    bridged = tuple(healthy(i, nvlinks=(True,) * 4 + (False,) * 8) for i in range(4))
    assert bad(facts(*bridged)) == []
    assert bad(facts(*(healthy(i, nvlinks=(False,) * 18) for i in range(4)))) == []
    half = [healthy(i, nvlinks=(True,) * (18 if i < 2 else 12) + (False,) * (0 if i < 2 else 6)) for i in range(4)]
    assert {status for _, status, _ in bad(facts(*half))} == {WARN}, "two against two decides nothing"


@pytest.mark.parametrize(
    ("errors", "status"),
    [
        ({"nvmlDeviceGetTotalEccErrors": "NVML_ERROR_UNKNOWN"}, FAIL),
        ({"nvmlDeviceGetMemoryInfo": "NVML_ERROR_RESET_REQUIRED"}, FAIL),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": "NVML_ERROR_UNKNOWN"}, WARN),
        ({"nvmlDeviceGetMemoryInfo": "NVML_ERROR_NO_PERMISSION"}, UNKNOWN),
    ],
)
def test_failed_questions(errors: dict[str, str], status: Status) -> None:
    assert one(facts(healthy(3, errors=errors)), "gpu.telemetry").status is status


def test_a_lost_gpu_is_not_blamed_for_its_silence_too() -> None:
    silent = healthy(3, lost=True, errors={"nvmlDeviceGetMemoryInfo": "NVML_ERROR_GPU_IS_LOST"}, nvlinks=())
    assert [check for check, _, _ in bad(facts(silent))] == ["gpu.lost"]


def test_names_use_the_minor_and_not_the_index() -> None:
    moved = GpuSnapshot(0, pci=ADDRESSES[3], minor=3, ecc_volatile=1)
    pci = [PciGpu(ADDRESSES[3], True, 3)]
    given = GpuFacts(NvmlSnapshot(gpus=(moved,)), pci, expected=1)
    assert one(given, "gpu.ecc_uncorrectable").subject == "GPU3 0000:5d:00"


def test_a_card_that_cannot_tell_its_address_is_found_by_the_bus() -> None:
    silent = GpuSnapshot(1, errors={"nvmlDeviceGetHandleByIndex": "NVML_ERROR_UNKNOWN"})
    found = one(facts(silent), "gpu.telemetry")
    assert (found.status, found.device) == (FAIL, ADDRESSES[1])
    alone = one(facts(silent, pci=()), "gpu.telemetry")
    assert (alone.status, alone.subject, alone.device) == (FAIL, "NVML index 1", None)
