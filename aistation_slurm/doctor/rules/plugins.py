"""The two plugins that Slurm loads: job_submit.lua and the SPANK plugin."""

from __future__ import annotations

from collections.abc import Iterator

from aistation_slurm.doctor.hooks import is_ours
from aistation_slurm.doctor.model import NEWEST, Item, Severity, Site
from aistation_slurm.doctor.plugstack import Plugin

__all__ = ["SPANK", "judge", "lua_paths", "plugin_path"]

SPANK = "spank_aistation.so"
SETS_PARTITION = frozenset({"partition", "all_partitions", "cray_aries", "pbs"})
"""Plugins that decide on a job's partition or size, after which AIStation's has to look."""
LUA_PLUGIN = "job_submit_lua.so"


def lua_paths(site: Site) -> tuple[str, str]:
    """job_submit.lua and aistation.lua lie beside slurm.conf."""
    folder = (site.live_conf or site.conf.path).rpartition("/")[0]
    return f"{folder}/job_submit.lua", f"{folder}/aistation.lua"


def plugin_path(site: Site, path: str) -> str:
    """A SPANK plugin's file: below PluginDir where it is not absolute."""
    return path if path.startswith("/") else f"{site.value('PluginDir').split(':')[0]}/{path}"


def judge(site: Site) -> Iterator[Item]:
    plugins = _submit(site)
    if "lua" not in plugins:
        given = site.value("JobSubmitPlugins")
        yield site.advise(
            "submit.lua",
            Severity.WARNING,
            "JobSubmitPlugins",
            f"JobSubmitPlugins={given or '(unset)'} has no lua",
            "options of a job are not checked where SPANK is passed by (slurmrestd), and jobs are not placed on few leaf switches",
            ",".join(word for word in (given, "lua") if word),
            "job_submit.lua must lie beside slurm.conf first: slurmctld does not start without it",
        )
    else:
        yield from _order(site, plugins)
        yield from _lua(site)
    yield from _spank(site)


def _submit(site: Site) -> tuple[str, ...]:
    return tuple(
        word[len("job_submit/") :] if word.startswith("job_submit/") else word
        for word in site.words("JobSubmitPlugins")
    )


def _order(site: Site, plugins: tuple[str, ...]) -> Iterator[Item]:
    later = [name for name in plugins[plugins.index("lua") + 1 :] if name in SETS_PARTITION]
    if later:
        kept = [name for name in plugins if name != "lua"]
        yield site.advise(
            "submit.order",
            Severity.WARNING,
            "JobSubmitPlugins",
            f"JobSubmitPlugins has lua before {later[0]}",
            f"{later[0]} chooses the partition after AIStation has looked up what the partition of the job needs",
            ",".join([*kept, "lua"]),
        )


def _lua(site: Site) -> Iterator[Item]:
    host = site.host
    if host is None or not host.controller:
        return
    script, module = (host.files.get(path) for path in lua_paths(site))
    if script is not None and not script.exists:
        yield site.advise(
            "submit.lua_file",
            Severity.ERROR,
            "JobSubmitPlugins",
            f"{script.path} does not exist",
            "slurmctld does not start without it, and a running one goes on with what it loaded",
            None,
            f"copy {site.prefix}/slurm_plugins/job_submit.lua and aistation.lua there (`aistation install`)",
        )
    elif script is not None and not is_ours(script):
        yield site.advise(
            "submit.lua_file",
            Severity.WARNING,
            "JobSubmitPlugins",
            f"{script.path} is the site's own and does not call aistation.lua",
            "jobs are not placed on few leaf switches, and options of a job are not checked where SPANK is passed by",
            None,
            f"`aistation install --chain job_submit.lua={script.path}` writes one that calls both",
        )
    elif module is not None and not module.exists:
        yield site.advise(
            "submit.lua_file",
            Severity.WARNING,
            "JobSubmitPlugins",
            f"{module.path} does not exist",
            "every job passes unchanged, with one line in slurmctld's log for each",
            None,
            f"copy {site.prefix}/slurm_plugins/aistation.lua there, then `touch {script.path if script else module.path}`",
        )
    for plugin in (fact for path, fact in host.files.items() if path.endswith(f"/{LUA_PLUGIN}")):
        if not plugin.exists:
            yield site.advise(
                "submit.lua_plugin",
                Severity.ERROR,
                "JobSubmitPlugins",
                f"Slurm was built without Lua: {plugin.path} does not exist",
                "slurmctld does not start with JobSubmitPlugins=lua then",
                None,
                "install Slurm's Lua plugin (Debian: slurm-wlm-basic-plugins; RPM: rebuild with lua-devel installed)",
            )


def _spank(site: Site) -> Iterator[Item]:
    stack = site.plugstack
    if stack is None:
        return
    ours = [plugin for plugin in stack.plugins if plugin.path.endswith(SPANK)]
    if not ours:
        yield Item(
            "spank.plugstack",
            Severity.WARNING,
            f"no line names {SPANK}",
            "sbatch, srun and salloc do not know --ais-resume and the other options, so no job can opt in",
            f"{stack.path}: add `optional {site.prefix}/slurm_plugins/{SPANK}`, on every host where jobs are submitted or run",
            stack.path,
        )
    for plugin in ours:
        yield from _loaded(site, plugin)


def _loaded(site: Site, plugin: Plugin) -> Iterator[Item]:
    path = plugin_path(site, plugin.path)
    if plugin.required:
        yield Item(
            "spank.required",
            Severity.WARNING,
            f"{SPANK} is `required`",
            "after the next update of Slurm, until the plugin is built anew, sbatch, srun and every job step would fail",
            f"{plugin.file}:{plugin.line}: `optional {plugin.path}`",
            plugin.file,
            plugin.line,
        )
    fact = site.host.files.get(path) if site.host is not None else None
    if fact is None:
        return
    severity = Severity.ERROR if plugin.required else Severity.WARNING
    if not fact.exists:
        yield Item(
            "spank.file",
            severity,
            f"{path} does not exist on {site.host.name if site.host else 'this host'}",
            "the options --ais-... are unknown here: scripts with `#SBATCH --ais-resume` are refused",
            f"build it: `make -C {site.prefix}/slurm_plugins`",
            plugin.file,
            plugin.line,
        )
    elif fact.release is not None and site.version != NEWEST and fact.release != site.version:
        built, runs = (f"{major}.{minor:02d}" for major, minor in (fact.release, site.version))
        yield Item(
            "spank.release",
            severity,
            f"{path} was built for Slurm {built}, {runs} runs here",
            "Slurm does not load it: the options --ais-... are unknown",
            f"build it anew: `make -C {site.prefix}/slurm_plugins clean all`",
            plugin.file,
            plugin.line,
        )
