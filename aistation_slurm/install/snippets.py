"""Texts that a site takes into its own files: lines for slurm.conf and plugstack.conf, a whole aistation.toml."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from aistation_slurm.config.keys import sections

__all__ = ["plugstack_line", "sample_toml", "slurm_conf"]

WIDTH = 110
HOOKS = (
    ("Prolog", "prolog/aistation-prolog", "the gate"),
    ("Epilog", "epilog/aistation-epilog", "ends what a job left on its GPUs"),
    ("TaskProlog", "prolog/aistation-task-prolog", "puts AISTATION_* into the batch script's environment"),
    ("EpilogSlurmctld", "epilog/aistation-epilog-slurmctld", "wakes the watchdog"),
)


def slurm_conf(prefix: str, wrappers: Mapping[str, str], chains: Mapping[str, str]) -> str:
    """Lines for slurm.conf. wrappers: key -> the wrapper that takes the place of AIStation's own script."""
    lines = [
        "# AIStation for Slurm: `Include aistation.conf` in slurm.conf, or these lines there. Where slurm.conf sets one of these",
        "# keys itself, leave one of the two out (the last one counts) and chain the site's script: `aistation install --chain`.",
        "",
        "# the batch script waits for the gates of all nodes",
        "PrologFlags=Alloc,DeferBatch",
    ]
    for key, script, what in HOOKS:
        chained = f", then {chains[key]}" if key in wrappers and key in ("Prolog", "Epilog", "EpilogSlurmctld") else ""
        chained = f", after {chains[key]}" if key in wrappers and not chained else chained
        lines += [f"# {what}{chained}", f"{key}={wrappers.get(key, f'{prefix}/{script}')}"]
    if "HealthCheckProgram" in wrappers:
        lines += [
            f"# `aistation check --act`, then {chains['HealthCheckProgram']}; not needed for AIStation where the agent runs",
            f"HealthCheckProgram={wrappers['HealthCheckProgram']}",
            "HealthCheckInterval=60",
        ]
    lines += [
        "# reads the decision table of placement; job_submit.lua and aistation.lua must lie beside slurm.conf first",
        "JobSubmitPlugins=lua",
        "JobRequeue=1",
        "# a restarted job goes on in its output file",
        "JobFileAppend=1",
        "",
    ]
    return "\n".join(lines)


def plugstack_line(prefix: str) -> str:
    return (
        "# AIStation for Slurm: this line into plugstack.conf, on every host where jobs are submitted or run. Build it anew\n"
        f"# with each release of Slurm (make -C {prefix}/slurm_plugins); `optional`, so that nothing else fails until then.\n"
        f"optional {prefix}/slurm_plugins/spank_aistation.so\n"
    )


def sample_toml() -> str:
    """Every key with its default, commented out."""
    lines = ["# Every key of aistation.toml with its default. Generated; copy what you change into aistation.toml.", ""]
    for section in sections():
        if section.name:
            lines += ["", *_comment(section.why), f"# [{section.name}]"]
        for key in section.keys:
            lines += _comment(key.why)
            default = "..." if not key.default else key.default
            unit = f"  # {key.unit}" if key.unit else ""
            lines.append(f"# {key.name} = {default}{unit}" if default != "unset" else f"# {key.name} =  # {key.type}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"## {line}" for line in textwrap.wrap(text.replace("``", "`"), WIDTH)]
