"""Which files belong on a host of which role, with their texts. Reads the templates beside the package; writes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aistation_slurm.errors import InstallError
from aistation_slurm.install.snippets import plugstack_line, sample_toml, slurm_conf

__all__ = ["CHAINS", "ROLES", "Planned", "Settings", "plan"]

ROLES = ("all", "controller", "node", "submit")
COMMAND, PREFIX, SLURM_USER = "/usr/bin/aistation", "/opt/aistation", "slurm"
"""As the templates below packaging/ have them."""
CHAINS = {
    # key of slurm.conf (or job_submit.lua): (template, role)
    "Prolog": ("prolog", "node"),
    "TaskProlog": ("task-prolog", "node"),
    "Epilog": ("epilog", "node"),
    "HealthCheckProgram": ("health-check", "node"),
    "EpilogSlurmctld": ("epilog-slurmctld", "controller"),
    "job_submit.lua": ("job_submit.lua", "controller"),
}
TEMPLATES = (
    # (template below packaging/, where it goes, role)
    ("systemd/aistation-agent.service", "etc/systemd/system/aistation-agent.service", "node"),
    ("systemd/aistation-check.service", "etc/systemd/system/aistation-check.service", "node"),
    ("systemd/aistation-check.timer", "etc/systemd/system/aistation-check.timer", "node"),
    ("systemd/aistation-watchdog.service", "etc/systemd/system/aistation-watchdog.service", "controller"),
    ("tmpfiles/aistation-node.conf", "etc/tmpfiles.d/aistation-node.conf", "node"),
    ("tmpfiles/aistation-controller.conf", "etc/tmpfiles.d/aistation-controller.conf", "controller"),
    ("cron/aistation", "etc/cron.d/aistation", ""),
    ("logrotate/aistation", "etc/logrotate.d/aistation", "node"),
)
_SAFE_PATH = re.compile(r"/[A-Za-z0-9_./+@%:,-]*\Z")
"""What can stand in shell, Lua and slurm.conf without quotes."""


@dataclass(frozen=True)
class Settings:
    """chains: key -> the site's own script. slurm_dir: slurm.conf's folder. prefix, command: where AIStation is."""

    role: str = "all"
    prefix: str = PREFIX
    command: str = COMMAND
    slurm_dir: str = "/etc/slurm"
    slurm_user: str = SLURM_USER
    chains: Mapping[str, str] = field(default_factory=dict)

    def has(self, role: str) -> bool:
        return self.role == "all" or not role or role == self.role


@dataclass(frozen=True)
class Planned:
    """path: below the root, without a leading slash. once: written only where there is no such file yet; then it is the site's."""

    path: str
    text: str
    mode: int = 0o644
    once: bool = False


def plan(settings: Settings) -> list[Planned]:
    """All files. Raises InstallError where templates are missing or a path cannot stand in a script."""
    _check(settings)
    found = [Planned("etc/aistation/aistation.toml", _first_toml(settings), once=True)]
    found.append(Planned("etc/aistation/aistation.toml.sample", sample_toml()))
    if settings.role != "submit":
        found += [Planned(to, _template(settings, name)) for name, to, role in TEMPLATES if settings.has(role)]
    wrappers = {}
    for key, site in settings.chains.items():
        template, role = CHAINS[key]
        path = f"etc/aistation/wrappers/{template}"
        wrappers[key] = f"/{path}"  # in slurm.conf, which all hosts share, whatever this one is
        if settings.has(role):
            found.append(Planned(path, _wrapper(settings, key, template, site), 0o755))
    slurm_dir = settings.slurm_dir.lstrip("/")
    found.append(Planned(f"{slurm_dir}/aistation.conf", slurm_conf(settings.prefix, wrappers, settings.chains)))
    found.append(Planned(f"{slurm_dir}/plugstack.aistation.conf", plugstack_line(settings.prefix)))
    if settings.has("controller"):
        found.append(Planned(f"{slurm_dir}/aistation.lua", _plugin(settings, "aistation.lua")))
        found.append(Planned(f"{slurm_dir}/job_submit.lua", _plugin(settings, "job_submit.lua"), once=True))
    return found


START_TOML = """\
# AIStation's settings; all others are at their defaults. aistation.toml.sample has every key, `aistation config check` tests this.

# Every part says what it would do, and does nothing. When that was right for a week: "enforce".
mode = "observe"
"""


def _first_toml(settings: Settings) -> str:
    if settings.command == COMMAND:
        return START_TOML
    return f'{START_TOML}\n[sweep]\n# where `aistation` is on every node\nprogram = "{settings.command}"\n'


def _check(settings: Settings) -> None:
    named = {"--prefix": settings.prefix, "--slurm-dir": settings.slurm_dir, "aistation": settings.command}
    named.update({f"--chain {key}": site for key, site in settings.chains.items()})
    for what, path in named.items():
        if not _SAFE_PATH.match(path) or "/../" in f"{path}/":
            raise InstallError(f"{what}: {path!r} is no plain absolute path (letters, digits and _./+@%:,- alone)")
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", settings.slurm_user):
        raise InstallError(f"--slurm-user: {settings.slurm_user!r} is no name of a user")
    for key, site in settings.chains.items():
        if site.startswith((f"{settings.prefix}/", "/etc/aistation/wrappers/")):
            raise InstallError(f"--chain {key}: {site} is AIStation's own; name the script that the site has")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise InstallError(
            f"{path}: {exc.strerror}; give the folder that holds packaging/, prolog/ and slurm_plugins/ with --prefix"
        ) from exc


def _template(settings: Settings, name: str) -> str:
    text = _read(Path(settings.prefix) / "packaging" / name)
    text = text.replace(COMMAND, settings.command)
    text = re.sub(rf"{re.escape(PREFIX)}(?=/)", lambda _: settings.prefix, text)
    if settings.slurm_user != SLURM_USER:
        text = re.sub(r"(?m)^(User|Group)=slurm$", rf"\1={settings.slurm_user}", text)
        text = text.replace(" slurm slurm -", f" {settings.slurm_user} {settings.slurm_user} -")
        text = re.sub(r"  slurm  ", f"  {settings.slurm_user}  ", text)
    return text


def _wrapper(settings: Settings, key: str, template: str, site: str) -> str:
    text = _template(settings, f"wrappers/{template}")
    if key == "job_submit.lua":
        if site == f"{settings.slurm_dir}/job_submit.lua":
            site = f"{settings.slurm_dir}/job_submit.site.lua"  # ours takes its place
        return re.sub(r'(?m)^(local site_file = ").*"$', lambda m: f'{m.group(1)}{site}"', text)
    return re.sub(r"(?m)^site=.*$", lambda _: f"site={site}", text)


def _plugin(settings: Settings, name: str) -> str:
    return _read(Path(settings.prefix) / "slurm_plugins" / name)
