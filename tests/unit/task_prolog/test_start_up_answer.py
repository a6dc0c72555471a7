"""What the start-up helper answers, from real directories and the job's environment."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aistation_slurm.checkpoints import startup
from aistation_slurm.checkpoints.attempts import ATTEMPTS, read, record
from aistation_slurm.checkpoints.slurm_view import Deadline, SlurmView
from aistation_slurm.checkpoints.startup import StartUp
from aistation_slurm.errors import CheckpointError

REPOSITORY = Path(__file__).resolve().parents[3]


def save(directory: Path, step: int) -> Path:
    """A checkpoint as transformers' Trainer writes it, with one real tensor."""
    folder = directory / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    header = b'{"w":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}}'
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(256)))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}), encoding="utf-8")
    return folder


def tear(folder: Path) -> None:
    """As a node leaves it that loses power while it writes."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    (folder / "trainer_state.json").unlink()


def env(directory: Path, attempt: int = 0, **more: str) -> dict[str, str]:
    restarted = {"SLURM_RESTART_COUNT": str(attempt)} if attempt else {}
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "gpu[1-2]",
        "SLURM_SPANK_AISTATION_RESUME": "auto",
        "SLURM_SPANK_AISTATION_CKPT_DIR": str(directory),
        **restarted,
        **more,
    }


def answer(job: dict[str, str]) -> list[str]:
    """Without a Slurm to ask."""
    return StartUp(job, slurm=SlurmView(job, Deadline(30), directories=())).answer()


def exports(lines: list[str]) -> dict[str, str]:
    return dict(line[len("export AISTATION_") :].partition("=")[::2] for line in lines if line.startswith("export "))


def notes(lines: list[str]) -> str:
    return "\n".join(line for line in lines if line.startswith("print aistation: "))


NOTHING = {"ATTEMPT": "0", "RESUME_ARGS": "", "RESUME_PATH": "", "RESUME_STEP": "", "EXCLUDED_NODES": ""}


def test_a_directory_that_is_missing_or_empty_is_a_first_start(tmp_path: Path) -> None:
    for directory in (tmp_path / "absent/below", tmp_path):
        lines = answer(env(directory))
        assert exports(lines) == NOTHING
        assert "starting from the beginning" in notes(lines)
    # transformers' example scripts refuse an output directory with a stray file in it
    assert list(tmp_path.iterdir()) == []


def test_no_directory_asks_for_nothing(tmp_path: Path) -> None:
    lines = answer({"SLURM_SPANK_AISTATION_RESUME": "auto", "SLURM_RESTART_COUNT": "4"})
    assert exports(lines) == {**NOTHING, "ATTEMPT": "4"}


def test_the_newest_valid_checkpoint_is_resumed(tmp_path: Path) -> None:
    path = save(tmp_path, 900)
    tear(save(tmp_path, 1000))
    lines = answer(env(tmp_path, attempt=2))
    assert exports(lines) == {
        "ATTEMPT": "2",
        "RESUME_ARGS": f"--resume_from_checkpoint {path}",
        "RESUME_PATH": str(path),
        "RESUME_STEP": "900",
        "EXCLUDED_NODES": "",
    }
    assert f"resumes from {path}, step 900" in notes(lines)
    assert "skipped" in notes(lines)
    assert "checkpoint-1000" in notes(lines)
    (entry,) = read(tmp_path)
    assert abs(entry["time"] - time.time()) < 60
    told = {"attempt": 2, "job": "77", "nodes": "gpu[1-2]", "step": 900, "path": str(path), "verdict": "ok"}
    assert told.items() <= entry.items()


def test_the_users_template_is_filled(tmp_path: Path) -> None:
    path = save(tmp_path, 900)
    template = {"SLURM_SPANK_AISTATION_RESUME_ARGS_TEMPLATE": "--load {path} --step {step} --from {dir}"}
    lines = answer(env(tmp_path, **template))
    assert exports(lines)["RESUME_ARGS"] == f"--load {path} --step 900 --from {tmp_path}"


@pytest.mark.parametrize("template", ["--load {file}", "--load $(id) {path}", "--load *", "{path}\nexport X=y"])
def test_a_forged_template_is_refused(tmp_path: Path, template: str) -> None:
    """Submissions that pass by the SPANK plugin have been checked by nobody."""
    save(tmp_path, 900)
    with pytest.raises(CheckpointError, match="resume arguments"):
        answer(env(tmp_path, SLURM_SPANK_AISTATION_RESUME_ARGS_TEMPLATE=template))


@pytest.mark.parametrize("name", ["a\nexport LD_PRELOAD=x", "a b", "a*", "a?", "a[1]", "a\x1b[2J", "a\u2028b"])
def test_a_path_that_the_script_would_take_apart_is_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, 900)
    with pytest.raises(CheckpointError):
        answer(env(tmp_path / name))


def test_a_path_with_a_control_character_is_refused_whatever_the_template(tmp_path: Path) -> None:
    save(tmp_path / "a\nexport X=y", 900)
    with pytest.raises(CheckpointError, match="control character"):
        answer(env(tmp_path / "a\nexport X=y", SLURM_SPANK_AISTATION_RESUME_ARGS_TEMPLATE="--step {step}"))


def test_checkpoints_of_which_none_is_valid_stop_the_start(tmp_path: Path) -> None:
    for step in (900, 1000):
        tear(save(tmp_path, step))
    for attempt in (0, 1):
        with pytest.raises(CheckpointError, match="none of them valid"):
            answer(env(tmp_path, attempt))


def test_a_first_save_that_was_cut_short_is_no_loss(tmp_path: Path) -> None:
    """The fault struck while the very first checkpoint was written: there is nothing else to resume from."""
    tear(save(tmp_path, 100))
    with pytest.raises(CheckpointError):
        answer(env(tmp_path, attempt=0))
    lines = answer(env(tmp_path, attempt=1))
    assert exports(lines) == {**NOTHING, "ATTEMPT": "1"}
    assert "cut short in its first save" in notes(lines)


def test_a_torn_checkpoint_in_place_of_a_good_one_stops_the_start(tmp_path: Path) -> None:
    """Attempt 0 resumed from something here, so that starting from step 0 would lose it."""
    record(tmp_path, {"attempt": 0, "job": "77", "step": 50, "path": "x"})
    tear(save(tmp_path, 100))
    with pytest.raises(CheckpointError):
        answer(env(tmp_path, attempt=1))


def test_checkpoints_of_another_framework_stop_the_start(tmp_path: Path) -> None:
    save(tmp_path, 900)
    with pytest.raises(CheckpointError, match="holds no megatron checkpoints, but hf ones"):
        answer(env(tmp_path, SLURM_SPANK_AISTATION_RESUME="megatron"))


def test_a_directory_without_checkpoints_is_a_first_start(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    for framework in ("auto", "hf", "megatron"):
        lines = answer(env(tmp_path, SLURM_SPANK_AISTATION_RESUME=framework))
        assert exports(lines) == NOTHING


@pytest.mark.parametrize("kind", ["file", "fifo", "unknown framework"])
def test_a_directory_that_cannot_be_read_stops_the_start(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "ckpt"
    more = {}
    if kind == "file":
        directory.touch()
    elif kind == "fifo":
        os.mkfifo(directory)
    else:
        save(directory, 900)
        more = {"SLURM_SPANK_AISTATION_RESUME": "forged"} if kind == "unknown framework" else {}
    with pytest.raises(CheckpointError):
        answer(env(directory, **more))


@pytest.mark.parametrize(("count", "attempt"), [("3", "3"), ("x", "0"), ("-1", "0"), ("٣", "0"), ("9" * 12, "0")])
def test_the_attempt_is_slurms_restart_count(tmp_path: Path, count: str, attempt: str) -> None:
    assert exports(answer(env(tmp_path, SLURM_RESTART_COUNT=count)))["ATTEMPT"] == attempt


def test_the_attempts_file_survives_what_a_user_puts_there(tmp_path: Path) -> None:
    path = save(tmp_path, 900)
    for content in (b"", b"not json\n[1]\n\xff\xfe\n", b"[" * 100_000, b'{"job": "77"}\n' * 10_000):
        (tmp_path / ATTEMPTS).write_bytes(content)
        assert exports(answer(env(tmp_path, 1)))["RESUME_PATH"] == str(path)
        record(tmp_path, {"attempt": 1})
        added = (tmp_path / ATTEMPTS).read_bytes()
        assert added.startswith(content)
        assert [entry.get("attempt") for entry in read(tmp_path)[-2:]] == [1, 1]


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_the_attempts_file_is_only_ever_a_plain_file(tmp_path: Path, kind: str) -> None:
    save(tmp_path, 900)
    target = tmp_path / "target"
    target.write_text("theirs", encoding="utf-8")
    name = tmp_path / ATTEMPTS
    {"fifo": lambda: os.mkfifo(name), "link": lambda: name.symlink_to(target), "folder": name.mkdir}[kind]()
    answer(env(tmp_path, 1))
    record(tmp_path, {"attempt": 1})
    assert target.read_text(encoding="utf-8") == "theirs"


def run_helper(job: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """As TaskProlog runs it: isolated, without site-packages. (A forbidden directory: tests/cluster, as a user.)"""
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from aistation_slurm.checkpoints.startup import main; "
    )
    argv = [sys.executable, "-I", "-S", "-c", code + "sys.exit(main())"]
    job = {"SLURM_CONF": "/nonexistent", **job}
    return subprocess.run(argv, env=job, capture_output=True, timeout=60, check=False)


def test_the_program_prints_the_answer_and_records_the_start(tmp_path: Path) -> None:
    path = save(tmp_path, 900)
    result = run_helper(env(tmp_path, 1))
    assert (result.returncode, result.stderr) == (0, b"")
    assert exports(result.stdout.decode().splitlines())["RESUME_PATH"] == str(path)
    (line,) = (tmp_path / ATTEMPTS).read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["step"] == 900


def test_a_path_that_is_not_utf8_goes_through_unchanged(tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/caf\xe9"
    save(Path(os.fsdecode(directory)), 900)
    job = {**env(Path(os.fsdecode(directory))), "SLURM_SPANK_AISTATION_RESUME_ARGS_TEMPLATE": "--step {step}"}
    result = run_helper(job)
    assert b"export AISTATION_RESUME_PATH=" + directory + b"/checkpoint-900\n" in result.stdout


def test_the_program_says_in_one_line_why_a_directory_is_unusable(tmp_path: Path) -> None:
    tear(save(tmp_path, 900))
    result = run_helper(env(tmp_path))
    assert (result.returncode, result.stderr) == (startup.UNUSABLE, b"")
    assert result.stdout.count(b"\n") == 1
    assert os.fsencode(tmp_path) in result.stdout


def test_it_needs_the_standard_library_only(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); import aistation_slurm.checkpoints.startup; "
    argv = [sys.executable, "-I", "-S", "-c", code + "print(*sys.modules)"]
    modules = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert not {"click", "rich", "msgspec", "psutil", "pynvml"} & set(modules)
