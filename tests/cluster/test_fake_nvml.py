"""The fake NVML as real pynvml sees it, in child processes (a library once loaded answers to its SONAME for ever)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import fakenvml, faults
from tests.cluster.hardware import Hardware

PRELUDE = """
import ctypes, json, os, sys
ctypes.CDLL(os.environ["FAKE_NVML_LIBRARY"])
from pynvml import *
nvmlInit()
def handle(i): return nvmlDeviceGetHandleByIndex(i)
"""

Ask = Callable[[str], Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fakenvml.build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture
def hardware(tmp_path: Path, library: Path) -> Hardware:
    made = Hardware(tmp_path / "aisim", "gpu1", gpus=8, hcas=2, boot_id="1b7e7c4e-0000-4000-8000-000000000001")
    made.install(library)
    return made


@pytest.fixture
def start(hardware: Hardware) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Run Python text after PRELUDE in a child with its own process group; ends what is left."""
    started: list[subprocess.Popen[str]] = []

    def run(text: str) -> subprocess.Popen[str]:
        env = {**os.environ, "FAKE_NVML_STATE": str(hardware.nvml.path)}
        env["FAKE_NVML_LIBRARY"] = str(hardware.folder / fakenvml.SONAME)
        argv = [sys.executable, "-c", PRELUDE + text]
        child = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(child)
        return child

    yield run
    for child in started:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.communicate()


@pytest.fixture
def ask(start: Callable[[str], subprocess.Popen[str]]) -> Ask:
    """Value of a Python expression in a fresh process; NVMLError is its number."""

    def value_of(expression: str) -> Any:
        text = f"try:\n    print(json.dumps({expression}))\nexcept NVMLError as exc:\n    print(exc.value)\n"
        out, err = start(text).communicate(timeout=60)
        assert out, err
        return json.loads(out)

    return value_of


def test_healthy_node(ask: Ask, hardware: Hardware) -> None:
    assert ask("[nvmlDeviceGetCount(), nvmlSystemGetDriverVersion(), nvmlSystemGetNVMLVersion()]")[0] == 8
    seen = ask("[[nvmlDeviceGetPciInfo(handle(i)).busId, nvmlDeviceGetUUID(handle(i))] for i in range(8)]")
    assert seen == [[f"0000{gpu.pci.upper()}", gpu.uuid] for gpu in hardware.gpus]
    assert ask("[nvmlDeviceGetMinorNumber(handle(i)) for i in range(8)]") == list(range(8))
    assert ask("[nvmlDeviceGetIndex(handle(5)), nvmlDeviceGetName(handle(0)), nvmlDeviceGetSerial(handle(0))]") == [
        5,
        "NVIDIA H100 80GB HBM3",
        hardware.gpus[0].serial,
    ]
    assert ask("[nvmlDeviceGetTotalEccErrors(handle(0), 1, 0), nvmlDeviceGetRemappedRows(handle(0))]") == [0, [0] * 4]
    assert ask("[nvmlDeviceGetNvLinkState(handle(0), k) for k in range(18)]") == [1] * 18
    assert ask("nvmlDeviceGetNvLinkState(handle(0), 18)") == 2  # invalid argument
    assert ask("nvmlDeviceGetComputeRunningProcesses(handle(0))") == []


def test_every_call_that_pynvml_makes_with_a_handle_is_there(ask: Ask) -> None:
    simple = (
        "EccMode CurrentClocksThrottleReasons CurrentClocksEventReasons SupportedClocksThrottleReasons PowerUsage "
        "EnforcedPowerLimit UtilizationRates CurrPcieLinkGeneration CurrPcieLinkWidth MaxPcieLinkGeneration "
        "MaxPcieLinkWidth PersistenceMode VbiosVersion InforomImageVersion MigMode RetiredPagesPendingStatus "
        "RowRemapperHistogram PciInfo PciInfo_v3 SupportedEventTypes MemoryInfo PcieReplayCounter"
    )
    assert (
        ask(
            f"[n for n in {simple.split()!r} if getattr(sys.modules['pynvml'], 'nvmlDeviceGet' + n)(handle(0)) is None]"
        )
        == []
    )
    assert ask("[nvmlDeviceGetClockInfo(handle(0), 1), nvmlDeviceGetTemperature(handle(0), 0)]") == [1980, 34]
    assert ask("[nvmlDeviceGetTemperatureThreshold(handle(0), k) for k in range(4)]") == [92, 89, 95, 87]
    assert ask("nvmlDeviceGetTemperatureV(handle(0), 0)") == 34
    assert ask("[nvmlDeviceGetRetiredPages(handle(0), k) for k in (0, 1)]") == [[], []]
    assert ask("nvmlDeviceGetMemoryErrorCounter(handle(0), 1, 1, 2)") == 0
    assert ask("[nvmlDeviceGetNvLinkErrorCounter(handle(0), 3, k) for k in range(4)]") == [0] * 4
    assert ask(
        "[nvmlDeviceGetNvLinkRemoteDeviceType(handle(0), 3), nvmlDeviceGetNvLinkRemotePciInfo(handle(0), 3).bus]"
    ) == [2, 8]
    memory = "nvmlDeviceGetMemoryInfo(handle(0), nvmlMemory_v2)"
    assert ask(f"(lambda m: [m.total - m.free - m.used - m.reserved, m.used])({memory})") == [0, 0]


def test_handles_by_address_uuid_and_serial(ask: Ask, hardware: Hardware) -> None:
    gpu = hardware.gpu(3)
    assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId({gpu.pci.encode()!r}))") == 3
    assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId({('0000' + gpu.pci.upper()).encode()!r}))") == 3
    assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID({gpu.uuid.encode()!r}))") == 3
    assert ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleBySerial({gpu.serial.encode()!r}))") == 3
    assert ask("nvmlDeviceGetHandleByPciBusId(b'0000:ff:00.0').value") == 6  # not found


def test_lost_gpu_is_counted_but_answers_nothing(ask: Ask, hardware: Hardware) -> None:
    faults.gpu_lost(3).apply(hardware)
    assert ask("nvmlDeviceGetCount()") == 8
    assert ask("handle(3).value") == 15
    assert ask("nvmlDeviceGetMinorNumber(handle(4))") == 4
    config = hardware.root / "sys/bus/pci/devices" / hardware.gpu(3).pci / "config"
    assert config.read_bytes() == b"\xff" * 256
    log = (hardware.folder / "kmsg").read_text()
    assert f"NVRM: Xid (PCI:{hardware.gpu(3).pci[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen" in log


def test_handle_got_before_the_loss_fails_too(
    start: Callable[[str], subprocess.Popen[str]], hardware: Hardware
) -> None:
    child = start(
        "h = handle(3)\nprint('ready', flush=True)\nsys.stdin.readline\n"
        "import time\n"
        "for _ in range(600):\n"
        "    try:\n        nvmlDeviceGetTemperature(h, 0)\n"
        "    except NVMLError as exc:\n        print(exc.value); break\n"
        "    time.sleep(0.1)\n"
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    faults.gpu_lost(3).apply(hardware)
    assert child.stdout.readline() == "15\n"


def test_missing_gpu_shifts_indexes_but_not_minors(ask: Ask, hardware: Hardware) -> None:
    faults.gpu_missing(3).apply(hardware)
    assert ask("nvmlDeviceGetCount()") == 7
    assert ask("[nvmlDeviceGetMinorNumber(handle(i)) for i in range(7)]") == [0, 1, 2, 4, 5, 6, 7]
    assert ask("nvmlDeviceGetIndex(handle(6))") == 6
    assert not (hardware.root / "sys/bus/pci/devices" / hardware.gpu(3).pci / "vendor").exists()


def test_errors_remaps_links_and_throttling(ask: Ask, hardware: Hardware) -> None:
    faults.ecc_uncorrectable(1, 2).apply(hardware)
    faults.ecc_uncorrectable(1, 3).apply(hardware)
    faults.row_remap(2, pending=True, uncorrectable=1).apply(hardware)
    faults.row_remap(4, failed=True).apply(hardware)
    faults.nvlink_down(5, 7).apply(hardware)
    faults.throttle(6, "hw_thermal", "hw_slowdown", temperature=91).apply(hardware)
    assert ask("[nvmlDeviceGetTotalEccErrors(handle(1), 1, k) for k in (0, 1)]") == [5, 5]
    assert ask("nvmlDeviceGetMemoryErrorCounter(handle(1), 1, 0, 2)") == 5
    assert ask("[nvmlDeviceGetRemappedRows(handle(i)) for i in (2, 4)]") == [[0, 1, 1, 0], [0, 0, 0, 1]]
    fields = "[NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_REMAPPED_FAILURE, 9999]"
    assert ask(f"[[v.nvmlReturn, v.value.ullVal] for v in nvmlDeviceGetFieldValues(handle(4), {fields})]") == [
        [0, 1],
        [0, 1],
        [3, 0],
    ]
    assert ask("[nvmlDeviceGetNvLinkState(handle(5), k) for k in (6, 7)]") == [1, 0]
    assert ask("[nvmlDeviceGetCurrentClocksEventReasons(handle(6)), nvmlDeviceGetTemperature(handle(6), 0)]") == [
        0x48,
        91,
    ]
    hardware.make_healthy()
    assert ask("[nvmlDeviceGetTotalEccErrors(handle(1), 1, 0), nvmlDeviceGetNvLinkState(handle(5), 7)]") == [0, 1]


def test_processes_hold_memory_while_they_live(ask: Ask, hardware: Hardware) -> None:
    holder = subprocess.Popen(["sleep", "600"])
    processes = "[[p.pid, p.usedGpuMemory] for p in nvmlDeviceGetComputeRunningProcesses(handle(0))]"
    expression = f"[{processes}, nvmlDeviceGetMemoryInfo(handle(0), nvmlMemory_v2).used]"
    try:
        faults.gpu_process(0, holder.pid, 2048).apply(hardware)
        assert ask(expression) == [[[holder.pid, 2048 << 20]], 2048 << 20]
    finally:
        holder.kill()
        holder.wait()
    assert ask(expression) == [[], 0]


def test_xid_event_reaches_one_who_waits(start: Callable[[str], subprocess.Popen[str]], hardware: Hardware) -> None:
    faults.xid(1, 31).apply(hardware)  # of before: not delivered
    child = start(
        "s = nvmlEventSetCreate()\n"
        "for i in range(8): nvmlDeviceRegisterEvents(handle(i), nvmlEventTypeXidCriticalError, s)\n"
        "print('ready', flush=True)\n"
        "e = nvmlEventSetWait_v2(s, 60000)\n"
        "print(nvmlDeviceGetIndex(e.device), e.eventData, e.eventType == nvmlEventTypeXidCriticalError)\n"
        "try:\n    nvmlEventSetWait_v2(s, 10)\n"
        "except NVMLError as exc:\n    print(exc.value)\n"
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    faults.xid(6, 79).apply(hardware)
    assert child.communicate(timeout=60)[0].split() == ["6", "79", "True", "10"]


def test_driver_not_loaded_and_slow_start(
    ask: Ask, start: Callable[[str], subprocess.Popen[str]], hardware: Hardware
) -> None:
    faults.nvml_error(9).apply(hardware)
    assert "Driver Not Loaded" in start("").communicate(timeout=60)[1]
    faults.nvml_error(0, delay_s=0.5).apply(hardware)
    assert ask("nvmlDeviceGetCount()") == 8
    hardware.nvml.path.unlink()
    assert "Driver Not Loaded" in start("").communicate(timeout=60)[1]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _until(predicate: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not predicate():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def _group(leader: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == leader and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(("kind", "state"), [("sleep", "S"), ("dstate", "D")])
def test_blocked_call(start: Callable[[str], subprocess.Popen[str]], hardware: Hardware, kind: Any, state: str) -> None:
    child = start("h = handle(2)\nprint('ready', flush=True)\nimport time\nwhile True: nvmlDeviceGetMinorNumber(h)\n")
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    faults.nvml_block(kind, function="nvmlDeviceGetMinorNumber").apply(hardware)
    calm = time.monotonic()
    while time.monotonic() - calm < 0.5:  # for half a second on end in the same state
        if _state(child.pid) != state:
            calm = time.monotonic()
        time.sleep(0.02)
    assert len(_group(child.pid)) == (2 if kind == "dstate" else 1)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait(10)
    _until(lambda: not _group(child.pid), "the whole group is gone")


def test_child_of_a_blocked_call_dies_with_its_parent_alone(
    start: Callable[[str], subprocess.Popen[str]], hardware: Hardware
) -> None:
    child = start("h = handle(2)\nprint('ready', flush=True)\nwhile True: nvmlDeviceGetMinorNumber(h)\n")
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    faults.nvml_block("dstate", gpu=2).apply(hardware)
    _until(lambda: len(_group(child.pid)) == 2, "the call blocks")
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    _until(lambda: not _group(child.pid), "the vfork child is gone")


def test_healing_lets_a_blocked_call_return(start: Callable[[str], subprocess.Popen[str]], hardware: Hardware) -> None:
    faults.nvml_block("dstate").apply(hardware)
    child = start("print(nvmlDeviceGetCount())\n")
    _until(lambda: len(_group(child.pid)) == 2, "nvmlInit blocks")
    hardware.make_healthy()
    assert child.communicate(timeout=60)[0] == "8\n"
