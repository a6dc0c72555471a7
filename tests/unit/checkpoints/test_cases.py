"""The public bug reports of area checkpoint (tests/cases), through the command, with three kinds of file content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.checkpoints.trees import build, case, dummy, inspect, real, touched

Content = Callable[[str], bytes]
contents = pytest.mark.parametrize("content", [real, touched, dummy], ids=["real", "touched", "dummy"])


@contents
def test_130_steps_are_numbers_and_only_folders_count(tmp_path: Path, content: Content) -> None:
    known = case("130")
    build(tmp_path, known["input"], content)
    seen = inspect(tmp_path, "out")
    assert seen.resume == known["expected"]["latest"]
    assert seen.step == known["expected"]["step"]
    names = [Path(c["path"]).name for c in seen.json["checkpoints"]]
    assert names == ["checkpoint-1000", "checkpoint-999", "checkpoint-500"]
    assert not set(names) & set(known["expected"]["ignored"])
    assert seen.json["resume"]["args"] == f"--resume_from_checkpoint {tmp_path}/out/checkpoint-1000"
    assert seen.exit_code == 0


@contents
def test_131_newest_without_trainer_state(tmp_path: Path, content: Content) -> None:
    known = case("131")["expected"]
    build(tmp_path, case("131")["input"], content)
    seen = inspect(tmp_path, "out")
    assert seen.resume == known["latest_complete"]
    assert list(seen.invalid) == known["incomplete"]
    assert "trainer_state.json" in seen.invalid["out/checkpoint-25"]
    assert len(seen.json["checkpoints"]) == 2, "tmp-checkpoint-30 is staging, no checkpoint"


@contents
def test_133_never_published_folder_and_tracker_ahead_of_the_data(tmp_path: Path, content: Content) -> None:
    known = case("133")["expected"]
    build(tmp_path, case("133")["input"], content)
    x = inspect(tmp_path, "x")
    assert x.resume == known["x"]
    assert list(x.invalid) == ["x/iter_0000020"]
    y = inspect(tmp_path, "y")
    assert y.resume == known["y"]["latest_complete"]
    assert y.json["resume"]["args"] == f"--load {tmp_path}/y --ckpt-step 10"
    assert "iter_0000020, which is incomplete" in y.warnings


@contents
def test_135_dcp_needs_its_hidden_metadata(tmp_path: Path, content: Content) -> None:
    known = case("135")["expected"]
    build(tmp_path, case("135")["input"], content)
    seen = inspect(tmp_path, "ckpt")
    assert seen.resume == known["latest"]
    assert list(seen.invalid) == known["incomplete"]
    assert ".metadata" in seen.invalid["ckpt/step-200"]
    assert seen.valid == ["ckpt/step-100", "ckpt/step-90"], "step-1000-eval is ignored"
    assert {c["framework"] for c in seen.json["checkpoints"]} == {"dcp"}


@contents
def test_136_latest_with_a_free_tag(tmp_path: Path, content: Content) -> None:
    build(tmp_path, case("136")["input"], content)
    seen = inspect(tmp_path, "a")
    assert seen.json["resume"]["tag"] == case("136")["expected"]["a"]["tag"]
    assert seen.step is None
    assert seen.json["resume"]["args"] == f"--load_dir {tmp_path}/a --ckpt_id best_model"


@contents
def test_136_latest_inside_a_hugging_face_checkpoint(tmp_path: Path, content: Content) -> None:
    known = case("136")["expected"]["b"]
    build(tmp_path, case("136")["input"], content)
    seen = inspect(tmp_path, "b")
    assert seen.json["resume"]["framework"] == known["framework"]
    assert seen.step == known["step"]


@contents
def test_136_two_trackers_disagree(tmp_path: Path, content: Content) -> None:
    known = case("136")["expected"]["c"]
    build(tmp_path, case("136")["input"], content)
    (tmp_path / "c/global_step300/mp_rank_00_model_states.pt").write_bytes(content("x.pt"))
    (tmp_path / "c/global_step200/mp_rank_00_model_states.pt").write_bytes(content("x.pt"))
    seen = inspect(tmp_path, "c")
    assert seen.json["resume"]["tag"] == known["tag"]
    assert known["warning"] in seen.warnings


def test_136_two_trackers_disagree_about_empty_folders(tmp_path: Path) -> None:
    build(tmp_path, case("136")["input"], real)
    seen = inspect(tmp_path, "c")
    assert seen.resume is None
    assert seen.json["trackers"] == {"latest": "global_step300", "latest_checkpointed_iteration.txt": "200"}
    assert "trackers disagree" in seen.warnings
    assert seen.exit_code == 1


@contents
def test_136_latest_names_a_folder_that_is_gone(tmp_path: Path, content: Content) -> None:
    build(tmp_path, case("136")["input"], content)
    seen = inspect(tmp_path, "d")
    assert seen.json["resume"]["tag"] == case("136")["expected"]["d"]["latest_complete"]
    assert seen.step == 8
    assert "global_step9, which is missing (a dangling tracker)" in seen.warnings


@contents
def test_137_last_is_a_link_to_an_older_file(tmp_path: Path, content: Content) -> None:
    known = case("137")["expected"]
    build(tmp_path, case("137")["input"], content)
    seen = inspect(tmp_path, "ck")
    assert seen.resume == known["ck_latest"]
    assert seen.step == known["step"]
    assert "last.ckpt links to epoch=3-step=400.ckpt, which is older" in seen.warnings
    assert seen.json["resume"]["args"] == f"--ckpt_path {tmp_path}/ck/epoch=9-step=1000.ckpt"


@contents
def test_137_dangling_last(tmp_path: Path, content: Content) -> None:
    build(tmp_path, case("137")["input"], content)
    seen = inspect(tmp_path, "other")
    assert seen.resume is None
    assert "dangling link to epoch=5-step=600.ckpt" in seen.warnings
    assert seen.exit_code == 1


@contents
def test_139_hpc_counter_of_a_shared_directory(tmp_path: Path, content: Content) -> None:
    known = case("139")["expected"]
    build(tmp_path, case("139")["input"], content)
    seen = inspect(tmp_path, "run")
    assert seen.resume == known["numeric_latest"]
    assert seen.step is None, "the number is a counter, not a step"
    assert "shared by several job ids" in seen.warnings
    assert "ambiguous" in seen.warnings


@contents
@pytest.mark.parametrize("below", ["logs", "logs/runs", "logs/runs/2021-06-01"])
def test_139_hydra_makes_a_folder_per_start(tmp_path: Path, content: Content, below: str) -> None:
    build(tmp_path, case("139")["input"], content)
    seen = inspect(tmp_path, below)
    assert seen.resume == case("139")["expected"]["hydra_latest"]


@contents
def test_141_a_ckpt_folder_with_a_gap_in_its_shards(tmp_path: Path, content: Content) -> None:
    known = case("141")["expected"]
    build(tmp_path, case("141")["input"], content)
    seen = inspect(tmp_path)
    (only,) = seen.json["checkpoints"]
    assert only["framework"] == known["framework"]
    assert only["step"] == known["step"]
    assert only["missing_ranks"] == known["missing_ranks"]
    assert only["valid"] is known["complete"]
    assert seen.exit_code == 1
