"""AIStation put in force on the cluster, as an administrator would install it: Slurm's hooks, plugins, aistation.toml.

A piece that the repository does not have is left out with a note (``Cluster.notes``), so that the rest can be tried.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.host_root import REPOSITORY

INSTALLED = "/opt/aistation"

HOOKS = {
    "Prolog": "prolog/aistation-prolog",
    "TaskProlog": "prolog/aistation-task-prolog",
    "Epilog": "epilog/aistation-epilog",
    "EpilogSlurmctld": "epilog/aistation-epilog-slurmctld",
}
LUA = ("job_submit.lua", "aistation.lua")
SPANK = "slurm_plugins/spank_aistation.so"

Settings = Mapping[str, Mapping[str, Any]]


def slurm_settings(notes: list[str]) -> dict[str, str]:
    """slurm.conf keys for the hooks that exist."""
    settings = {"PrologFlags": "Alloc,DeferBatch"}
    for key, path in HOOKS.items():
        if (REPOSITORY / path).exists():
            settings[key] = f"{INSTALLED}/{path}"
        else:
            notes.append(f"{key} is not set: {path} does not exist")
    if (REPOSITORY / "slurm_plugins" / LUA[0]).exists():
        settings["JobSubmitPlugins"] = "lua"
    else:
        notes.append(f"JobSubmitPlugins is not set: slurm_plugins/{LUA[0]} does not exist")
    return settings


def install_plugins(conf_dir: Path, notes: list[str]) -> None:
    """job_submit.lua and its module beside slurm.conf; the SPANK plugin (built where missing) in plugstack.conf."""
    for name in LUA:
        if (REPOSITORY / "slurm_plugins" / name).exists():
            shutil.copy(REPOSITORY / "slurm_plugins" / name, conf_dir / name)
    if not (REPOSITORY / SPANK).exists() and (REPOSITORY / "slurm_plugins/Makefile").exists():
        argv = ["make", "-C", str(REPOSITORY / "slurm_plugins")]
        built = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        if built.returncode != 0:
            notes.append(f"{' '.join(argv)} failed: {built.stderr.strip()}")
    if (REPOSITORY / SPANK).exists():
        (conf_dir / "plugstack.conf").write_text(f"optional {INSTALLED}/{SPANK}\n", encoding="utf-8")
    else:
        notes.append(f"the sbatch options are not there: {SPANK} was not built")


def has_command(name: str) -> bool:
    """True when the repository has `aistation NAME`."""
    return (REPOSITORY / f"aistation_slurm/cli/{name}.py").exists()


def node_config(mode: str, hcas: int, overrides: Settings) -> str:
    """aistation.toml of every host. Polls and the hang's confirmation are short: a test need not wait minutes."""
    sections: dict[str, dict[str, Any]] = {
        "probe": {
            "root": "/run/aisim/root",
            "kmsg": "/run/aisim/kmsg",
            "nvml_library": "/run/aisim/libnvidia-ml.so.1",
            "hang_confirm_s": 10.0,
        },
        "expect": {"hca_ports": hcas},
        "node": {"poll_s": 5.0},
    }
    for section, values in overrides.items():
        sections.setdefault(section, {}).update(values)
    lines = [f"mode = {json.dumps(mode)}"]
    for section, values in sections.items():
        # JSON's text, numbers, true/false and flat lists are TOML too.
        lines += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
