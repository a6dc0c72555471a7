"""Everything that doctor judges, read from the files, this host and the running daemons. Changes nothing.

Parts that cannot be read are named in ``Site.unlooked``; only a slurm.conf that cannot be read is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Optional, TypeVar

import aistation_slurm
from aistation_slurm.config import Config
from aistation_slurm.doctor import scontrol
from aistation_slurm.doctor.conf_file import ConfFile, names_of, read_conf, read_records
from aistation_slurm.doctor.host import look_at_host
from aistation_slurm.doctor.model import NEWEST, Site
from aistation_slurm.doctor.plugstack import read_plugstack
from aistation_slurm.errors import AistationError, ConfigError, SlurmError
from aistation_slurm.topology import sources
from aistation_slurm.topology.model import ERROR, Problem, Reading
from aistation_slurm.topology.validate import ClusterFacts, check

__all__ = ["collect", "find_conf", "installed_prefix"]

USUAL = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
"""The second one is where slurmd of a configless site keeps what it got."""
YAML_SINCE = (25, 5)
T = TypeVar("T")


def installed_prefix() -> str:
    """The folder below which prolog/, epilog/ and slurm_plugins/ lie, beside the package; else /opt/aistation."""
    beside = Path(aistation_slurm.__file__).resolve().parent.parent
    return str(beside) if (beside / "prolog/aistation-prolog").exists() else "/opt/aistation"


def find_conf(config: Config) -> Path:
    """slurm.conf: aistation.toml's, $SLURM_CONF, then the usual places. Raises ConfigError where there is none."""
    for name in (config.slurm.conf, os.environ.get("SLURM_CONF", "")):
        if name:
            return Path(name)
    found = next((Path(name) for name in USUAL if Path(name).exists()), None)
    if found is None:
        raise ConfigError(f"no slurm.conf in {', '.join(USUAL)}; give it with --slurm-conf FILE")
    return found


def collect(
    config: Config, conf_path: Path, *, offline: bool, release: Optional[tuple[int, int]] = None, prefix: str = ""
) -> Site:
    """The site as slurm.conf at ``conf_path`` and, unless ``offline``, this host and the daemons show it.

    release: of Slurm, where it is not to be asked. Raises ConfigError where slurm.conf cannot be read.
    """
    conf, folder = read_conf(conf_path), conf_path.parent
    unlooked: list[str] = []

    def beside(name: str, read: Callable[[Path], T]) -> Optional[T]:
        path = folder / name
        try:
            return read(path) if path.exists() else None
        except (AistationError, OSError) as exc:
            unlooked.append(str(exc))
            return None

    site = Site(
        conf,
        config,
        prefix or installed_prefix(),
        release or NEWEST,
        beside("gres.conf", read_records),
        beside("cgroup.conf", read_conf),
    )
    stack = conf.get("PlugStackConfig")
    site = replace(site, plugstack=beside(stack.value if stack else "plugstack.conf", read_plugstack))
    if offline:
        unlooked.append("this host and the running daemons (--offline)")
    else:
        site = _running(site, unlooked)
    problems, reading = _topology(site, folder)
    leaves: tuple[tuple[str, tuple[str, ...]], ...] = ()
    if reading is not None and reading.topology.kind == "tree":
        leaves = tuple((s.name, s.nodes) for s in reading.topology.by_name.values() if s.nodes)
    site = replace(site, topology=problems, leaves=leaves)
    if not offline:
        site = replace(site, host=look_at_host(site, unlooked))
    return replace(site, unlooked=tuple(unlooked))


def _running(site: Site, unlooked: list[str]) -> Site:
    slurm = site.config.slurm
    try:
        shown = scontrol.show_config(slurm, site.conf.path)
    except SlurmError as exc:
        unlooked.append(f"the running daemons: {exc}")
        return site
    site = replace(
        site,
        version=site.version if site.version != NEWEST else shown.release,
        live=shown.keys,
        live_conf=shown.conf,
        silent=shown.silent,
    )
    try:
        nodes = scontrol.show_nodes(slurm, site.conf.path)
    except SlurmError as exc:
        unlooked.append(f"the nodes: {exc}")
        return site
    return replace(site, nodes=nodes)


def _topology(site: Site, folder: Path) -> tuple[Optional[tuple[Problem, ...]], Optional[Reading]]:
    """Problems of topology.yaml or topology.conf, judged by this release and these nodes; None where no plugin reads them."""
    plugin = site.value("TopologyPlugin").lower()
    if plugin.rpartition("/")[2] not in ("tree", "block", "3d_torus"):
        return None, None
    names = ("topology.yaml", "topology.conf") if site.version >= YAML_SINCE else ("topology.conf",)
    path = next((folder / name for name in names if (folder / name).exists()), None)
    if path is None:
        missing = f"{folder / 'topology.conf'} does not exist, but TopologyPlugin={plugin}"
        hint = "`aistation topology import` writes one from ibnetdiscover, LLDP or a table"
        return (Problem(ERROR, missing, None, "error", hint, site.conf.path),), None
    try:
        reading = sources.load(str(path))
        return check(reading, _facts(site.conf, site), site.version), reading
    except AistationError as exc:
        return (Problem(ERROR, str(exc), None, "fatal", "", str(path)),), None


def _facts(conf: ConfFile, site: Site) -> ClusterFacts:
    aliases = [
        (host, name)
        for record in conf.of_kind("nodename")
        if "nodehostname" in record.keys
        for host, name in zip(names_of(record.keys["nodehostname"]), names_of(record.name))
    ]
    return ClusterFacts(
        conf.nodes(),
        tuple(aliases),
        site.value("TopologyPlugin"),
        tuple(word for word in site.value("TopologyParam").split(",") if word),
        conf.get("MaxNodeCount") is not None,
    )
