"""The prolog as Slurm starts it: its own process, an environment of a few variables, a make-believe node."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Optional

import pytest

from aistation_slurm.detectors import gpu as gpu_detector
from aistation_slurm.findings import Finding, Status
from aistation_slurm.node import acted, history, jobs
from aistation_slurm.probes.nvml import NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu
from tests.cluster.faults import gpu_lost, ib_down, ib_rate, xid
from tests.unit.node.sim import PROLOG, SimNode


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    made = SimNode(tmp_path)
    made.scontrol()
    return made


def gate(node: SimNode, env: Optional[dict[str, str]] = None, **more: str) -> subprocess.CompletedProcess[str]:
    environment = env if env is not None else node.environment(**more)
    return subprocess.run([str(PROLOG)], env=environment, capture_output=True, text=True, timeout=120, check=False)


def started_with(node: SimNode) -> list[str]:
    """Command lines of the processes that have this test's aistation.toml in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.fsencode(node.toml) in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return found


def drained_with(node: SimNode) -> str:
    """The reason in the one update that was made."""
    (call,) = [c for c in node.calls() if "<update>" in c]
    assert call.startswith("<update><NodeName=gpu1><State=DRAIN><Reason=")
    return call.partition("<Reason=")[2].rstrip(">")


# ---- passing


def test_a_healthy_node_passes_without_a_word_or_a_request(node: SimNode) -> None:
    node.write_state()
    ran = gate(node)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert node.calls() == []


def test_the_passing_path_imports_the_standard_librarys_cheapest_parts_only(node: SimNode) -> None:
    node.write_state()
    ran = subprocess.run(
        ["/usr/bin/python3", "-ISE", "-X", "importtime", str(PROLOG)],
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "aistation_slurm.node.gate" in loaded
    dear = {"json", "subprocess", "dataclasses", "enum", "typing", "re", "argparse", "logging", "threading", "socket"}
    assert not loaded & dear
    third_party = {"msgspec", "click", "rich", "psutil", "pynvml", "ClusterShell"}
    assert not {name.partition(".")[0] for name in loaded} & third_party


def test_the_gate_notes_the_job_for_agent_and_epilog(node: SimNode) -> None:
    node.write_state()
    gate(node, SPANK_AISTATION_RESUME="megatron", SLURM_JOB_RESTART_COUNT="2")
    record = jobs.read(str(node.run), 42)
    assert record is not None
    assert (record.uid, record.restart_count, record.gpus, record.resume) == (20001, 2, {0, 1}, "megatron")
    assert (node.run / "jobs").stat().st_mode & 0o777 == 0o700
    assert (node.run / "jobs/42").stat().st_mode & 0o777 == 0o600


def test_the_largest_uid_is_a_uid(node: SimNode) -> None:
    node.write_state()
    gate(node, SLURM_JOB_UID="4294967294")
    record = jobs.read(str(node.run), 42)
    assert record is not None
    assert record.uid == 4294967294


@pytest.mark.parametrize("resume", ["", "none", "$(id)", "auto\nresume=hf", "AUTO"])
def test_no_other_word_opts_a_job_in(node: SimNode, resume: str) -> None:
    node.write_state()
    gate(node, SPANK_AISTATION_RESUME=resume)
    record = jobs.read(str(node.run), 42)
    assert record is not None
    assert not record.opted_in


def test_a_fault_of_another_jobs_gpu_does_not_concern_this_one(node: SimNode) -> None:
    node.write_state(node.finding("gpu.lost", 3))
    node.inject(gpu_lost(3))
    assert gate(node, SLURM_JOB_GPUS="0-2").returncode == 0
    assert node.calls() == []


def test_a_job_without_gpus_passes_gpu_faults(node: SimNode) -> None:
    hang = Finding("gpu.driver_hang", Status.FAIL, "NVIDIA driver", "blocked for 40 s")
    node.write_state(node.finding("gpu.lost", 3), hang)
    env = node.environment()
    del env["SLURM_JOB_GPUS"]
    assert gate(node, env).returncode == 0


def test_warnings_and_unknowns_never_refuse(node: SimNode) -> None:
    node.write_state(node.finding("gpu.xid", 0, Status.WARN), node.finding("gpu.lost", 1, Status.UNKNOWN))
    assert gate(node).returncode == 0


def test_a_check_outside_of_gate_refuse_does_not_refuse(node: SimNode) -> None:
    node.write_state(Finding("host.disk", Status.FAIL, "/tmp", "1 % free"))
    assert gate(node).returncode == 0


def test_a_bad_port_is_no_matter_of_a_job_inside_one_node_with_some_gpus(node: SimNode) -> None:
    node.write_state(node.port_finding("fabric.port_state", "mlx5_2"))
    node.inject(ib_down("mlx5_2"))
    assert gate(node).returncode == 0


# ---- refusing


def test_a_finding_about_the_jobs_own_gpu_refuses_and_drains(node: SimNode) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    ran = gate(node)
    assert ran.returncode == 1
    pci = node.hardware.gpu(1).pci[:-2]
    assert drained_with(node).startswith(f"ais:gpu.xid GPU1 {pci} evidence [")
    assert len(node.calls()) == 2, "one look, one update"
    assert "refused: gpu.xid GPU1" in ran.stderr
    assert "refused: gpu.xid GPU1" in (node.run / "hooks.log").read_text()
    assert jobs.read(str(node.run), 42) is None, "a job that never started here must not be requeued from here"


def test_gres_indices_are_mapped_through_gres_conf(node: SimNode) -> None:
    (node.folder / "gres.conf").write_text("Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]\n")
    node.write_state(node.finding("gpu.xid", 3))
    assert gate(node, SLURM_JOB_GPUS="2,3").returncode == 0
    assert gate(node, SLURM_JOB_GPUS="1").returncode == 1


def test_a_gpu_lost_since_the_state_was_written_is_seen(node: SimNode) -> None:
    node.write_state(age_s=20)
    node.inject(gpu_lost(0))
    assert gate(node).returncode == 1
    assert drained_with(node).startswith(f"ais:gpu.lost GPU0 {node.hardware.gpu(0).pci[:-2]} ")


@pytest.mark.parametrize(
    ("fault", "check"), [(ib_down("mlx5_2"), "fabric.port_state"), (ib_rate("mlx5_2", 100), "fabric.rate")]
)
@pytest.mark.parametrize("whole", [{"SLURM_JOB_NUM_NODES": "2"}, {"SLURM_JOB_GPUS": "0-3"}])
def test_a_port_that_got_worse_refuses_jobs_that_use_the_fabric(
    node: SimNode, fault: object, check: str, whole: dict[str, str]
) -> None:
    node.write_state(age_s=20)
    node.inject(fault)  # type: ignore[arg-type]
    assert gate(node, **whole).returncode == 1
    assert drained_with(node).startswith(f"ais:{check} mlx5_2/1 ")


def test_a_port_that_only_flickers_does_not_refuse(node: SimNode) -> None:
    """The second look finds it well: what is not so any more drains nobody."""
    node.write_state(age_s=20)
    state_file = node.hardware.root / "sys/class/infiniband/mlx5_2/ports/1/state"
    state_file.unlink()
    os.mkfifo(state_file)
    process = subprocess.Popen([str(PROLOG)], env=node.environment(SLURM_JOB_NUM_NODES="2"), stderr=subprocess.PIPE)
    try:
        with state_file.open("w") as pipe:  # opens when the gate reads
            state_file.unlink()
            state_file.write_text("4: ACTIVE\n")
            pipe.write("2: INIT\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
    assert node.calls() == []


def test_a_hung_driver_refuses_jobs_with_gpus(node: SimNode) -> None:
    node.write_state(Finding("gpu.driver_hang", Status.FAIL, "NVIDIA driver", "blocked for 40 s"))
    assert gate(node).returncode == 1
    assert drained_with(node).startswith("ais:gpu.driver_hang NVIDIA driver blocked for 40 s [")


def test_a_missing_gpu_only_concerns_the_job_that_was_given_it(node: SimNode) -> None:
    """gres.conf says four; GPU 3 is not on the bus at all."""
    report = node.report(Finding("gpu.count", Status.FAIL, "GPUs", "3 found, expected 4"))
    node.hardware.gpus = node.hardware.gpus[:3]
    node.write_state(*report.findings)
    assert gate(node, SLURM_JOB_GPUS="0,1").returncode == 0
    assert gate(node, SLURM_JOB_GPUS="3").returncode == 1
    assert drained_with(node).startswith("ais:gpu.count ")


def test_an_older_finding_is_looked_at_again_before_it_refuses(node: SimNode) -> None:
    """The state is 60 s old and tells of a port that is up again: a new look, no drain."""
    node.write_state(node.port_finding("fabric.port_state", "mlx5_2"), age_s=60)
    ran = gate(node, SLURM_JOB_NUM_NODES="2")
    assert (ran.returncode, node.calls()) == (0, [])
    assert "aistation-state 1 " in (node.run / "state").read_text()
    assert "port mlx5_2/1 ok" in (node.run / "state").read_text()


# ---- the failing path and the controller


@pytest.mark.parametrize(
    "shown", ["NodeName=gpu1 State=MIXED+DRAIN Reason=memory test", "NodeName=gpu1 State=DRAINING"]
)
def test_another_ones_drain_is_not_touched(node: SimNode, shown: str) -> None:
    node.scontrol(shown=shown.replace("DRAINING", "ALLOCATED+DRAIN*"))
    node.write_state(node.finding("gpu.xid", 1))
    assert gate(node).returncode == 1
    assert not any("<update>" in c for c in node.calls())


def test_a_controller_that_does_not_answer_costs_the_budget_at_most(node: SimNode) -> None:
    """Without a look, nothing is written over; Slurm itself drains for the exit code."""
    node.scontrol(show="exec sleep 600")
    node.write_state(node.finding("gpu.xid", 1))
    begin = time.monotonic()
    assert gate(node).returncode == 1
    assert time.monotonic() - begin < 30
    assert not any("<update>" in c for c in node.calls())


@pytest.mark.parametrize("update", ["exit 1", "exec sleep 600"])
def test_the_job_is_refused_also_when_the_reason_cannot_be_set(node: SimNode, update: str) -> None:
    node.scontrol(update=update)
    node.write_state(node.finding("gpu.xid", 1))
    begin = time.monotonic()
    assert gate(node).returncode == 1
    assert time.monotonic() - begin < 30


def test_no_scontrol_at_all(node: SimNode) -> None:
    (node.bin / "scontrol").unlink()
    node.write_state(node.finding("gpu.xid", 1))
    ran = gate(node)
    assert ran.returncode == 1
    assert "cannot start" in ran.stderr


def test_a_node_given_back_after_an_xid_is_not_drained_for_it_again(node: SimNode) -> None:
    """The kernel log keeps the Xid, also after the GPU was reset and an administrator resumed the node."""
    finding = node.finding("gpu.xid", 1)
    node.write_state(finding)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    ran = gate(node)
    assert ran.returncode == 0
    assert "gave it back" in ran.stderr
    assert not any("<update>" in c for c in node.calls())


def test_a_lost_gpu_is_refused_also_after_somebody_gave_the_node_back(node: SimNode) -> None:
    node.inject(gpu_lost(1))
    finding = node.finding("gpu.lost", 1)
    node.write_state(finding)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    assert gate(node).returncode == 1


def test_a_lost_gpu_that_only_the_log_tells_of_is_not_drained_for_again(node: SimNode) -> None:
    """Xid 79 stays in the kernel log after the GPU was reset; the bus and the driver show it well."""
    node.inject(xid(1, 79))
    events = history.events(node.config)
    facts = gpu_detector.GpuFacts(NvmlSnapshot(), [PciGpu(node.hardware.gpu(1).pci, True, 1)], events, whole_node=False)
    finding = next(f for f in gpu_detector.findings(facts) if f.check == "gpu.lost")
    assert finding.status is Status.FAIL
    node.write_state(finding)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    ran = gate(node)
    assert ran.returncode == 0
    assert "gave it back" in ran.stderr


def test_a_fault_that_was_dealt_with_hides_no_other_one(node: SimNode) -> None:
    node.inject(gpu_lost(1))
    old = node.finding("gpu.xid", 0)
    node.write_state(old)
    acted.write(str(node.run), [(old.check, old.subject)])
    assert gate(node).returncode == 1
    assert "<Reason=ais:gpu.lost GPU1 " in node.calls()[-1]


def test_in_doubt_a_fault_that_was_dealt_with_does_not_refuse(node: SimNode) -> None:
    """The controller does not say whether the node was given back: exit 1 would drain it all the same."""
    node.scontrol(show="exit 1")
    finding = node.finding("gpu.xid", 1)
    node.write_state(finding)
    acted.write(str(node.run), [(finding.check, finding.subject)])
    assert gate(node).returncode == 0


def test_the_reason_is_set_also_where_no_lock_can_be_made(node: SimNode) -> None:
    node.write_state(node.finding("gpu.lost", 1))
    (node.run / "drain.lock").mkdir()
    assert gate(node).returncode == 1
    assert "<Reason=ais:gpu.lost GPU1 " in node.calls()[-1]


def test_a_lost_gpu_refuses_also_where_no_state_can_be_written(node: SimNode) -> None:
    """/run is full or read-only and there is no state: the check in place answers the gate itself."""
    node.run.write_text("a file where the folder should be", encoding="ascii")
    assert gate(node).returncode == 0
    node.inject(gpu_lost(1))
    ran = gate(node)
    assert ran.returncode == 1, ran.stderr
    assert drained_with(node).startswith("ais:gpu.lost GPU1 ")


# ---- modes


def test_observe_mode_says_and_passes(node: SimNode, tmp_path: Path) -> None:
    node.toml.write_text('mode = "observe"\n' + node.toml.read_text())
    node.write_state(node.finding("gpu.xid", 1))
    ran = gate(node)
    assert (ran.returncode, node.calls()) == (0, [])
    assert "would refuse the job and drain the node: gpu.xid GPU1" in ran.stderr


def test_health_off_passes_all_but_a_lost_gpu_of_its_own(node: SimNode) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    off = {"SPANK_AISTATION_HEALTH": "off"}
    assert gate(node, **off).returncode == 0
    node.inject(gpu_lost(1))
    assert gate(node, **off).returncode == 1


@pytest.mark.parametrize(("until", "code"), [(60.0, 0), (-60.0, 1)])
def test_an_open_breaker_passes_all_but_an_unusable_gpu(node: SimNode, until: float, code: int) -> None:
    node.write_state(node.port_finding("fabric.port_state", "mlx5_2"))
    node.inject(ib_down("mlx5_2"))
    (node.run / "breaker").write_text(f"open {time.time() + until:.0f} 40 of 64 nodes of gpu\n")
    ran = gate(node, SLURM_JOB_NUM_NODES="2")
    assert ran.returncode == code
    assert ("breaker is open" in ran.stderr) == (code == 0)
    node.write_state(node.finding("gpu.lost", 0))
    assert gate(node).returncode == 1


@pytest.mark.parametrize("text", ["", "open", "open soon x", "closed 99999999999 x", "\0\0"])
def test_a_damaged_breaker_file_is_a_closed_breaker(node: SimNode, text: str) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    (node.run / "breaker").write_text(text)
    assert gate(node).returncode == 1


# ---- state that cannot be used


@pytest.mark.parametrize("damage", ["missing", "cut", "other boot", "old", "future", "writable by others"])
def test_a_state_that_cannot_be_used_is_read_anew_in_place(node: SimNode, damage: str) -> None:
    path = node.write_state(
        age_s={"old": 4000.0, "future": -4000.0}.get(damage, 0.0), boot="other" if damage == "other boot" else ""
    )
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_text(path.read_text()[:200])
    elif damage == "writable by others":
        path.chmod(0o666)
    node.inject(gpu_lost(0))
    ran = gate(node)
    assert ran.returncode == 1, ran.stderr
    assert drained_with(node).startswith("ais:gpu.lost GPU0 ")


def test_a_node_that_cannot_be_checked_passes_with_a_warning(node: SimNode) -> None:
    """A broken aistation.toml is no sick node."""
    node.toml.write_text("[gate]\nbudgets = 3\n")
    ran = gate(node)
    assert (ran.returncode, node.calls()) == (0, [])
    assert "unknown key 'budgets'" in ran.stderr
    assert "starts unchecked" in ran.stderr


def test_checks_that_hang_cost_the_budget_and_pass(node: SimNode) -> None:
    """sysfs of a sick device blocks the full interpreter's check: killed in time, the job passes, nothing is drained."""
    node.toml.write_text(node.toml.read_text() + "[gate]\nbudget_s = 6.0\n")
    node.write_state(age_s=4000)
    path = node.hardware.root / node.hardware.pci_path(node.hardware.gpu(3).pci) / "config"
    path.unlink()
    os.mkfifo(path)
    begin = time.monotonic()
    ran = gate(node)
    assert (ran.returncode, node.calls()) == (0, [])
    assert time.monotonic() - begin < 40
    assert "did not end in time" in ran.stderr
    deadline = time.monotonic() + 20
    while (left := started_with(node)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []  # neither the check nor the child that it had asking the device


def test_an_old_state_still_tells_where_the_gpus_are(node: SimNode) -> None:
    """The check in place fails, but the job's own GPU is off the bus for everyone to see."""
    node.write_state(age_s=4000)
    node.toml.write_text("broken")
    node.inject(gpu_lost(0))
    assert gate(node).returncode == 1


def test_old_faults_alone_do_not_refuse(node: SimNode) -> None:
    node.write_state(node.finding("gpu.xid", 0), age_s=4000)
    node.toml.write_text("broken")
    assert gate(node).returncode == 0


def test_health_full_checks_in_place_even_with_a_fresh_state(node: SimNode) -> None:
    before = node.write_state().stat().st_ino
    assert gate(node, SPANK_AISTATION_HEALTH="full").returncode == 0
    assert (node.run / "state").stat().st_ino != before


# ---- hostile and broken environments

EVIL = "42; touch pwned; $(touch pwned) `touch pwned`\n\x1b[31m"


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_ID",
        "SLURM_JOB_UID",
        "SLURM_JOB_GPUS",
        "SLURM_JOB_NUM_NODES",
        "SLURM_JOB_RESTART_COUNT",
        "SLURM_JOB_NAME",
        "SLURM_JOB_COMMENT",
        "SPANK_AISTATION_RESUME",
        "SPANK_AISTATION_HEALTH",
        "SPANK_AISTATION_CKPT_DIR",
        "SPANK_PATH",
        "SPANK_LD_PRELOAD",
        "PYTHONPATH",
    ],
)
def test_no_value_reaches_a_shell_or_forges_a_line(node: SimNode, name: str) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    ran = gate(node, **{name: EVIL})
    assert ran.returncode in (0, 1)
    assert not list(node.folder.rglob("pwned"))
    assert not Path("pwned").exists()
    assert not any(EVIL in call for call in node.calls())
    assert "\x1b" not in ran.stderr


@pytest.mark.parametrize("name", ["--help", "gpu1 State=RESUME", "gpu1,gpu2", "", "gpu[1-9]", "ALL\n"])
def test_a_node_name_that_is_none_is_not_given_to_scontrol(node: SimNode, name: str) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    assert gate(node, SLURMD_NODENAME=name).returncode == 1
    assert node.calls() == []


@pytest.mark.parametrize("gpus", ["", "x", "0-", "-1", "0-99999999999", "9" * 5000, "0,,1", "0-1023", "１", "4", "1-0"])
def test_odd_gpu_lists_neither_crash_nor_refuse(node: SimNode, gpus: str) -> None:
    node.write_state()
    ran = gate(node, SLURM_JOB_GPUS=gpus)
    assert ran.returncode == 0, ran.stderr
    assert "internal error" not in ran.stderr


def test_an_empty_environment_passes(node: SimNode) -> None:
    ran = gate(node, env={})
    assert ran.returncode == 0
    assert "SLURM_JOB_ID" in ran.stderr


def test_a_job_record_that_cannot_be_written_does_not_stop_the_job(node: SimNode) -> None:
    node.write_state()
    (node.run / "jobs").write_text("in the way")
    ran = gate(node)
    assert ran.returncode == 0
    assert "will not requeue this job" in ran.stderr


def test_a_broken_installation_drains_nothing(tmp_path: Path) -> None:
    copy = tmp_path / "prolog/aistation-prolog"
    copy.parent.mkdir()
    copy.write_bytes(PROLOG.read_bytes())
    copy.chmod(0o755)
    ran = subprocess.run([str(copy)], env={}, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0
    assert "cannot be loaded" in ran.stderr


def test_it_works_through_a_link(node: SimNode, tmp_path: Path) -> None:
    node.write_state(node.finding("gpu.xid", 1))
    link = tmp_path / "prolog.d-50-aistation"
    link.symlink_to(PROLOG)
    ran = subprocess.run([str(link)], env=node.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
