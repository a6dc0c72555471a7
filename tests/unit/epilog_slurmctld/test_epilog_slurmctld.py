"""EpilogSlurmctld: one whole event file for a job that opted in, whatever its user wrote into its variables."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "epilog/aistation-epilog-slurmctld"

JOB = {
    "SLURM_JOB_ID": "1234",
    "SLURM_ARRAY_JOB_ID": "1230",
    "SLURM_ARRAY_TASK_ID": "4",
    "SLURM_JOB_UID": "20001",
    "SLURM_JOB_NODELIST": "gpu[1-2]",
    "SLURM_JOB_EXIT_CODE": "256",
    "SLURM_JOB_EXIT_CODE2": "1:0",
    "SLURM_JOB_DERIVED_EC": "0:0",
    "SLURM_JOB_RESTART_COUNT": "2",
    "SPANK_AISTATION_RESUME": "hf",
    "SPANK_AISTATION_MAX_RESTARTS": "3",
}

HOSTILE = {
    "a line end": "x\nJOB_ID=1",
    "a carriage return": "x\rJOB_ID=1",
    "a form feed": "x\fJOB_ID=1",
    "an escape sequence": "\x1b[2J",
    "over 1024 bytes": "x" * 1025,
}

SHELL = ["$(touch {mark})", "`touch {mark}`", "; touch {mark}", "' \" \\ %s %n * ~", "-n", "a|touch {mark}", "{mark}>x"]


def run(spool: Path, job: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """As slurmctld runs it: no PATH, nothing but Slurm's and the job's SPANK variables (and where the spool is)."""
    env = {"AISTATION_SPOOL": str(spool), **job}
    return subprocess.run([str(SCRIPT)], env=env, capture_output=True, text=True, timeout=30, check=False)


def events(spool: Path) -> list[dict[str, str]]:
    """Every event, as the watchdog reads it; a repeated name would be a forgery."""
    found = []
    for path in sorted(spool.glob("*.ev")):
        pairs = [line.partition("=")[::2] for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        assert len(dict(pairs)) == len(pairs)
        found.append(dict(pairs))
    return found


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "events"
    folder.mkdir()
    return folder


def test_the_event_of_a_job_that_opted_in(spool: Path) -> None:
    began = int(time.time())
    result = run(spool, JOB)
    (event,) = events(spool)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert began <= int(event.pop("TIME")) <= time.time()
    assert event == {
        "SPANK_AISTATION_RESUME": "hf",
        "SPANK_AISTATION_CKPT_DIR": "",
        "SPANK_AISTATION_MAX_RESTARTS": "3",
        "SPANK_AISTATION_HANG_TIMEOUT": "",
        "SPANK_AISTATION_HEALTH": "",
        "JOB_ID": "1234",
        "ARRAY_JOB_ID": "1230",
        "ARRAY_TASK_ID": "4",
        "UID": "20001",
        "NODELIST": "gpu[1-2]",
        "EXIT_CODE": "256",
        "EXIT_CODE2": "1:0",
        "DERIVED_EC": "0:0",
        "RESTART_COUNT": "2",
        "END": "1",
    }
    (path,) = spool.iterdir()
    assert path.name.startswith("1234.")
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "job",
    [
        {k: v for k, v in JOB.items() if k != "SPANK_AISTATION_RESUME"},
        {**JOB, "SPANK_AISTATION_RESUME": "none"},
        {**JOB, "SPANK_AISTATION_RESUME": ""},
        {**JOB, "SLURM_JOB_ID": "../../x"},
        {**JOB, "SLURM_JOB_ID": ""},
    ],
    ids=["not opted in", "none", "empty", "no job id", "empty job id"],
)
def test_no_event(spool: Path, job: dict[str, str]) -> None:
    assert run(spool, job).returncode == 0
    assert list(spool.iterdir()) == []


def test_a_job_that_did_not_opt_in_starts_no_process(tmp_path: Path) -> None:
    """With no programs and no spool to be found, it still ends well and says nothing: it looked for none."""
    trace = subprocess.run(
        ["/bin/sh", "-x", str(SCRIPT)],
        env={"SLURM_JOB_ID": "5"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert trace.returncode == 0
    assert trace.stderr.splitlines() == ["+ exit 0"]


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_value_that_could_forge_a_line_is_left_out(spool: Path, value: str) -> None:
    job = {**JOB, "SPANK_AISTATION_CKPT_DIR": value, "SPANK_AISTATION_MAX_RESTARTS": value}
    assert run(spool, job).returncode == 0
    (event,) = events(spool)
    assert event["JOB_ID"] == "1234"
    assert not {"SPANK_AISTATION_CKPT_DIR", "SPANK_AISTATION_MAX_RESTARTS"} & event.keys()


@pytest.mark.parametrize("text", SHELL)
def test_values_are_never_run_or_formatted(spool: Path, tmp_path: Path, text: str) -> None:
    mark = tmp_path / "mark"
    value = text.replace("{mark}", str(mark))
    job = {**JOB, "SPANK_AISTATION_CKPT_DIR": value, "SPANK_AISTATION_RESUME": value, "SPANK_AISTATION_HEALTH": value}
    assert run(spool, job).returncode == 0
    (event,) = events(spool)
    assert event["SPANK_AISTATION_CKPT_DIR"] == event["SPANK_AISTATION_RESUME"] == value
    assert not mark.exists()
    assert [path.suffix for path in spool.iterdir()] == [".ev"]


def test_a_long_node_list_is_kept_whole(spool: Path) -> None:
    """1000 nodes with irregular names."""
    nodes = ",".join(f"rack{n * 7919 % 1000}-gpu{n}" for n in range(1000))
    assert run(spool, {**JOB, "SLURM_JOB_NODELIST": nodes}).returncode == 0
    assert events(spool)[0]["NODELIST"] == nodes


def test_attempts_of_one_job_make_events_of_their_own(spool: Path) -> None:
    for count in range(5):
        run(spool, {**JOB, "SLURM_JOB_RESTART_COUNT": str(count)})
    assert sorted(event["RESTART_COUNT"] for event in events(spool)) == list("01234")


def test_a_spool_that_cannot_be_written_does_not_fail_the_job(tmp_path: Path) -> None:
    plain = tmp_path / "file"
    plain.touch()
    for spool in (tmp_path / "absent", plain):
        assert run(spool, JOB).returncode == 0
    assert sorted(tmp_path.iterdir()) == [plain]
