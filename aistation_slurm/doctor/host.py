"""The host that doctor runs on: its part in Slurm, the files that Slurm runs here, our daemons, its clock."""

from __future__ import annotations

import os
import pwd
import re
import socket
import time
from dataclasses import replace
from pathlib import Path

from aistation_slurm.config import chosen_path
from aistation_slurm.doctor import scontrol
from aistation_slurm.doctor.conf_file import names_of
from aistation_slurm.doctor.files import look_at
from aistation_slurm.doctor.hooks import SCRIPTS, paths_of
from aistation_slurm.doctor.model import FileFact, Host, Site
from aistation_slurm.doctor.rules.plugins import LUA_PLUGIN, SPANK, lua_paths, plugin_path
from aistation_slurm.errors import JournalError, SlurmError
from aistation_slurm.node.lock import agent_is_running
from aistation_slurm.node.own_name import nodes_on
from aistation_slurm.recovery.primary import host_names
from aistation_slurm.recovery.single import runs_here
from aistation_slurm.slurm.client import Node

__all__ = ["ENVIRONMENT_FILES", "dropped_hooks", "look_at_host"]

ENVIRONMENT_FILES = ("/etc/default/aistation", "/etc/sysconfig/aistation")
"""Of the units (packaging/systemd)."""
LOG_BYTES = 16 << 20
"""Of slurmctld's log that are read, from its end."""


def look_at_host(site: Site, unlooked: list[str]) -> Host:
    name = socket.gethostname()
    controller, node, told = _is_controller(site), _own_node(site, name), _told_name()
    host = Host(name, controller, node or told, told)
    if not controller and not host.node:
        unlooked.append(f"scripts and daemons: {name} is neither a controller nor a node of this slurm.conf")
    if controller and not host.node:
        unlooked.append(f"the nodes' own files: run `aistation doctor` on them, too ({name} is a controller alone)")
    agent = watchdog = None
    if host.node:
        if os.geteuid() == 0:
            agent = agent_is_running(site.config.node.state_dir)
        else:
            unlooked.append("whether the agent runs: only root can tell")
    if controller:
        try:
            watchdog = runs_here(Path(site.config.watchdog.journal))
        except JournalError as exc:
            unlooked.append(f"whether the watchdog runs: {exc}")
    dropped = _dropped(site) if controller else frozenset()
    host = Host(name, controller, host.node, told, agent, watchdog, _clock_offset(site), dropped, {}, _patterns(site))
    return replace(host, files=_files(site, host))


def _is_controller(site: Site) -> bool:
    named = [
        setting.value for key in ("slurmctldhost", "controlmachine") for setting in site.conf.settings.get(key, ())
    ]
    named += [setting.value for setting in site.conf.settings.get("backupcontroller", ())]
    mine = {"localhost", *host_names()}
    return any(re.sub(r"\(.*", "", one) in mine for value in named for one in value.split(","))


def _own_node(site: Site, host: str) -> str:
    nodes = [Node(node.name, node.state, hostname=node.hostname) for node in site.nodes or ()]
    if not nodes:
        for record in site.conf.of_kind("nodename"):
            names = names_of(record.name)
            hosts = names_of(record.keys.get("nodehostname", "")) or names
            nodes += [Node(name, "", hostname=hostname) for name, hostname in zip(names, hosts)]
    mine = nodes_on(host, nodes)
    return mine[0] if len(mine) == 1 else ""


def _told_name() -> str:
    for path in ENVIRONMENT_FILES:
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = re.search(r"(?m)^\s*SLURMD_NODENAME\s*=\s*[\"']?([^\s\"']+)", text)
        if found:
            return found.group(1)
    return os.environ.get("SLURMD_NODENAME", "")


def _clock_offset(site: Site) -> float | None:
    """This host's clock minus the controller's, in seconds; 0 within what the question itself and whole seconds allow."""
    if site.live is None:
        return None
    before = time.time()
    try:
        shown = scontrol.show_config(site.config.slurm, site.conf.path)
    except SlurmError:
        return None
    after = time.time()
    if shown.time is None:
        return None
    if before - 1 <= shown.time <= after:
        return 0.0
    return before - 1 - shown.time if shown.time < before else after - shown.time


def _dropped(site: Site) -> frozenset[str]:
    log = site.value("SlurmctldLogFile")
    if not log.startswith("/"):
        return frozenset()
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return dropped_hooks(file.read().decode("utf-8", "replace"))
    except OSError:
        return frozenset()


def dropped_hooks(log: str) -> frozenset[str]:
    """Keys whose script slurmctld found missing at its last start; slurmctld 22.05 then goes on without, newer ones end.

    "slurmctld version 22.05.8 started on cluster x" and
    "error: Invalid EpilogSlurmctld(`/x`): No such file or directory" (src/plugins/prep/script).
    """
    last = log.rpartition("slurmctld version ")[2] if "slurmctld version " in log else ""
    return frozenset(re.findall(r"Invalid (PrologSlurmctld|EpilogSlurmctld)\(", last))


def _patterns(site: Site) -> dict[str, tuple[str, ...]]:
    """Prolog and Epilog may be patterns (slurm.conf(5)); slurmd runs what they match in reverse order of names."""
    found = {}
    for key in ("prolog", "epilog"):
        for setting in site.conf.settings.get(key, ()):
            if re.search(r"[*?\[]", setting.value) and setting.value.startswith("/"):
                matched = sorted((str(p) for p in Path("/").glob(setting.value[1:])), reverse=True)
                found[setting.value] = tuple(matched)
    return found


def _slurm_uid(site: Site) -> int:
    try:
        return pwd.getpwnam(re.sub(r"\(.*", "", site.value("SlurmUser", "root"))).pw_uid
    except KeyError:
        return 0


def _files(site: Site, host: Host) -> dict[str, FileFact]:
    # SlurmUser may own slurm.conf, which names what root runs: it can be trusted no less with the scripts themselves
    owners = (0, _slurm_uid(site))
    seen = Site(site.conf, site.config, site.prefix, site.version, live=site.live, live_conf=site.live_conf, host=host)
    found: dict[str, FileFact] = {}
    for key, (on, root) in SCRIPTS.items():
        if host.node if on == "node" else host.controller:
            for path in paths_of(seen, key):
                if path.startswith("/"):
                    found[path] = look_at(path, owners, root)
    if host.controller and any(word.endswith("lua") for word in site.words("JobSubmitPlugins")):
        for path in lua_paths(site):
            found[path] = look_at(path, owners)
        folder = site.value("PluginDir").split(":")[0]
        if folder:
            found[f"{folder}/{LUA_PLUGIN}"] = look_at(f"{folder}/{LUA_PLUGIN}", owners)
    for plugin in site.plugstack.plugins if site.plugstack is not None else ():
        if plugin.path.endswith(SPANK):
            path = plugin_path(site, plugin.path)
            found[path] = look_at(path, owners)
    if host.controller:
        spool = site.config.watchdog.spool_dir
        found[spool] = look_at(spool, owners)
    # what root reads or runs besides: its settings (commands of healing), the site's checks, the programs themselves
    found[str(chosen_path()[0])] = look_at(str(chosen_path()[0]), owners)
    if host.node:
        found[site.config.check.plugins_dir] = look_at(site.config.check.plugins_dir, owners)
        found[site.prefix] = look_at(site.prefix, owners)
        found[site.config.node.gres_conf] = look_at(site.config.node.gres_conf, owners)
    return found
