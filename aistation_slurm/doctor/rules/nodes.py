"""Nodes: their names, what brings them back, their reboot, and health checks beside AIStation's."""

from __future__ import annotations

from collections.abc import Iterator

from aistation_slurm.doctor.hooks import is_ours, paths_of
from aistation_slurm.doctor.model import Item, Severity, Site
from aistation_slurm.node.own_name import nodes_on
from aistation_slurm.slurm.client import Node

__all__ = ["judge"]

CHECK_LIMIT_S = 60
"""slurmd ends a HealthCheckProgram after that long."""


def judge(site: Site) -> Iterator[Item]:
    yield from _names(site)
    yield from _back_in_service(site)
    yield from _reboot(site)
    yield from _health_check(site)
    yield from _configless(site)


def _names(site: Site) -> Iterator[Item]:
    host = site.host
    if host is None or not host.node:
        return
    known = [Node(node.name, node.state, hostname=node.hostname) for node in site.nodes or ()]
    if not known or host.slurmd_nodename == host.node:
        return
    if host.slurmd_nodename and host.slurmd_nodename not in {node.name for node in known}:
        yield Item(
            "nodes.name",
            Severity.ERROR,
            f"SLURMD_NODENAME={host.slurmd_nodename} for the agent, but Slurm has no such node",
            "the agent drains nothing then, since it must not drain a node that is not this one",
            f"/etc/default/aistation: `SLURMD_NODENAME={host.node}`",
            "/etc/default/aistation",
        )
    elif len(nodes_on(host.name, known)) != 1:
        yield Item(
            "nodes.name",
            Severity.ERROR,
            f"this host is {host.name}, its node is {host.node}, and slurm.conf does not say so by one NodeHostname",
            "agent and cron do not know which node is theirs, and drain nothing",
            f"/etc/default/aistation: `SLURMD_NODENAME={host.node}`",
            "/etc/default/aistation",
        )


def _back_in_service(site: Site) -> Iterator[Item]:
    kind = site.value("ReturnToService", "0")
    if kind == "2":
        yield site.advise(
            "nodes.return_to_service",
            Severity.NOTE,
            "ReturnToService",
            "ReturnToService=2: a node that is DOWN for any reason comes back by itself",
            "also one that restarted by surprise in the middle of a job; drains (AIStation's as well) stay in any case",
            "1",
        )
    elif kind == "0":
        yield site.advise(
            "nodes.return_to_service",
            Severity.NOTE,
            "ReturnToService",
            "ReturnToService=0: a node that was DOWN stays so until a person resumes it",
            "after a power cut or an interrupted network all nodes wait for a person",
            "1",
        )


def _reboot(site: Site) -> Iterator[Item]:
    healing = site.config.healing
    if healing.enabled and "reboot" in healing.actions and not paths_of(site, "RebootProgram"):
        yield site.advise(
            "nodes.reboot_program",
            Severity.ERROR,
            "RebootProgram",
            "RebootProgram is not set, but [healing] may reboot nodes",
            "`scontrol reboot` does nothing then, and healing waits reboot_deadline_s for a boot that never comes",
            "/usr/sbin/reboot",
            'or leave "reboot" out of healing.actions in aistation.toml',
        )
    if "reboot_from_controller" in site.words("SlurmctldParameters") and healing.enabled:
        yield site.advise(
            "nodes.reboot_from_controller",
            Severity.NOTE,
            "SlurmctldParameters",
            "SlurmctldParameters has reboot_from_controller",
            "RebootProgram runs on the controller then: it gets the node's name and has to reach its BMC",
        )


def _health_check(site: Site) -> Iterator[Item]:
    paths = paths_of(site, "HealthCheckProgram")
    interval = site.number("HealthCheckInterval", 0)
    if not paths:
        return
    if interval == 0:
        yield site.advise(
            "nodes.health_check",
            Severity.ERROR,
            "HealthCheckInterval",
            f"HealthCheckProgram={paths[0]} with HealthCheckInterval=0",
            "Slurm never runs it",
            "60",
        )
        return
    fact = site.host.files.get(paths[0]) if site.host is not None else None
    if fact is None or not is_ours(fact) or (site.host is not None and site.host.agent_runs):
        return
    age = site.config.gate.max_age_s
    if interval >= age:
        yield site.advise(
            "nodes.health_check",
            Severity.WARNING,
            "HealthCheckInterval",
            f"HealthCheckInterval={interval} s, and the gate takes a state of the node for old after {age:g} s",
            "no agent runs, so every gate has to check the node itself, which delays each start by seconds",
            str(int(age / 2)),
            "or run the agent (aistation-agent.service)",
        )
    states = {word.upper() for word in site.words("HealthCheckNodeState")} or {"ANY"}
    if not states & {"ANY", "ALLOC", "MIXED"}:
        yield site.advise(
            "nodes.health_check",
            Severity.WARNING,
            "HealthCheckNodeState",
            f"HealthCheckNodeState={site.value('HealthCheckNodeState')} leaves out nodes with jobs",
            "no agent runs, so a fault under a running job is never seen",
            "ANY",
        )


def _configless(site: Site) -> Iterator[Item]:
    host = site.host
    if "enable_configless" not in site.words("SlurmctldParameters") or host is None or not host.node:
        return
    fact = host.files.get(site.config.node.gres_conf)
    if fact is not None and not fact.exists:
        cached = "/run/slurm/conf/gres.conf"
        yield Item(
            "nodes.gres_conf",
            Severity.ERROR,
            f"{fact.path} does not exist: slurmd got its configuration from the controller (configless)",
            "which device is GPU 2 of a job is not known then",
            f'aistation.toml: `gres_conf = "{cached}"` in [node] (or conf-cache/gres.conf below SlurmdSpoolDir)',
            fact.path,
        )
