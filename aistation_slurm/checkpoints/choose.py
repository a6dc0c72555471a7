"""From the chosen checkpoint to the arguments that make a training program resume from it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from aistation_slurm.checkpoints.folder import plain
from aistation_slurm.checkpoints.model import Checkpoint
from aistation_slurm.errors import CheckpointError

__all__ = ["PLACEHOLDERS", "TEMPLATES", "Choice", "default_template", "resume_args"]

Choice = Checkpoint
"""The checkpoint to resume from is one of those that were inspected."""

TEMPLATES: Mapping[str, str] = {
    # Megatron-LM: --load, --ckpt-step (megatron/training/arguments.py)
    "megatron": "--load {dir} --ckpt-step {step}",
    # DeepSpeed has no option of its own; its Getting Started page reads args.load_dir and args.ckpt_id
    "deepspeed": "--load_dir {dir} --ckpt_id {tag}",
    # transformers: TrainingArguments.resume_from_checkpoint
    "hf": "--resume_from_checkpoint {path}",
    # LightningCLI: fit --ckpt_path
    "lightning": "--ckpt_path {path}",
    # torch.distributed.checkpoint.load(checkpoint_id=...)
    "dcp": "--checkpoint_id {path}",
    # NeMo: exp_manager.resume_from_checkpoint. The quotes are for Hydra, which takes the = in NeMo's file names as syntax;
    # an unquoted expansion in a script leaves them in place.
    "nemo": '++exp_manager.resume_from_checkpoint="{path}"',
}
"""What ``--ais-resume-args`` is by default, by framework."""

_MEGATRON_RELEASE = "--load {dir}"  # the tracker says `release`, which --ckpt-step cannot name
_TORCHTITAN = "--checkpoint.load_step {step}"  # torchtitan names its folders step-N and wants the step (its job config)

PLACEHOLDERS = ("path", "dir", "step", "tag", "name")
"""path of the checkpoint; dir: the folder that holds it; step; tag: its name for the framework; name: last part of path."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_ACTIVE = re.compile(r"[\s*?\[\]\"'$`\\;&|<>()~#!{}\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Blanks, control characters, globs, and what a second shell (``bash -c "... $AISTATION_RESUME_ARGS"``) would act upon."""


def default_template(choice: Choice) -> str:
    """The template where the user gave none: a site's own, or the framework's, of which two layouts need another one."""
    if choice.template:
        return choice.template
    framework = choice.framework.partition("+")[0]
    if framework == "megatron" and choice.step is None:
        return _MEGATRON_RELEASE
    if framework == "dcp" and choice.step is not None and choice.path.name == f"step-{choice.step}":
        return _TORCHTITAN
    return TEMPLATES[framework]


def resume_args(choice: Choice, template: str = "") -> str:
    """The text for ``AISTATION_RESUME_ARGS``, which scripts leave unquoted: ``train.py $AISTATION_RESUME_ARGS``.

    template: words with placeholders such as ``{path}``; empty: the framework's own. Raises CheckpointError: an unknown
    placeholder, a value that is not known for this checkpoint, or one that would not arrive as it is because a shell splits or
    expands it.
    """
    text = template.strip()
    if text:
        _refuse_in_template(text)
    else:
        text = default_template(choice)
    values = {
        "path": str(choice.path),
        "dir": str(choice.root),
        "name": choice.path.name,
        "tag": choice.tag,
        "step": "" if choice.step is None else str(choice.step),
    }
    return _PLACEHOLDER.sub(lambda match: _value(values, match.group(1), choice), text)


def _refuse_in_template(template: str) -> None:
    for name in _PLACEHOLDER.findall(template):
        if name not in PLACEHOLDERS:
            known = " ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
            raise CheckpointError(
                f"resume arguments {plain(template)!r}: unknown placeholder {{{plain(name)}}}; known: {known}"
            )
    found = _ACTIVE.search(_PLACEHOLDER.sub("", template).replace(" ", ""))
    if found:
        raise CheckpointError(
            f"resume arguments {plain(template)!r}: the character {found.group()!r} cannot be passed on, since scripts leave "
            "$AISTATION_RESUME_ARGS unquoted; use words and placeholders only"
        )


def _value(values: Mapping[str, str], name: str, choice: Choice) -> str:
    value = values[name]
    if not value:
        raise CheckpointError(
            f"the {name} of {plain(str(choice.path))} is not known; use {{path}} in --ais-resume-args instead"
        )
    found = _ACTIVE.search(value)
    if found:
        raise CheckpointError(
            f"checkpoint {name} {plain(value)!r} has the character {found.group()!r}, which an unquoted $AISTATION_RESUME_ARGS "
            'cannot carry; rename it, or write "$AISTATION_RESUME_PATH" in quotes in the script'
        )
    return value
