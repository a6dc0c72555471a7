"""Each framework's layouts beyond the public cases: what is complete, what is missing, which is the newest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Optional

import pytest

from tests.unit.checkpoints.trees import (
    Content,
    inspect,
    lightning_bytes,
    metadata_bytes,
    put,
    real,
    zip_bytes,
)

Tree = dict[str, Optional[Content]]


def tree(*names: str) -> Tree:
    return dict.fromkeys(names, real)


HF = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def index(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"layer{i}": shard for i, shard in enumerate(shards)}}).encode()


VALID: dict[str, tuple[str, Tree]] = {
    "Megatron tensor parallel": (
        "megatron",
        tree(*(f"iter_0000007/mp_rank_0{r}/model_optim_rng.pt" for r in range(4))),
    ),
    "Megatron tensor x pipeline with distributed optimizer": (
        "megatron",
        tree(
            *(
                f"iter_0000007/mp_rank_0{t}_00{p}/{file}"
                for t in (0, 1)
                for p in (0, 1)
                for file in ("model_optim_rng.pt", "distrib_optim.pt")
            )
        ),
    ),
    "Megatron torch_dist": (
        "megatron",
        {
            **tree("iter_0000007/common.pt", "iter_0000007/metadata.json"),
            "iter_0000007/.metadata": metadata_bytes("__0_0.distcp", "__0_1.distcp", "__3_0.distcp"),
            **tree(*(f"iter_0000007/__{name}.distcp" for name in ("0_0", "0_1", "3_0"))),
        },
    ),
    "DeepSpeed ZeRO-1": (
        "deepspeed",
        {
            "latest": b"global_step7",
            **tree(
                "global_step7/mp_rank_00_model_states.pt",
                *(f"global_step7/zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in range(12)),
            ),
        },
    ),
    "DeepSpeed ZeRO-3": (
        "deepspeed",
        tree(
            *(
                f"global_step7/{prefix}zero_pp_rank_{r}_mp_rank_00_{kind}_states.pt"
                for r in (0, 1)
                for prefix, kind in (("", "model"), ("bf16_", "optim"))
            )
        ),
    ),
    "DeepSpeed pipeline": (
        "deepspeed",
        tree(
            "global_step7/mp_rank_00_model_states.pt",
            "global_step7/mp_rank_01_model_states.pt",
            *(f"global_step7/layer_{layer}-model_0{mp}-model_states.pt" for layer in ("01", "03") for mp in (0, 1)),
        ),
    ),
    "Hugging Face sharded": (
        "hf",
        {
            **tree(*(f"checkpoint-7/{name}" for name in HF)),
            "checkpoint-7/model.safetensors.index.json": index(
                "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
            ),
            **tree("checkpoint-7/model-00001-of-00002.safetensors", "checkpoint-7/model-00002-of-00002.safetensors"),
        },
    ),
    "Hugging Face LoRA": (
        "hf",
        tree(*(f"checkpoint-7/{name}" for name in (*HF, "adapter_model.safetensors", "adapter_config.json"))),
    ),
    "Hugging Face FSDP": (
        "hf+dcp",
        tree(
            *(
                f"checkpoint-7/{name}"
                for name in (
                    "trainer_state.json",
                    "pytorch_model_fsdp_0/.metadata",
                    "pytorch_model_fsdp_0/__0_0.distcp",
                    "optimizer_0/.metadata",
                    "optimizer_0/__0_0.distcp",
                )
            )
        ),
    ),
    "Accelerate": (
        "hf",
        tree("checkpoint_7/model.safetensors", "checkpoint_7/optimizer.bin", "checkpoint_7/random_states_0.pkl"),
    ),
    "Lightning": ("lightning", {"epoch=1-step=7.ckpt": zip_bytes()}),
    "Lightning metric in the name": ("lightning", {"epoch=01-val_loss=0.32-step=7-v2.ckpt": zip_bytes()}),
    "Lightning custom name": ("lightning", {"my_model_step_7.ckpt": zip_bytes()}),
    "Lightning step in the file": ("lightning", {"last.ckpt": lightning_bytes(7)}),
    "Lightning FSDP": (
        "lightning+dcp",
        tree("epoch=1-step=7.ckpt/.metadata", "epoch=1-step=7.ckpt/__0_0.distcp", "epoch=1-step=7.ckpt/meta.pt"),
    ),
    "torchtitan": ("dcp", tree("checkpoint/step-7/.metadata", "checkpoint/step-7/__0_0.distcp")),
    "DCP by number": ("dcp", tree("7/.metadata", "7/__0_0.distcp")),
    "DCP in parts": (
        "dcp",
        tree(
            *(f"global_step_7/{part}/{name}" for part in ("model", "optim") for name in (".metadata", "__0_0.distcp"))
        ),
    ),
    "NeMo 1": ("nemo", {"checkpoints/megatron_gpt--val_loss=5.05-step=7-consumed_samples=80.0-last.ckpt": zip_bytes()}),
    "NeMo 1 model parallel": (
        "nemo",
        {
            f"mp_rank_0{r}/megatron_gpt--val_loss=5.05-step=7-consumed_samples=80.0-last.ckpt": zip_bytes()
            for r in (0, 1)
        },
    ),
    "NeMo 2": (
        "nemo+dcp",
        tree(
            *(
                f"model--val_loss=1.2-step=7-consumed_samples=8.0-last/weights/{n}"
                for n in (".metadata", "common.pt", "__0_0.distcp")
            )
        ),
    ),
}


@pytest.mark.parametrize(("framework", "files"), VALID.values(), ids=VALID)
def test_complete(tmp_path: Path, framework: str, files: Tree) -> None:
    put(tmp_path, files)
    seen = inspect(tmp_path)
    assert not seen.invalid
    assert seen.json["resume"]["framework"] == framework
    assert seen.step == 7
    assert seen.exit_code == 0
    forced = inspect(tmp_path, ".", "--framework", framework.partition("+")[0])
    assert forced.resume == seen.resume


BROKEN: dict[str, tuple[str, list[str], str]] = {
    # name: (a complete layout, files to remove, what the reason says)
    "Megatron rank missing": ("Megatron tensor parallel", ["iter_0000007/mp_rank_02"], "mp_rank_02 is missing"),
    "Megatron grid": (
        "Megatron tensor x pipeline with distributed optimizer",
        ["iter_0000007/mp_rank_00_001"],
        "mp_rank_00_001 is missing",
    ),
    "Megatron optimizer of one rank": (
        "Megatron tensor x pipeline with distributed optimizer",
        ["iter_0000007/mp_rank_01_001/distrib_optim.pt"],
        "mp_rank_01_001 lacks distrib_optim.pt",
    ),
    "Megatron common.pt": ("Megatron torch_dist", ["iter_0000007/common.pt"], "common.pt is missing"),
    "Megatron metadata.json": ("Megatron torch_dist", ["iter_0000007/metadata.json"], "metadata.json is missing"),
    "Megatron shard": ("Megatron torch_dist", ["iter_0000007/__3_0.distcp"], "shards of rank 3 are missing"),
    "DeepSpeed rank": (
        "DeepSpeed ZeRO-1",
        ["global_step7/zero_pp_rank_2_mp_rank_00_optim_states.pt"],
        "optimizer states of data-parallel rank 2 are missing",
    ),
    "DeepSpeed model": (
        "DeepSpeed ZeRO-1",
        ["global_step7/mp_rank_00_model_states.pt"],
        "no mp_rank_*_model_states.pt",
    ),
    "DeepSpeed layer": ("DeepSpeed pipeline", ["global_step7/layer_03-model_00-model_states.pt"], "layer 3 lacks"),
    "Hugging Face shard": (
        "Hugging Face sharded",
        ["checkpoint-7/model-00002-of-00002.safetensors"],
        "model-00002-of-00002.safetensors",
    ),
    "Hugging Face shard by name": (
        "Hugging Face sharded",
        ["checkpoint-7/model-00001-of-00002.safetensors", "checkpoint-7/model.safetensors.index.json"],
        "model-00001-of-00002.safetensors is missing",
    ),
    "Hugging Face FSDP part": (
        "Hugging Face FSDP",
        ["checkpoint-7/optimizer_0/.metadata"],
        "optimizer_0/.metadata is missing",
    ),
    "DCP metadata": ("torchtitan", ["checkpoint/step-7/.metadata"], ".metadata is missing"),
    "DCP part": ("DCP in parts", ["global_step_7/optim/.metadata"], "optim/.metadata is missing"),
    "NeMo rank": (
        "NeMo 1 model parallel",
        ["mp_rank_01/megatron_gpt--val_loss=5.05-step=7-consumed_samples=80.0-last.ckpt"],
        "is missing in mp_rank_01",
    ),
}


@pytest.mark.parametrize(("layout", "gone", "why"), BROKEN.values(), ids=BROKEN)
def test_incomplete(tmp_path: Path, layout: str, gone: list[str], why: str) -> None:
    put(tmp_path, VALID[layout][1])
    for name in gone:
        path = tmp_path / name
        if path.is_dir():
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        else:
            path.unlink()
    seen = inspect(tmp_path)
    (reason,) = seen.invalid.values()
    assert why in reason
    assert seen.resume is None
    assert seen.exit_code == 1


def test_megatron_release(tmp_path: Path) -> None:
    put(tmp_path, {"latest_checkpointed_iteration.txt": b"release\n", "release/mp_rank_00/model_optim_rng.pt": real})
    seen = inspect(tmp_path)
    assert (seen.resume, seen.step) == ("release", None)
    assert seen.json["resume"]["args"] == f"--load {tmp_path}"


def test_megatron_tracker_goes_before_a_newer_unpublished_folder(tmp_path: Path) -> None:
    put(tmp_path, {"latest_checkpointed_iteration.txt": b"10"})
    put(tmp_path, tree("iter_0000010/mp_rank_00/model_optim_rng.pt", "iter_0000020/mp_rank_00/model_optim_rng.pt"))
    seen = inspect(tmp_path)
    assert seen.step == 10
    assert "iter_0000020 looks whole, but latest_checkpointed_iteration.txt says iter_0000010" in seen.warnings
    assert seen.exit_code == 0


@pytest.mark.parametrize("text", ["", "abc", "-5", "10 20", "\u0663"])
def test_megatron_tracker_without_sense(tmp_path: Path, text: str) -> None:
    put(
        tmp_path,
        {"latest_checkpointed_iteration.txt": text.encode(), "iter_0000010/mp_rank_00/model_optim_rng.pt": real},
    )
    seen = inspect(tmp_path)
    assert seen.step == 10
    assert "neither an iteration nor 'release'" in seen.warnings


def test_a_tracker_without_any_checkpoint_is_not_a_first_run(tmp_path: Path) -> None:
    put(tmp_path, {"latest_checkpointed_iteration.txt": b"4000"})
    seen = inspect(tmp_path)
    assert seen.json["checkpoints"] == []
    assert "iter_0004000, which is missing" in seen.warnings
    assert seen.exit_code == 1


def test_megatron_given_one_checkpoint(tmp_path: Path) -> None:
    put(tmp_path, tree("run/iter_0000030/mp_rank_00/model_optim_rng.pt"))
    seen = inspect(tmp_path, "run/iter_0000030")
    assert seen.json["resume"]["args"] == f"--load {tmp_path}/run --ckpt-step 30"


def test_deepspeed_steps_are_numbers(tmp_path: Path) -> None:
    put(tmp_path, tree("global_step9/mp_rank_00_model_states.pt", "global_step10/mp_rank_00_model_states.pt"))
    assert inspect(tmp_path).step == 10


def test_deepspeed_universal_is_a_last_resort(tmp_path: Path) -> None:
    put(tmp_path, tree("global_step9/mp_rank_00_model_states.pt"))
    put(tmp_path, tree("global_step10_universal/mp_rank_00_model_states.pt", "global_step10_universal/zero/w/fp32.pt"))
    put(tmp_path, {"latest_universal": b"global_step10_universal"})
    assert inspect(tmp_path).resume == "global_step9"
    (tmp_path / "global_step9/mp_rank_00_model_states.pt").write_bytes(zip_bytes()[:100])
    seen = inspect(tmp_path)
    assert seen.resume == "global_step10_universal"
    assert "load_universal" in seen.warnings


def test_deepspeed_free_tags_need_latest(tmp_path: Path) -> None:
    put(tmp_path, {"latest": b"step_30", "runs/events.out": b"x", "code": None})
    put(
        tmp_path,
        tree(
            "step_20/mp_rank_00_model_states.pt",
            "step_30/mp_rank_00_model_states.pt",
            "best/mp_rank_00_model_states.pt",
        ),
    )
    seen = inspect(tmp_path)
    assert seen.json["resume"]["args"] == f"--load_dir {tmp_path} --ckpt_id step_30"
    assert {Path(c["path"]).name for c in seen.json["checkpoints"]} == {"step_20", "step_30", "best"}


@pytest.mark.parametrize(
    ("latest", "why"), [(None, "latest is missing"), (b"global_step6", "latest names global_step6")]
)
def test_hugging_face_with_deepspeed_not_ended(tmp_path: Path, latest: Optional[bytes], why: str) -> None:
    put(tmp_path, tree("checkpoint-7/global_step7/mp_rank_00_model_states.pt", "checkpoint-7/trainer_state.json"))
    if latest:
        put(tmp_path, {"checkpoint-7/latest": latest})
    assert why in inspect(tmp_path).invalid["checkpoint-7"]


def test_hugging_face_parts_that_others_have(tmp_path: Path) -> None:
    put(
        tmp_path,
        tree(*(f"checkpoint-1/{name}" for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"))),
    )
    put(tmp_path, tree(*(f"checkpoint-2/{name}" for name in ("model.safetensors", "trainer_state.json"))))
    put(tmp_path, tree(*(f"checkpoint-3/{name}" for name in ("optimizer.pt", "trainer_state.json"))))
    seen = inspect(tmp_path)
    assert seen.resume == "checkpoint-1"
    assert "model weights" in seen.invalid["checkpoint-3"]
    assert "optimizer state" in seen.invalid["checkpoint-2"]


def test_hugging_face_model_only(tmp_path: Path) -> None:
    """save_only_model: no checkpoint has an optimizer, so that is how this run saves."""
    for step in (1, 2):
        put(tmp_path, tree(f"checkpoint-{step}/model.safetensors", f"checkpoint-{step}/trainer_state.json"))
    seen = inspect(tmp_path)
    assert seen.resume == "checkpoint-2"
    assert "has no optimizer state, like the others here" in seen.warnings


def test_lightning_newest_among_links_copies_and_versions(tmp_path: Path) -> None:
    put(
        tmp_path,
        {name: zip_bytes() for name in ("epoch=1-step=10.ckpt", "epoch=2-step=20.ckpt", "epoch=2-step=20-v1.ckpt")},
    )
    assert inspect(tmp_path).resume == "epoch=2-step=20-v1.ckpt"
    put(tmp_path, {"last.ckpt": lightning_bytes(25), "last-v1.ckpt": lightning_bytes(27)})
    seen = inspect(tmp_path)
    assert (seen.resume, seen.step) == ("last-v1.ckpt", 27)


def test_lightning_last_of_unknown_step_counts_by_time(tmp_path: Path) -> None:
    put(tmp_path, {"epoch=1-step=10.ckpt": zip_bytes(), "last.ckpt": zip_bytes()})
    os.utime(tmp_path / "epoch=1-step=10.ckpt", (1_700_000_000, 1_700_000_000))
    os.utime(tmp_path / "last.ckpt", (1_700_000_001, 1_700_000_001))
    assert inspect(tmp_path).resume == "epoch=1-step=10.ckpt", "a copy of the same save: the step is known"
    os.utime(tmp_path / "last.ckpt", (1_700_003_600, 1_700_003_600))
    assert inspect(tmp_path).resume == "last.ckpt"


def test_lightning_last_torn(tmp_path: Path) -> None:
    put(tmp_path, {"epoch=1-step=10.ckpt": lightning_bytes(10), "last.ckpt": lightning_bytes(20)[:200]})
    seen = inspect(tmp_path)
    assert seen.resume == "epoch=1-step=10.ckpt"
    assert list(seen.invalid) == ["last.ckpt"]


def test_lightning_epochs_are_numbers(tmp_path: Path) -> None:
    put(tmp_path, {f"epoch_{n:03}.ckpt": zip_bytes() for n in (8, 9, 10, 100)})
    assert inspect(tmp_path).resume == "epoch_100.ckpt"


def test_lightning_versions_are_numbers(tmp_path: Path) -> None:
    put(
        tmp_path, {f"lightning_logs/version_{n}/checkpoints/epoch=0-step={5 + n}.ckpt": zip_bytes() for n in (2, 9, 10)}
    )
    seen = inspect(tmp_path)
    assert seen.resume == "lightning_logs/version_10/checkpoints/epoch=0-step=15.ckpt"
    assert "3 run folders" in seen.warnings


def test_newest_run_without_a_valid_checkpoint(tmp_path: Path) -> None:
    put(tmp_path, {"version_0/checkpoints/last.ckpt": zip_bytes(), "version_1/checkpoints/last.ckpt": zip_bytes()[:50]})
    assert inspect(tmp_path).resume == "version_0/checkpoints/last.ckpt"


def test_other_experiments_are_not_searched(tmp_path: Path) -> None:
    put(tmp_path, {"llama-7b/last.ckpt": zip_bytes(), "llama-13b/checkpoint-5/trainer_state.json": real})
    seen = inspect(tmp_path)
    assert seen.json["checkpoints"] == []
    assert seen.exit_code == 0


def test_dcp_an_empty_shard_is_normal_unless_it_was_full_before(tmp_path: Path) -> None:
    shards = ("__0_0.distcp", "__1_0.distcp")
    for step in (1, 2):
        put(tmp_path, {f"step-{step}/.metadata": metadata_bytes(*shards), f"step-{step}/__0_0.distcp": real})
        put(tmp_path, {f"step-{step}/__1_0.distcp": b""})
    assert inspect(tmp_path).step == 2
    put(tmp_path, {"step-1/__1_0.distcp": real})
    seen = inspect(tmp_path)
    assert seen.step == 1
    assert "__1_0.distcp is empty, and is not in step-1" in seen.invalid["step-2"]


def test_dcp_ranks_without_a_shard_are_normal(tmp_path: Path) -> None:
    """Replicas save nothing: only .metadata knows which shards belong."""
    put(tmp_path, {"step-1/.metadata": metadata_bytes("__0_0.distcp", "__4_0.distcp")})
    put(tmp_path, tree("step-1/__0_0.distcp", "step-1/__4_0.distcp"))
    assert inspect(tmp_path).step == 1


def test_dcp_under_a_hugging_face_name(tmp_path: Path) -> None:
    put(tmp_path, tree("checkpoint-5/.metadata", "checkpoint-5/__0_0.distcp"))
    seen = inspect(tmp_path)
    assert seen.json["resume"]["framework"] == "dcp"
    assert seen.json["resume"]["args"] == f"--checkpoint_id {tmp_path}/checkpoint-5"


def test_torchtitan_takes_the_step(tmp_path: Path) -> None:
    put(tmp_path, tree("step-5/.metadata", "step-5/__0_0.distcp"))
    assert inspect(tmp_path).json["resume"]["args"] == "--checkpoint.load_step 5"


def test_nemo_unfinished_marker(tmp_path: Path) -> None:
    names = [f"gpt--val_loss=2.0-step={step}-consumed_samples=9.0" for step in (10, 20)]
    put(tmp_path, {f"{name}.ckpt": zip_bytes() for name in names})
    put(tmp_path, {f"{names[1]}-unfinished": b"", f"{names[0]}-last.ckpt": zip_bytes()})
    seen = inspect(tmp_path)
    assert seen.resume == f"{names[0]}-last.ckpt", "of two with one step, -last"
    assert "-unfinished lies beside it" in seen.invalid[f"{names[1]}.ckpt"]
    assert seen.json["resume"]["args"] == f'++exp_manager.resume_from_checkpoint="{tmp_path}/{names[0]}-last.ckpt"'


def test_the_wrong_framework_is_named(tmp_path: Path) -> None:
    put(tmp_path, tree("iter_0000030/mp_rank_00/model_optim_rng.pt"))
    seen = inspect(tmp_path, ".", "--framework", "hf")
    assert seen.resume is None
    assert "holds no hf checkpoints, but megatron ones" in seen.warnings
    assert seen.exit_code == 1


def test_two_runs_in_one_directory(tmp_path: Path) -> None:
    put(tmp_path, tree("checkpoint-900/trainer_state.json", "checkpoint-100/trainer_state.json"))
    os.utime(tmp_path / "checkpoint-900", (1_700_000_000, 1_700_000_000))
    seen = inspect(tmp_path)
    assert seen.step == 900
    assert "checkpoint-100 was written after checkpoint-900" in seen.warnings
