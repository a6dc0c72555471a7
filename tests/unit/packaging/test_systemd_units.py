"""The systemd units: whole, in step with the configuration's defaults, and without a lock that makes the daemon blind."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aistation_slurm.config import Config

FOLDER = Path(__file__).resolve().parents[3] / "packaging/systemd"
AGENT, WATCHDOG = FOLDER / "aistation-agent.service", FOLDER / "aistation-watchdog.service"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def keys(unit: Path) -> dict[str, list[str]]:
    """Key -> values in order, over all sections."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@needs_systemd
@pytest.mark.parametrize("unit", [AGENT, WATCHDOG])
def test_systemd_takes_every_line(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/usr/bin/aistation", "/bin/true"))
    argv = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    # it loads what the unit is ordered after, too: only words about ours count
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
    broken = tmp_path / "broken.service"
    broken.write_text(copy.read_text().replace("Restart=", "Restrat="))
    argv[-1] = str(broken)
    assert "Restrat" in subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stderr


@pytest.mark.parametrize("unit", [AGENT, WATCHDOG])
def test_both_come_back_however_often_they_end(unit: Path) -> None:
    found = keys(unit)
    assert (found["Restart"], found["StartLimitIntervalSec"]) == (["always"], ["0"])
    assert found["WantedBy"] == ["multi-user.target"]
    assert {"MemoryMax", "TasksMax", "LimitNOFILE", "NoNewPrivileges"} <= set(found)


def test_the_agent_sees_devices_kernel_messages_and_jobs() -> None:
    found = keys(AGENT)
    blinding = {"PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "ProtectKernelLogs", "PrivateTmp"}
    blinding |= {"ProtectHome", "ProtectProc", "PrivateUsers", "PrivateNetwork", "MemoryDenyWriteExecute"}
    blinding |= {"ProtectKernelModules", "RestrictNamespaces", "User", "DynamicUser", "CapabilityBoundingSet"}
    assert sorted(blinding & set(found)) == []
    assert found["Type"] == ["notify"]
    # longer than the slowest beat of the loop (half of it) and than one request to Slurm with its retries
    assert float(found["WatchdogSec"][0]) >= 60


def test_the_agents_folder_is_the_configurations_and_outlives_it() -> None:
    found = keys(AGENT)
    assert f"/run/{found['RuntimeDirectory'][0]}" == Config().node.state_dir
    assert (found["RuntimeDirectoryMode"], found["RuntimeDirectoryPreserve"]) == (["0755"], ["yes"])


def test_the_watchdogs_folders_are_the_configurations() -> None:
    found, settings = keys(WATCHDOG), Config().watchdog
    assert f"/var/lib/{found['StateDirectory'][0]}" == str(Path(settings.journal).parent)
    assert found["StateDirectoryMode"] == ["0700"]
    made = [line.split()[-1] for line in found["ExecStartPre"] if "install -d" in line]
    assert made == [str(Path(settings.spool_dir).parent), settings.spool_dir]
    assert [path.lstrip("-") for path in found["ReadWritePaths"]] == made[:1]
    # the folder that a chown as root names lies in one of root's own
    assert "--reference" in found["ExecStartPre"][2]
    assert found["ExecStartPre"][2].endswith(settings.spool_dir)
    assert "slurm" not in found["ExecStartPre"][0] + found["ExecStartPre"][1]


def test_the_watchdog_is_slurms_user_without_any_privilege() -> None:
    found = keys(WATCHDOG)
    assert (found["User"], found["CapabilityBoundingSet"], found["ProtectSystem"]) == (["slurm"], [""], ["strict"])
    assert found["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


@pytest.mark.parametrize("unit", [AGENT, WATCHDOG])
def test_its_command_exists(unit: Path) -> None:
    command = keys(unit)["ExecStart"][0].split()
    assert command[0] == "/usr/bin/aistation"
    assert (FOLDER.parents[1] / f"aistation_slurm/cli/{command[1]}.py").exists()
