"""The scripts of AIStation that slurm.conf has to name, and who runs each."""

from __future__ import annotations

from dataclasses import dataclass

from aistation_slurm.doctor.model import FileFact, Severity, Site

__all__ = ["HOOKS", "SCRIPTS", "Hook", "paths_of"]


@dataclass(frozen=True)
class Hook:
    """key of slurm.conf; script below the prefix; on: the part of Slurm that runs it; root: runs it as root."""

    key: str
    script: str
    on: str
    root: bool
    severity: Severity
    lost: str
    """What does not work without it."""


HOOKS = (
    Hook(
        "Prolog",
        "prolog/aistation-prolog",
        "node",
        True,
        Severity.ERROR,
        "there is no gate: jobs start on sick GPUs and bad links",
    ),
    Hook(
        "TaskProlog",
        "prolog/aistation-task-prolog",
        "node",
        False,
        Severity.ERROR,
        "a restarted job gets no AISTATION_RESUME_ARGS and trains from step 0",
    ),
    Hook(
        "Epilog",
        "epilog/aistation-epilog",
        "node",
        True,
        Severity.WARNING,
        "processes that a job left on its GPUs stay, and the next job meets them",
    ),
    Hook(
        "EpilogSlurmctld",
        "epilog/aistation-epilog-slurmctld",
        "controller",
        False,
        Severity.WARNING,
        "the watchdog learns of an ended job only at its next poll, not at once",
    ),
)
SCRIPTS = {
    # all scripts of slurm.conf whose files are looked at: key -> (where it runs, as root)
    **{hook.key: (hook.on, hook.root) for hook in HOOKS},
    "PrologSlurmctld": ("controller", False),
    "TaskEpilog": ("node", False),
    "HealthCheckProgram": ("node", True),
    "RebootProgram": ("node", True),
    "UnkillableStepProgram": ("node", True),
    "ResumeProgram": ("controller", False),
    "SuspendProgram": ("controller", False),
}


def paths_of(site: Site, key: str) -> tuple[str, ...]:
    """The files that a script's key stands for: one path, several (24.05 and newer take several lines), or a pattern's."""
    values = [setting.value for setting in site.conf.settings.get(key.lower(), ())]
    if not values:
        shown = site.value(key)
        values = [word for word in shown.split(",") if word.startswith("/")]
    if site.version < (24, 5):
        values = values[-1:]
    found: list[str] = []
    for value in values:
        # RebootProgram and the like may have arguments
        path = value.split()[0] if value.split() else ""
        matched = site.host.patterns.get(path) if site.host is not None else None
        found += matched if matched is not None else [path]
    return tuple(path for path in found if path and path != "(null)")


def is_ours(fact: FileFact) -> bool:
    """The script is AIStation's, or calls it."""
    return "aistation" in fact.head.lower() or fact.path.rpartition("/")[2].startswith("aistation")
