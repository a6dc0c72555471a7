"""Links, FIFOs, devices, odd names, missing rights: each has a clear answer, none hangs, none is "no checkpoints"."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.unit.checkpoints.trees import inspect, put, real, zip_bytes

HF = dict.fromkeys(("model.safetensors", "optimizer.pt", "trainer_state.json"), real)
REPO = Path(__file__).resolve().parents[3]


def as_nobody(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user without rights; tests run as root would never be refused anything."""
    return subprocess.run(
        [sys.executable, "-m", "aistation_slurm", "ckpt", "inspect", str(directory), "--json"],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPO), "PYTHONDONTWRITEBYTECODE": "1"},
        user="nobody",
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def open_tmp(tmp_path: Path) -> Path:
    """A temporary folder whose parents everybody may pass."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    return tmp_path


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")


def test_missing_directory(tmp_path: Path) -> None:
    seen = inspect(tmp_path, "nowhere")
    assert seen.exit_code == 3
    assert "does not exist" in seen.output
    assert str(tmp_path / "nowhere") in seen.output


def test_a_file_where_a_directory_belongs(tmp_path: Path) -> None:
    put(tmp_path, {"file": b"x"})
    seen = inspect(tmp_path, "file")
    assert seen.exit_code == 3
    assert "not a directory" in seen.output


def test_new_directory(tmp_path: Path) -> None:
    put(tmp_path, {"config.yaml": b"x", ".aistation-attempts": b"{}"})
    seen = inspect(tmp_path)
    assert seen.exit_code == 0
    assert seen.json["checkpoints"] == []
    assert seen.json["resume"] is None


@needs_root
def test_unreadable_directory(open_tmp: Path) -> None:
    put(open_tmp, {f"run/checkpoint-1/{name}": content for name, content in HF.items()})
    (open_tmp / "run").chmod(0o700)
    result = as_nobody(open_tmp / "run")
    assert result.returncode == 3
    assert "cannot be read (Permission denied)" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@needs_root
@pytest.mark.parametrize(
    "tree", ["checkpoint-2", "global_step2", "iter_0000002", "step-2", "x=1-step=2.ckpt", "release"]
)
def test_one_unreadable_checkpoint_is_not_overlooked(open_tmp: Path, tree: str) -> None:
    put(open_tmp, {f"run/{tree}/mp_rank_00_model_states.pt": real})
    (open_tmp / "run" / tree).chmod(0o700)
    result = as_nobody(open_tmp / "run")
    assert result.returncode == 1, result.stdout + result.stderr
    (only,) = json.loads(result.stdout)["checkpoints"]
    assert "cannot be read (Permission denied)" in only["why"]


@needs_root
def test_unreadable_file_and_run_folder(open_tmp: Path) -> None:
    put(open_tmp, {f"run/checkpoint-{n}/{name}": content for name, content in HF.items() for n in (1, 2)})
    (open_tmp / "run/checkpoint-2/optimizer.pt").chmod(0o600)
    answer = json.loads(as_nobody(open_tmp / "run").stdout)
    assert answer["resume"]["step"] == 1
    assert any("checkpoint-2 could not be read" in warning for warning in answer["warnings"])

    put(open_tmp, {"logs/version_0/checkpoints/last.ckpt": zip_bytes()})
    (open_tmp / "logs/version_0").chmod(0o700)
    result = as_nobody(open_tmp / "logs")
    assert result.returncode == 1
    assert "version_0 cannot be read" in result.stdout


def test_fifos_and_devices_are_never_opened(tmp_path: Path) -> None:
    """Opening a FIFO for reading would wait for ever; the test's own time limit is the proof."""
    put(tmp_path, {f"checkpoint-{n}/{name}": content for name, content in HF.items() for n in (1, 2, 3)})
    for name in ("checkpoint-2/model.safetensors", "checkpoint-3/trainer_state.json"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    (tmp_path / "checkpoint-1/rng_state.pth").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "latest")
    os.mkfifo(tmp_path / "latest_checkpointed_iteration.txt")
    os.mkfifo(tmp_path / "last.ckpt")
    seen = inspect(tmp_path)
    assert seen.resume is None
    assert "no regular file" in seen.invalid["checkpoint-2"]
    assert "no regular file" in seen.invalid["checkpoint-3"]
    assert "no regular file" in seen.invalid["checkpoint-1"]


def test_links(tmp_path: Path) -> None:
    put(tmp_path, {f"store/{name}": content for name, content in HF.items()})
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoint-10").symlink_to("../store")
    (run / "checkpoint-20").symlink_to("../gone")
    (run / "checkpoint-30").symlink_to("checkpoint-30")
    (run / "checkpoint-40").mkdir()
    (run / "checkpoint-40/model.safetensors").symlink_to("model.safetensors")
    (run / "checkpoint-40/trainer_state.json").write_bytes(real("trainer_state.json"))
    (run / "loop").symlink_to(".")
    seen = inspect(tmp_path, "run")
    assert seen.resume == "run/checkpoint-10"
    assert "dangling link to ../gone" in seen.invalid["run/checkpoint-20"]
    assert "checkpoint-30" in str(seen.invalid)
    assert "dangling link" in seen.invalid["run/checkpoint-40"]


@pytest.mark.parametrize("tracker", ["../../etc", "..", "", "a\nb", "x" * 5000, "\x1b[31m", "/etc"])
def test_a_tracker_may_hold_anything(tmp_path: Path, tracker: str) -> None:
    put(tmp_path, {"latest": tracker.encode(), "latest_checkpointed_iteration.txt": tracker.encode()})
    put(tmp_path, {"global_step5/mp_rank_00_model_states.pt": real})
    seen = inspect(tmp_path)
    assert seen.resume == "global_step5"
    assert "does not hold the name of a folder" in seen.warnings
    assert seen.warnings.isprintable() or "\n" in seen.warnings
    assert "\x1b" not in seen.warnings


def test_a_name_with_a_newline_is_listed_and_never_passed_on(tmp_path: Path) -> None:
    put(tmp_path, {"run\nexport X=1/last.ckpt": zip_bytes()})
    seen = inspect(tmp_path, "run\nexport X=1")
    assert seen.json["resume"]["path"].endswith("last.ckpt")
    assert seen.json["resume"]["args"] == ""
    assert seen.exit_code == 1
    assert "\\n" in seen.warnings
    assert "\nexport X=1" not in seen.warnings


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    put(tmp_path, {os.fsdecode(b"epoch=1-\xff-step=5.ckpt"): zip_bytes()})
    seen = inspect(tmp_path)
    assert seen.step == 5
    assert seen.json["resume"]["args"] == ""
    assert seen.exit_code == 1


def test_numbers_of_any_length(tmp_path: Path) -> None:
    for name in ("checkpoint-" + "9" * 200, "global_step" + "9" * 200, "iter_" + "9" * 200, "9" * 200):
        put(tmp_path, {f"{name}/trainer_state.json": real, f"{name}/.metadata": real})
    put(tmp_path, {"checkpoint-1/trainer_state.json": real})
    seen = inspect(tmp_path)
    assert [Path(c["path"]).name for c in seen.json["checkpoints"]] == ["checkpoint-1"]


def test_shard_ranks_far_apart_do_not_use_up_memory(tmp_path: Path) -> None:
    put(tmp_path, {"d/latest": b"global_step1", "d/global_step1/mp_rank_00_model_states.pt": real})
    put(tmp_path, {"d/global_step1/zero_pp_rank_999999999_mp_rank_00_optim_states.pt": real})
    put(tmp_path, {"m/iter_0000001/mp_rank_999999_999999_999999/model_optim_rng.pt": real})
    put(tmp_path, {"c/step-1/__999999999_0.distcp": b"x", "c/step-1/.metadata": b"x"})
    for below in "dmc":
        assert len(inspect(tmp_path, below).json["checkpoints"]) == 1


def test_the_table_shows_foreign_text_as_text(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from aistation_slurm.cli import cli

    put(tmp_path, {"[red]x \x1b[2J-step=5.ckpt": zip_bytes(), "a-step=4.ckpt": zip_bytes()[:50]})
    result = CliRunner().invoke(cli, ["ckpt", "inspect", str(tmp_path)])
    assert "[red]x" in result.output
    assert "\x1b[2J" not in result.output
    assert "cut short" in result.output
