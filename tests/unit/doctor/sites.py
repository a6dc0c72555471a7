"""A correct site as files and facts, and what a test changes in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.config import parse
from aistation_slurm.doctor.collect import collect
from aistation_slurm.doctor.diagnose import diagnose
from aistation_slurm.doctor.model import FileFact, Host, Item, NodeFact, Severity, Site

PREFIX = "/opt/aistation"
SLURM_CONF = f"""\
ClusterName=train
SlurmctldHost=ctl(10.0.0.1)
SlurmUser=slurm
Prolog={PREFIX}/prolog/aistation-prolog
PrologFlags=Alloc,DeferBatch
Epilog={PREFIX}/epilog/aistation-epilog
TaskProlog={PREFIX}/prolog/aistation-task-prolog
EpilogSlurmctld={PREFIX}/epilog/aistation-epilog-slurmctld
JobSubmitPlugins=lua
JobRequeue=1
JobFileAppend=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
TaskPlugin=task/cgroup,task/affinity
TopologyPlugin=topology/tree
GresTypes=gpu
MessageTimeout=10
MinJobAge=300
ReturnToService=1
SchedulerParameters=bf_window=4320,bf_continue
NodeName=gpu[1-4] CPUs=128 RealMemory=1000000 Gres=gpu:8 State=UNKNOWN
PartitionName=train Nodes=gpu[1-4] Default=YES MaxTime=INFINITE State=UP
"""
FILES: Mapping[str, str] = {
    "gres.conf": "NodeName=gpu[1-4] Name=gpu File=/dev/nvidia[0-7]\n",
    "cgroup.conf": "ConstrainDevices=yes\n",
    "plugstack.conf": f"optional {PREFIX}/slurm_plugins/spank_aistation.so\n",
    "topology.conf": (
        "SwitchName=leaf1 Nodes=gpu[1-2]\nSwitchName=leaf2 Nodes=gpu[3-4]\nSwitchName=spine Switches=leaf[1-2]\n"
    ),
}


def edited(text: str, changes: Mapping[str, Optional[str]]) -> str:
    """slurm.conf with keys set, added, or (None) left out."""
    lines, left = [], dict(changes)
    for line in text.splitlines():
        key = line.partition("=")[0]
        if key in left:
            value = left.pop(key)
            if value is not None:
                lines.append(f"{key}={value}")
        else:
            lines.append(line)
    return "\n".join([*lines, *(f"{key}={value}" for key, value in left.items() if value is not None), ""])


def offline_site(
    folder: Path,
    changes: Mapping[str, Optional[str]] = {},
    files: Mapping[str, Optional[str]] = {},
    release: tuple[int, int] = (22, 5),
    toml: str = "",
    extra: str = "",
) -> Site:
    """The correct site with changes, read from real files."""
    conf = folder / "slurm.conf"
    conf.write_text(edited(SLURM_CONF, changes) + extra)
    for name, text in {**FILES, **files}.items():
        if text is not None:
            (folder / name).write_text(text)
    return collect(parse(toml, "aistation.toml"), conf, offline=True, release=release, prefix=PREFIX)


def found(site: Site) -> list[Item]:
    return diagnose(site)


def rules(site: Site, least: Severity = Severity.WARNING) -> list[str]:
    """Names of the rules that speak, of that severity or worse."""
    order = list(Severity)
    return [item.rule for item in diagnose(site) if order.index(item.severity) <= order.index(least)]


def with_live(site: Site, **changed: str) -> Site:
    """slurmctld that has read exactly this file. changed: keys that it shows otherwise."""
    shown = {key: settings[-1].value for key, settings in site.conf.settings.items()}
    shown.update({"messagetimeout": "10 sec", "minjobage": "300 sec"})
    shown.update({key.lower(): value for key, value in changed.items()})
    nodes = tuple(NodeFact(f"gpu{i}", f"gpu{i}", "22.05.8", "IDLE") for i in range(1, 5))
    return replace(site, live=shown, live_conf=site.conf.path, nodes=nodes)


def with_host(site: Site, role: str, files: Mapping[str, FileFact] = {}, **changed: Any) -> Site:
    """On the controller or on gpu1, everything installed. files: facts that replace those."""
    folder = site.conf.path.rpartition("/")[0]
    good = [f"{PREFIX}/prolog/aistation-prolog", f"{PREFIX}/prolog/aistation-task-prolog"]
    good += [f"{PREFIX}/epilog/aistation-epilog", f"{PREFIX}/epilog/aistation-epilog-slurmctld"]
    good += [f"{folder}/job_submit.lua", f"{folder}/aistation.lua", "/var/spool/aistation/events"]
    facts = {path: FileFact(path, True, head="#!/bin/sh\n# aistation") for path in good}
    spank = f"{PREFIX}/slurm_plugins/spank_aistation.so"
    facts[spank] = FileFact(spank, True, release=(22, 5))
    facts.update(files)
    host = (
        Host("ctl", True, watchdog_runs=True, clock_offset_s=0.0, files=facts)
        if role == "controller"
        else Host("gpu1", False, "gpu1", agent_runs=True, clock_offset_s=0.3, files=facts)
    )
    return replace(site, host=replace(host, **changed))
