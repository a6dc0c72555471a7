"""Kinds of public reports about a wrong or incomplete checkpoint being resumed; each names where it was told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aistation_slurm.checkpoints.inspect import inspect as look
from tests.unit.checkpoints.trees import Content, inspect, metadata_bytes, put, real, zip_bytes

ACCELERATE = ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl")
NEMO = ("weights/.metadata", "weights/common.pt", "weights/__0_0.distcp")
TRAINER = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "trainer_state.json")


def save(root: Path, folder: str, names: tuple[str, ...], *, without: tuple[str, ...] = ()) -> None:
    put(root, {f"{folder}/{name}": real for name in names if name not in without})


@pytest.mark.parametrize("pattern", ["checkpoint_{}", "step_{}", "checkpoints/checkpoint_{}"])
def test_accelerate_killed_while_saving(tmp_path: Path, pattern: str) -> None:
    """Automatic naming and the names of its examples; huggingface/accelerate 1163, 1601, 3306."""
    for number in (9, 10):
        save(tmp_path, pattern.format(number), ACCELERATE)
    assert inspect(tmp_path).resume == pattern.format(10)
    save(tmp_path, pattern.format(11), ACCELERATE, without=("random_states_0.pkl", "scheduler.bin"))
    seen = inspect(tmp_path)
    assert seen.resume == pattern.format(10)
    assert list(seen.invalid) == [pattern.format(11)]
    put(tmp_path, {pattern.format(12): None})
    assert inspect(tmp_path).resume == pattern.format(10)


def test_accelerate_epochs_are_no_steps(tmp_path: Path) -> None:
    for number in (0, 9, 10):
        save(tmp_path, f"epoch_{number}", ACCELERATE)
    seen = inspect(tmp_path)
    assert (seen.resume, seen.step) == ("epoch_10", None)


def test_names_like_accelerates_of_other_programs(tmp_path: Path) -> None:
    put(tmp_path, {f"step_{n}/image.png": b"x" for n in (1, 2)})
    assert inspect(tmp_path).json["checkpoints"] == []


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        ("scheduler.pt", "scheduler state is missing"),
        ("optimizer.pt", "optimizer state is missing"),
        ("model.safetensors", "model weights is missing"),
        ("trainer_state.json", "trainer_state.json is missing"),
    ],
)
def test_trainer_part_of_the_newest_is_gone(tmp_path: Path, gone: str, why: str) -> None:
    """huggingface/transformers 35782, 35525, 29059. Without its scheduler the Trainer skips the optimizer, without a word."""
    save(tmp_path, "checkpoint-999", TRAINER)
    save(tmp_path, "checkpoint-1000", TRAINER, without=(gone,))
    seen = inspect(tmp_path)
    assert seen.step == 999
    assert why in seen.invalid["checkpoint-1000"]


def test_trainer_random_states_with_a_gap(tmp_path: Path) -> None:
    ranks = tuple(f"rng_state_{rank}.pth" for rank in range(4))
    save(tmp_path, "checkpoint-1", (*TRAINER, *ranks))
    save(tmp_path, "checkpoint-2", (*TRAINER, *ranks), without=("rng_state_2.pth",))
    assert "random states of rank 2 are missing" in inspect(tmp_path).invalid["checkpoint-2"]
    (tmp_path / "checkpoint-1/rng_state_2.pth").unlink()
    assert inspect(tmp_path).step == 2, "on node-local disks every save is like that"


def test_trainer_that_shrank_has_fewer_random_states(tmp_path: Path) -> None:
    save(tmp_path, "checkpoint-1", (*TRAINER, "rng_state_1.pth"))
    save(tmp_path, "checkpoint-2", TRAINER)
    assert inspect(tmp_path).step == 2


def test_nemo_several_last(tmp_path: Path) -> None:
    """NVIDIA-NeMo 7948, 7952: several -last, no step in the name, one of them unfinished."""
    for samples, age in ((800, 0), (4800, 200), (12000, 100)):
        name = f"boson-consumed_samples={samples}.0-last"
        save(tmp_path, name, NEMO)
        os.utime(tmp_path / name, (1_700_000_000 - age, 1_700_000_000 - age))
    assert inspect(tmp_path).resume == "boson-consumed_samples=12000.0-last"
    put(tmp_path, {"boson-consumed_samples=12000.0-last-unfinished": b""})
    assert inspect(tmp_path).resume == "boson-consumed_samples=4800.0-last"


def test_nemo_given_a_folder_too_high(tmp_path: Path) -> None:
    """NVIDIA-NeMo 14259: no checkpoint is found and training starts again; at least it is told where one is."""
    save(tmp_path, "llama31_8b/2025-07-16_06-36-17/checkpoints/model--val_loss=2.3-step=2999-last", NEMO)
    seen = inspect(tmp_path)
    assert seen.resume is None
    assert "llama31_8b/2025-07-16_06-36-17/checkpoints holds nemo checkpoints" in seen.warnings
    assert inspect(tmp_path, "llama31_8b").step == 2999


@pytest.mark.parametrize("newer", ["hpc_ckpt_1.ckpt", "lightning_logs/version_2/checkpoints/epoch=1-step=900.ckpt"])
def test_lightning_signal_checkpoint_above_the_others(tmp_path: Path, newer: str) -> None:
    """Lightning 20347, 13773: hpc_ckpt_N at the top, however old it is."""
    names = ("hpc_ckpt_1.ckpt", "lightning_logs/version_2/checkpoints/epoch=1-step=900.ckpt")
    put(tmp_path, {name: zip_bytes() for name in names})
    for name in names:
        moment = 1_700_000_000 + 9000 * (name == newer)
        os.utime(tmp_path / name, (moment, moment))
    assert inspect(tmp_path).resume == newer


def test_deepspeed_optimizer_states_gone(tmp_path: Path) -> None:
    model, optimizer = "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    save(tmp_path, "global_step9", (model, optimizer))
    save(tmp_path, "global_step10", (model,))
    put(tmp_path, {"latest": b"global_step10"})
    seen = inspect(tmp_path)
    assert seen.step == 9
    assert "optimizer state is missing" in seen.invalid["global_step10"]


def test_deepspeed_universal_alone_is_not_overlooked(tmp_path: Path) -> None:
    tag = "global_step10_universal"
    put(tmp_path, {"latest_universal": tag.encode(), f"{tag}/zero/w/fp32.pt": real})
    assert inspect(tmp_path).exit_code == 1
    put(tmp_path, {f"{tag}/mp_rank_00_model_states.pt": real})
    seen = inspect(tmp_path)
    assert (seen.resume, seen.step) == (tag, 10)


def hf_shards(step: int, ranks: int, parts: int = 2) -> dict[str, Content]:
    pairs = [(rank, part) for rank in range(1, ranks + 1) for part in range(1, parts + 1)]
    return {f"step-{step}/shard-{r:05}-model-{p:05}-of-{parts:05}.safetensors": real for r, p in pairs}


def test_hugging_face_storage_writer_saved_distributed(tmp_path: Path) -> None:
    put(tmp_path, {**hf_shards(1, 3), **hf_shards(2, 3), **hf_shards(3, 3), **hf_shards(4, 3)})
    assert (inspect(tmp_path).step, inspect(tmp_path).json["resume"]["framework"]) == (4, "dcp")
    for name in hf_shards(4, 3):
        if "shard-00002" in name:
            (tmp_path / name).unlink()
    for name in hf_shards(3, 3):
        if "model-00002" in name:
            (tmp_path / name).unlink()
    torn = tmp_path / "step-2/shard-00003-model-00001-of-00002.safetensors"
    torn.write_bytes(torn.read_bytes()[:-8])
    seen = inspect(tmp_path)
    assert seen.step == 1
    assert "shards 2 are missing" in seen.invalid["step-4"]
    assert "files 2 of 2 are missing" in seen.invalid["step-3"]
    assert "bytes where" in seen.invalid["step-2"]


def test_an_export_without_optimizer_beside_full_checkpoints(tmp_path: Path) -> None:
    put(tmp_path, {"step-1/.metadata": metadata_bytes("__0_0.distcp"), "step-1/__0_0.distcp": real, **hf_shards(2, 1)})
    assert inspect(tmp_path).step == 1


def test_dcp_rewritten_in_place_and_not_ended(tmp_path: Path) -> None:
    shards = ("__0_0.distcp", "__1_0.distcp")
    for step in (1, 2):
        put(tmp_path, {f"step-{step}/.metadata": metadata_bytes(*shards)})
        put(tmp_path, {f"step-{step}/{shard}": real for shard in shards})
    moment = 1_700_000_000
    for path in tmp_path.glob("*/.metadata"):
        os.utime(path, (moment, moment))
    for path in tmp_path.glob("*/*.distcp"):
        os.utime(path, (moment - 5, moment - 5))
    assert inspect(tmp_path).step == 2
    os.utime(tmp_path / "step-2/__1_0.distcp", (moment + 3600, moment + 3600))
    seen = inspect(tmp_path)
    assert seen.step == 1
    assert ".metadata is older than some shards" in seen.invalid["step-2"]
    os.utime(tmp_path / "step-1/__1_0.distcp", (moment + 3600, moment + 3600))
    seen = inspect(tmp_path)
    assert seen.step == 2, "every save is like that: the files were copied"
    assert "copied in another order" in seen.warnings
    for path in tmp_path.glob("step-2/*.distcp"):
        os.utime(path, (moment + 30, moment + 30))
    os.utime(tmp_path / "step-1/__1_0.distcp", (moment, moment))
    assert inspect(tmp_path).step == 2, "a copy writes one file behind the other"


def test_a_part_that_no_save_has_does_not_make_a_start_read_them_all(tmp_path: Path) -> None:
    names = tuple(name for name in TRAINER if name != "optimizer.pt")
    for step in range(20):
        save(tmp_path, f"checkpoint-{step}", names)
    found = look(tmp_path, every=False)
    assert found.resume is not None
    assert found.resume.step == 19
    assert len(found.checkpoints) == 3


def test_megatron_highest_rank_missing(tmp_path: Path) -> None:
    """The tracker says it is whole; the grid of ranks has no gap; the save before has one more."""
    for step in (7, 8):
        save(tmp_path, f"iter_000000{step}", tuple(f"mp_rank_0{rank}/model_optim_rng.pt" for rank in range(4)))
    put(tmp_path, {"latest_checkpointed_iteration.txt": b"8"})
    assert inspect(tmp_path).step == 8
    (tmp_path / "iter_0000008/mp_rank_03/model_optim_rng.pt").unlink()
    (tmp_path / "iter_0000008/mp_rank_03").rmdir()
    seen = inspect(tmp_path)
    assert seen.step == 7
    assert seen.json["checkpoints"][0]["missing_ranks"] == [3]
    assert look(tmp_path, every=False).resume == look(tmp_path).resume


def test_megatron_distributed_optimizer_missing_on_every_rank(tmp_path: Path) -> None:
    names = tuple(f"mp_rank_0{rank}/{file}" for rank in (0, 1) for file in ("model_optim_rng.pt", "distrib_optim.pt"))
    save(tmp_path, "iter_0000007", names)
    save(tmp_path, "iter_0000008", names, without=tuple(name for name in names if "distrib" in name))
    assert "distrib_optim.pt is missing" in inspect(tmp_path).invalid["iter_0000008"]


@pytest.mark.parametrize(("kilobytes", "step"), [(100, 1), (134, 2)])
def test_deepspeed_fewer_ranks(tmp_path: Path, kilobytes: int, step: int) -> None:
    """4 ranks, then 3: with the same share each one is lost; with a larger one the run goes on with fewer."""
    for number, count, size in ((1, 4, 100), (2, 3, kilobytes)):
        names = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(count)]
        put(tmp_path, {f"global_step{number}/{name}": zip_bytes(bytes([1]) * 1024 * size) for name in names})
        put(tmp_path, {f"global_step{number}/mp_rank_00_model_states.pt": real})
    put(tmp_path, {"latest": b"global_step2"})
    assert inspect(tmp_path).step == step


def test_deepspeed_stage_3_optimizer_of_the_highest_rank(tmp_path: Path) -> None:
    names = tuple(f"zero_pp_rank_{r}_mp_rank_00_{kind}_states.pt" for r in (0, 1) for kind in ("model", "optim"))
    save(tmp_path, "global_step1", names, without=("zero_pp_rank_1_mp_rank_00_optim_states.pt",))
    seen = inspect(tmp_path)
    assert "optimizer states of data-parallel rank 1 are missing" in seen.invalid["global_step1"]


def test_one_checkpoint_of_accelerate_given_itself(tmp_path: Path) -> None:
    save(tmp_path, "step_7", ACCELERATE)
    assert inspect(tmp_path, "step_7").step == 7
