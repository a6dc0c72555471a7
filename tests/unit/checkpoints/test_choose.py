"""Resume arguments: templates, and values that an unquoted expansion could not carry."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aistation_slurm.checkpoints.choose import TEMPLATES, resume_args
from aistation_slurm.checkpoints.inspect import FRAMEWORKS
from aistation_slurm.checkpoints.model import Checkpoint
from aistation_slurm.errors import CheckpointError


def checkpoint(
    path: str = "/ckpt/run/iter_0000040", framework: str = "megatron", step: int | None = 40, tag: str = "t"
) -> Checkpoint:
    return Checkpoint(Path(path), step, framework, True, root=Path(path).parent, tag=tag)


def test_every_framework_has_a_template() -> None:
    assert set(TEMPLATES) == set(FRAMEWORKS) - {"auto"}
    for framework in TEMPLATES:
        assert "/ckpt/run" in resume_args(checkpoint(framework=framework))


def test_placeholders() -> None:
    text = resume_args(checkpoint(), " --load {dir}/{name} --at={step},{tag} -p {path} ")
    assert text == "--load /ckpt/run/iter_0000040 --at=40,t -p /ckpt/run/iter_0000040"


def test_storage_behind_the_plus_does_not_change_the_option() -> None:
    assert resume_args(checkpoint(framework="hf+deepspeed")).startswith("--resume_from_checkpoint ")


@pytest.mark.parametrize("template", ["--load {file}", "--load {}", "--load {path!r}", "--load {path.parent}", "{0}"])
def test_unknown_placeholder(template: str) -> None:
    with pytest.raises(CheckpointError, match=r"unknown placeholder .*known: \{path\}"):
        resume_args(checkpoint(), template)


@pytest.mark.parametrize(
    "template", ["--load '{path}'", "--x *", "a\nb", "--x $HOME", "--x `id`", "--x {path", "a;b", "a\x1bb"]
)
def test_template_that_scripts_cannot_pass(template: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be passed on"):
        resume_args(checkpoint(), template)


@pytest.mark.parametrize(
    "bad", [" ", "\t", "\n", "\r", "*", "?", "[", "\x00", "\x1b", "\x7f", "\x85", "\u2028", "\udcff", "'", "$", ";"]
)
def test_value_that_scripts_cannot_pass(bad: str) -> None:
    with pytest.raises(CheckpointError, match="AISTATION_RESUME_PATH") as refused:
        resume_args(checkpoint(f"/ckpt/a{bad}b/iter_0000040"))
    assert str(refused.value).isprintable()
    assert resume_args(checkpoint(f"/ckpt/a{bad}b/iter_0000040"), "--step {step}") == "--step 40"


def test_step_that_is_not_known() -> None:
    with pytest.raises(CheckpointError, match=r"the step of .* is not known; use \{path\}"):
        resume_args(checkpoint(step=None), "--at {step}")
    assert resume_args(checkpoint(step=None)) == "--load /ckpt/run"


@pytest.mark.parametrize("path", ["/ckpt/épée/x", "/ckpt/epoch=3-step=400.ckpt", "/ckpt/a@b,c:d%e+f/x"])
def test_what_is_accepted_reaches_the_program_unchanged(path: str) -> None:
    text = resume_args(checkpoint(path, "lightning"))
    for shell in ("sh", "bash"):
        shown = subprocess.run(
            [shell, "-c", 'printf "%s\\n" $ARGS'],
            env={"ARGS": text, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=True,
        )
        assert shown.stdout.decode().splitlines() == ["--ckpt_path", path]
