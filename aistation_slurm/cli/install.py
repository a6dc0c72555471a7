"""``aistation install``: write units, snippets and wrappers; print what to do then."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aistation_slurm.config import Config
from aistation_slurm.doctor.collect import find_conf, installed_prefix
from aistation_slurm.doctor.conf_file import read_conf
from aistation_slurm.errors import ConfigError
from aistation_slurm.install.apply import Done, apply, read_manifest, uninstall
from aistation_slurm.install.plan import CHAINS, COMMAND, ROLES, SLURM_USER, Planned, Settings, plan

__all__ = ["command"]


@click.command("install")
@click.option("--role", type=click.Choice(ROLES), default="all", show_default=True, help="What this host is in Slurm.")
@click.option(
    "--into",
    "root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="Folder that stands for /: of a package, an image, or to look at.",
)
@click.option(
    "--chain",
    "chains",
    multiple=True,
    metavar="KEY=PATH",
    help=f"Write a wrapper that runs the site's script PATH, too. KEY: {', '.join(CHAINS)}. Empty PATH: no more.",
)
@click.option("--print", "printed", is_flag=True, help="Print all files instead.")
@click.option("--dry-run", is_flag=True, help="Say what would be written or removed.")
@click.option("--uninstall", "remove", is_flag=True, help="Remove what was written and not changed since.")
@click.option("--prefix", default="", metavar="DIR", help="Where AIStation is. [default: where this one is]")
@click.option("--slurm-dir", default="", metavar="DIR", help="Folder of slurm.conf. [default: where it is found]")
@click.option("--slurm-user", default=SLURM_USER, show_default=True, metavar="NAME", help="SlurmUser.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    role: str,
    root: Path,
    chains: tuple[str, ...],
    printed: bool,
    dry_run: bool,
    remove: bool,
    prefix: str,
    slurm_dir: str,
    slurm_user: str,
    as_json: bool,
) -> None:
    """Write systemd units, timers, tmpfiles, cron, logrotate, wrappers, and snippets for slurm.conf and plugstack.conf.

    slurm.conf itself is never changed. A file that a person changed is kept, and the new one goes beside it as NAME.new.
    Nothing is started; what to do next is printed.

    \b
    Examples:
      aistation install --print | less
      aistation install --role controller
      aistation install --role node --chain TaskProlog=/etc/slurm/taskprolog.sh
      aistation install --uninstall --dry-run
    """
    if remove:
        done = uninstall(root, _in_use() if root == Path("/") else (), dry_run=dry_run)
        _tell(done, as_json, dry_run, "")
        return
    chained = {**read_manifest(root).chains, **_chains(chains)}
    settings = Settings(
        role,
        prefix or installed_prefix(),
        _command(prefix or installed_prefix()),
        slurm_dir or _slurm_dir(),
        slurm_user,
        {key: path for key, path in chained.items() if path},
    )
    planned = plan(settings)
    if printed:
        _print(planned, as_json)
        return
    done = apply(root, planned, settings.chains, dry_run=dry_run)
    _tell(done, as_json, dry_run, _next_steps(settings))


def _chains(given: tuple[str, ...]) -> dict[str, str]:
    known = {key.lower(): key for key in CHAINS}
    found = {}
    for text in given:
        key, equals, path = text.partition("=")
        if not equals or key.lower() not in known:
            raise click.BadParameter(
                f"{text!r} is not KEY=PATH with KEY one of {', '.join(CHAINS)}", param_hint="--chain"
            )
        found[known[key.lower()]] = path
    return found


def _command(prefix: str) -> str:
    """`aistation` as units and cron call it: on the usual path, else in the prefix's own environment."""
    own = f"{prefix}/.venv/bin/aistation"
    return COMMAND if Path(COMMAND).exists() or not Path(own).exists() else own


def _slurm_dir() -> str:
    try:
        return str(find_conf(Config()).parent)
    except ConfigError:
        return "/etc/slurm"


def _in_use() -> set[str]:
    """Paths that slurm.conf names or includes, and Lua's files beside it where JobSubmitPlugins needs them."""
    try:
        conf = read_conf(find_conf(Config()))
    except ConfigError:
        return set()
    found = set(conf.files)
    for settings in conf.settings.values():
        found.update(setting.value.split(" ")[0] for setting in settings)
    plugins = conf.get("JobSubmitPlugins")
    if plugins is not None and "lua" in plugins.value:
        folder = conf.path.rpartition("/")[0]
        found.update((f"{folder}/job_submit.lua", f"{folder}/aistation.lua"))
    return found


def _print(planned: list[Planned], as_json: bool) -> None:
    if as_json:
        click.echo(
            json.dumps([{"path": f"/{p.path}", "mode": f"{p.mode:04o}", "text": p.text} for p in planned], indent=2)
        )
        return
    for one in planned:
        click.echo(f"==> /{one.path} ({one.mode:04o}{', only where there is none' if one.once else ''}) <==")
        click.echo(one.text)


def _tell(done: list[Done], as_json: bool, dry_run: bool, then: str) -> None:
    if as_json:
        click.echo(json.dumps([{"path": d.path, "what": d.what, "why": d.why or None} for d in done], indent=2))
        return
    for one in done:
        click.echo(f"{one.what:9}  {one.path}{f': {one.why}' if one.why else ''}")
    if dry_run:
        click.echo("nothing was changed (--dry-run)")
    elif then:
        click.echo(then, nl=False)


def _next_steps(settings: Settings) -> str:
    lines = ["then:", "  systemd-tmpfiles --create; systemctl daemon-reload"]
    if settings.has("controller"):
        lines.append("  systemctl enable --now aistation-watchdog")
        if "job_submit.lua" in settings.chains:
            lua = f"{settings.slurm_dir}/job_submit"
            lines.append(f"  mv {lua}.lua {lua}.site.lua && cp /etc/aistation/wrappers/job_submit.lua {lua}.lua")
    if settings.has("node"):
        lines.append("  systemctl enable --now aistation-agent")
    spank = f"{settings.prefix}/slurm_plugins"
    if not Path(f"{spank}/spank_aistation.so").exists():
        lines.append(f"  make -C {spank}")
    lines += [
        f"  {settings.slurm_dir}/slurm.conf: Include aistation.conf",
        f"  {settings.slurm_dir}/plugstack.conf: the line of plugstack.aistation.conf",
        "  scontrol reconfigure; aistation doctor",
    ]
    return "\n".join(lines) + "\n"
