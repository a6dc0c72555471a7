"""The cluster's Slurm configuration: a site's usual choices, with the few that namespaces on a small machine force.

Forced (shared with anyone who runs Slurm in a container): no use of cgroups (proctrack/linuxproc, task/none), and
``config_overrides``, since the nodes claim more CPUs than the machine has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

DEFAULTS: Mapping[str, str] = {
    "ClusterName": "aistest",
    "AuthType": "auth/munge",
    "SlurmUser": "slurm",
    "StateSaveLocation": "/var/spool/slurmctld",
    "SlurmdSpoolDir": "/var/spool/slurmd",
    "SlurmctldPidFile": "/run/slurm/slurmctld.pid",
    "SlurmdPidFile": "/run/slurm/slurmd.pid",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
    "SlurmctldDebug": "verbose",
    "SlurmdDebug": "verbose",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "AccountingStorageType": "accounting_storage/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_interval=10",
    "TopologyPlugin": "topology/tree",
    "GresTypes": "gpu",
    "MpiDefault": "none",
    "SlurmdParameters": "config_overrides",
    "PropagateResourceLimits": "NONE",
    "MailProg": "/bin/true",
    "JobRequeue": "1",
    "ReturnToService": "1",
    "SlurmdTimeout": "20",
    "KillWait": "5",
    "MinJobAge": "300",
    "MessageTimeout": "10",
}
SHARED_STATE = "shared/slurmctld"
PAIR_SETTINGS: Mapping[str, str] = {"StateSaveLocation": f"/{SHARED_STATE}", "SlurmctldTimeout": "10"}
"""With a backup controller: the state on a disk that both see, and a take-over soon after the primary's end."""


def render_slurm_conf(
    names: Sequence[str],
    gpus: int,
    controllers: Mapping[str, str],
    settings: Mapping[str, str],
    extra: str = "",
) -> str:
    """slurm.conf. controllers: host -> address, the primary first.

    ``settings`` replace defaults by key; a key that ``extra`` sets replaces both.
    """
    theirs = {key.strip().lower() for key, equals, _ in (line.partition("=") for line in extra.splitlines()) if equals}
    merged = {**DEFAULTS, **(PAIR_SETTINGS if len(controllers) > 1 else {}), **settings}
    lines = [f"SlurmctldHost={name}({address})" for name, address in controllers.items()]
    lines += [f"{key}={value}" for key, value in merged.items() if key.lower() not in theirs]
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    if "nodename" not in theirs:
        lines.append(f"NodeName={','.join(names)} CPUs=32 RealMemory=500000{gres} State=UNKNOWN")
    if "partitionname" not in theirs:
        lines.append("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join([*lines, extra.strip(), ""])


def render_gres_conf(gpus: int) -> str:
    if not gpus:
        return ""
    files = "/dev/nvidia0" if gpus == 1 else f"/dev/nvidia[0-{gpus - 1}]"
    return f"Name=gpu File={files}\n"


def render_topology_conf(names: Sequence[str]) -> str:
    """Two leaf switches, each with half of the nodes, below one spine."""
    half = (len(names) + 1) // 2
    leaves = [group for group in (names[:half], names[half:]) if group]
    lines = [f"SwitchName=leaf{i} Nodes={','.join(group)}" for i, group in enumerate(leaves, start=1)]
    lines.append("SwitchName=spine Switches=" + ",".join(f"leaf{i}" for i in range(1, len(leaves) + 1)))
    return "\n".join(lines) + "\n"


def write_conf(
    folder: Path,
    names: Sequence[str],
    gpus: int,
    controllers: Mapping[str, str],
    settings: Mapping[str, str],
    extra: str,
    cgroups: str = "cgroup/v1",
) -> None:
    """cgroups: CgroupPlugin; releases after 22.05 start without cgroups only with "disabled"."""
    files = {
        "slurm.conf": render_slurm_conf(names, gpus, controllers, settings, extra),
        "gres.conf": render_gres_conf(gpus),
        "topology.conf": render_topology_conf(names),
        "cgroup.conf": f"CgroupPlugin={cgroups}\n",
        "plugstack.conf": "",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
