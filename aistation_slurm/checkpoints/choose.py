"""From a chosen checkpoint to the arguments that make a program resume from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from aistation_slurm.checkpoints.model import Checkpoint
from aistation_slurm.errors import CheckpointError

__all__ = ["TEMPLATES", "resume_args"]

TEMPLATES: Mapping[str, str] = {
    "megatron": "--load {dir} --ckpt-step {step}",  # Megatron-LM arguments.py
    "deepspeed": "--load_dir {dir} --ckpt_id {tag}",  # DeepSpeed tutorials' own names; most scripts need a template
    "hf": "--resume_from_checkpoint {path}",  # transformers TrainingArguments
    "lightning": "--ckpt_path {path}",  # LightningCLI
    "dcp": "--checkpoint.load_step {step}",  # torchtitan
    "nemo": "--resume_from_checkpoint {path}",
}
_PLACEHOLDER = re.compile(r"\{([a-z]*)\}")
_BAD = re.compile(r"[\s*?\[\]\"'$`\\;&|<>()~#!{}\x00-\x1f\x7f]")


def resume_args(checkpoint: Checkpoint, template: str = "") -> str:
    """The text for ``AISTATION_RESUME_ARGS``, which scripts leave unquoted.

    template: words with {path} {dir} {name} {tag} {step}; empty: the framework's own. Raises CheckpointError where a value has
    a blank, a control character or one that a shell expands, or where the template asks for a step that is not known.
    """
    text = template or TEMPLATES[checkpoint.framework.split("+")[0]]
    if not template and checkpoint.step is None and "{step}" in text:
        text = text.replace(" --ckpt-step {step}", "")
    values = {
        "path": str(checkpoint.path),
        "dir": str(checkpoint.path.parent),
        "name": checkpoint.path.name,
        "tag": checkpoint.tag or checkpoint.path.name,
        "step": "" if checkpoint.step is None else str(checkpoint.step),
    }

    def fill(match: re.Match[str]) -> str:
        key = match.group(1)
        if key not in values:
            raise CheckpointError(
                f"resume arguments {text!r}: unknown placeholder {{{key}}}; known: {', '.join(values)}"
            )
        value = values[key]
        if not value:
            raise CheckpointError(
                f"resume arguments {text!r}: the step of {checkpoint.path} is not known; use {{path}}"
            )
        bad = _BAD.search(value)
        if bad:
            raise CheckpointError(
                f"checkpoint {key} {value!r} has the character {bad.group()!r}, which an unquoted $AISTATION_RESUME_ARGS "
                "cannot carry; rename it, or use $AISTATION_RESUME_PATH in quotes with --ais-resume-args of your own"
            )
        return value

    literal = _PLACEHOLDER.sub("", text)
    stray = _BAD.search(literal.replace(" ", ""))
    if stray:
        raise CheckpointError(
            f"resume arguments {text!r}: the character {stray.group()!r} is not allowed in a template"
        )
    return _PLACEHOLDER.sub(fill, text)


def check_path(path: Path) -> str:
    """The path as text for an ``export`` line; refuses control characters, which would forge a second line."""
    text = str(path)
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise CheckpointError(f"checkpoint path {text!r} has a control character; rename it")
    return text
