"""Every rule: a correct site gets no advice, and each broken one names its fault, its place and the line to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from aistation_slurm.doctor.model import FileFact, NodeFact, Severity, Site
from tests.unit.doctor.sites import FILES, PREFIX, found, offline_site, rules, with_host, with_live


@dataclass(frozen=True)
class Broken:
    """One fault of the files. change: words of the advice."""

    title: str
    rule: str
    changes: Mapping[str, Optional[str]] = field(default_factory=dict)
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    change: str = ""
    severity: Severity = Severity.ERROR
    release: tuple[int, int] = (22, 5)
    toml: str = ""
    extra: str = ""
    also: tuple[str, ...] = ()
    """Other rules that have to speak."""


WARNING, NOTE = Severity.WARNING, Severity.NOTE
BROKEN = (
    Broken(
        "no gate",
        "hooks.prolog",
        {"Prolog": None},
        change=f"slurm.conf: add `Prolog={PREFIX}/prolog/aistation-prolog`",
    ),
    Broken("no resume arguments", "hooks.task_prolog", {"TaskProlog": None}),
    Broken("no clean-up", "hooks.epilog", {"Epilog": None}, severity=WARNING),
    Broken("no push to the watchdog", "hooks.epilog_slurmctld", {"EpilogSlurmctld": None}, severity=WARNING),
    Broken("relative path", "hooks.prolog", {"Prolog": "prolog/aistation-prolog"}),
    Broken(
        "gate at the first step only",
        "hooks.prolog_flags",
        {"PrologFlags": None},
        change="add `PrologFlags=Alloc,DeferBatch`",
    ),
    Broken(
        "batch script before the gates",
        "hooks.prolog_flags",
        {"PrologFlags": "Alloc,Contain"},
        change=":5: `PrologFlags=Alloc,DeferBatch,Contain` instead of `PrologFlags=Alloc,Contain`",
    ),
    Broken("salloc before the gate", "hooks.no_hold", {"PrologFlags": "DeferBatch,NoHold"}, severity=WARNING),
    Broken(
        "gate inside the job's cgroup",
        "hooks.run_in_job",
        {"PrologFlags": "DeferBatch,RunInJob"},
        severity=WARNING,
        release=(24, 11),
    ),
    Broken(
        "two prologs on 22.05",
        "hooks.several",
        extra="Prolog=/etc/slurm/other.sh\n",
    ),
    Broken(
        "Slurm kills the gate",
        "timeouts.prolog",
        {"PrologEpilogTimeout": "5"},
        also=("timeouts.epilog",),
        change="`PrologEpilogTimeout=60` instead of `PrologEpilogTimeout=5`",
    ),
    Broken("Slurm kills the epilog", "timeouts.epilog", {"PrologEpilogTimeout": "20"}),
    Broken("25.05's own key", "timeouts.prolog", {"PrologTimeout": "6"}, release=(25, 5)),
    Broken("gate longer than a message", "timeouts.message", {"MessageTimeout": "5"}, change="MessageTimeout=10"),
    Broken(
        "budget longer than a message",
        "timeouts.message",
        toml="[gate]\nbudget_s = 12\n",
        change="MessageTimeout=14",
        also=("timeouts.batch_start",),
    ),
    Broken("batch start given up", "timeouts.batch_start", {"BatchStartTimeout": "6"}),
    Broken("records vanish", "timeouts.min_job_age", {"MinJobAge": "30"}, change="`MinJobAge=300`"),
    Broken(
        "records vanish between polls", "timeouts.min_job_age", {"MinJobAge": "120"}, toml="[watchdog]\npoll_s = 90\n"
    ),
    Broken("impatient with memory", "timeouts.unkillable_step", {"UnkillableStepTimeout": "30"}, severity=WARNING),
    Broken("nodes never die", "timeouts.slurmd", {"SlurmdTimeout": "0"}),
    Broken("no requeue", "requeue.job_requeue", {"JobRequeue": "0"}, change="`JobRequeue=1` instead of `JobRequeue=0`"),
    Broken("requeues refused starts", "requeue.exit_code", {"RequeueExit": "70-80"}, severity=WARNING),
    Broken("requeues success", "requeue.exit_code", {"RequeueExit": "0,12"}, severity=WARNING, change="RequeueExit=12"),
    Broken("holds refused starts", "requeue.exit_code", {"RequeueExitHold": "75"}, severity=WARNING, change="remove"),
    Broken(
        "endless requeue on 22.05",
        "requeue.nohold_on_prolog_fail",
        {"SchedulerParameters": "nohold_on_prolog_fail,bf_continue"},
        severity=WARNING,
        change="`SchedulerParameters=bf_continue`",
    ),
    Broken("whole nodes", "select.type", {"SelectType": "select/linear"}, change="select/cons_tres"),
    Broken("22.05's default", "select.type", {"SelectType": None}),
    Broken("GresTypes", "gres.types", {"GresTypes": None}, change="add `GresTypes=gpu`"),
    Broken("GresTypes without gpu", "gres.types", {"GresTypes": "mps"}, change="`GresTypes=gpu,mps`"),
    Broken(
        "GPUs without files", "gres.file", files={"gres.conf": "Name=gpu Count=8\n"}, change="File=/dev/nvidia[0-7]"
    ),
    Broken("no gpu in gres.conf", "gres.file", files={"gres.conf": "Name=shard Count=8\n"}),
    Broken(
        "a GPU less in gres.conf",
        "gres.count",
        files={"gres.conf": "NodeName=gpu[1-4] Name=gpu File=/dev/nvidia[0-6]\n"},
        change="gres.conf:1: File=/dev/nvidia[0-7]",
    ),
    Broken(
        "a node forgotten in gres.conf",
        "gres.count",
        files={"gres.conf": "NodeName=gpu[1-3] Name=gpu File=/dev/nvidia0,/dev/nvidia[1-7]\n"},
    ),
    Broken(
        "feature of a node set",
        "features.declared",
        severity=WARNING,
        extra="NodeSet=fast Feature=h200\nPartitionName=fast Nodes=fast\n",
    ),
    Broken(
        "topology forgets a node",
        "topology.file",
        files={"topology.conf": "SwitchName=leaf1 Nodes=gpu[1-3]\n"},
        severity=WARNING,
    ),
    Broken("switch that is not there", "topology.file", files={"topology.conf": "SwitchName=spine Switches=leaf1\n"}),
    Broken("no topology.conf", "topology.file", files={"topology.conf": None}, change="aistation topology import"),
    Broken(
        "names against leaves",
        "topology.order",
        files={
            "topology.conf": "SwitchName=leaf1 Nodes=gpu1,gpu3\nSwitchName=leaf2 Nodes=gpu2,gpu4\n"
            "SwitchName=spine Switches=leaf[1-2]\n"
        },
        severity=WARNING,
        change="aistation placement hostfile",
    ),
    Broken(
        "names against leaves, newer Slurm",
        "topology.order",
        files={
            "topology.conf": "SwitchName=leaf1 Nodes=gpu1,gpu3\nSwitchName=leaf2 Nodes=gpu2,gpu4\n"
            "SwitchName=spine Switches=leaf[1-2]\n"
        },
        severity=WARNING,
        release=(24, 11),
        change="TopologyParam=SwitchAsNodeRank",
    ),
    Broken("no lua", "submit.lua", {"JobSubmitPlugins": None}, severity=WARNING, change="add `JobSubmitPlugins=lua`"),
    Broken(
        "lua before what sets the partition",
        "submit.order",
        {"JobSubmitPlugins": "lua,all_partitions"},
        severity=WARNING,
        change="`JobSubmitPlugins=all_partitions,lua`",
    ),
    Broken("no options", "spank.plugstack", files={"plugstack.conf": "# nothing\n"}, severity=WARNING),
    Broken(
        "required plugin",
        "spank.required",
        files={"plugstack.conf": f"required {PREFIX}/slurm_plugins/spank_aistation.so\n"},
        severity=WARNING,
        change="plugstack.conf:1: `optional",
    ),
    Broken("plugstack typo", "conf.syntax", files={"plugstack.conf": FILES["plugstack.conf"] + "optinal /x.so\n"}),
    Broken("health check never runs", "nodes.health_check", {"HealthCheckProgram": "/usr/sbin/nhc"}),
    Broken("reboot without a program", "nodes.reboot_program", toml="[healing]\nenabled = true\n"),
    Broken("twice, another value", "conf.twice", extra="KillWait=30\nKillWait=31\n", severity=WARNING),
    Broken("line without a key", "conf.syntax", extra="this is no line\n"),
    Broken("include that is not there", "conf.syntax", extra="Include missing.conf\n"),
    Broken("no hostlist", "conf.syntax", extra="NodeName=gpu[9-\n"),
)


def test_a_correct_site_gets_no_advice_at_all(tmp_path: Path) -> None:
    site = with_live(offline_site(tmp_path))
    assert found(with_host(site, "controller")) == []
    assert found(with_host(site, "node")) == []


@pytest.mark.parametrize("case", BROKEN, ids=lambda c: c.title)
def test_a_broken_configuration_names_its_fault(case: Broken, tmp_path: Path) -> None:
    site = offline_site(tmp_path, case.changes, case.files, case.release, case.toml, case.extra)
    items = [item for item in found(site) if item.severity is not NOTE]
    assert case.rule in [item.rule for item in items]
    item = next(item for item in items if item.rule == case.rule)
    assert item.severity is case.severity
    assert case.change in item.change
    assert item.why
    # one fault, one piece of advice: nothing else is called wrong
    assert {item.rule for item in items} - {case.rule} == set(case.also)


def test_the_key_may_be_written_in_any_case(tmp_path: Path) -> None:
    site = offline_site(tmp_path, {"JobRequeue": None}, extra="JOBREQUEUE=0\n")
    [item] = found(site)
    assert (item.rule, item.line) == ("requeue.job_requeue", 22)
    assert item.change.endswith("slurm.conf:22: `JobRequeue=1` instead of `JOBREQUEUE=0`")


@pytest.mark.parametrize(
    ("changes", "release"),
    [
        ({"PrologFlags": "X11,deferbatch,Contain"}, (22, 5)),
        ({"SelectType": None}, (24, 11)),
        ({"PrologEpilogTimeout": "65534"}, (22, 5)),
        ({"PrologEpilogTimeout": "5", "PrologTimeout": "60", "EpilogTimeout": "90"}, (25, 5)),
        ({"MinJobAge": "0"}, (22, 5)),
        ({"TopologyPlugin": "topology/tree", "TopologyParam": "SwitchAsNodeRank"}, (24, 11)),
        ({"JobSubmitPlugins": "job_submit/require_timelimit,job_submit/lua"}, (22, 5)),
        ({"RequeueExitHold": "9"}, (22, 5)),
        ({"HealthCheckProgram": "/usr/sbin/nhc", "HealthCheckInterval": "300"}, (22, 5)),
        ({"SlurmdTimeout": "900"}, (22, 5)),
        ({"KillWait": "120"}, (22, 5)),
    ],
    ids=str,
)
def test_no_false_advice(changes: Mapping[str, Optional[str]], release: tuple[int, int], tmp_path: Path) -> None:
    assert rules(offline_site(tmp_path, changes, release=release)) == []


PROLOG = f"{PREFIX}/prolog/aistation-prolog"
SPANK = f"{PREFIX}/slurm_plugins/spank_aistation.so"
TOML = "/etc/aistation/aistation.toml"
Facts = Mapping[str, FileFact]


@pytest.mark.parametrize(
    ("role", "files", "rule", "severity"),
    [
        ("node", {PROLOG: FileFact(PROLOG, False)}, "files.missing", Severity.ERROR),
        ("node", {PROLOG: FileFact(PROLOG, True, False, head="aistation")}, "files.missing", Severity.ERROR),
        ("node", {PROLOG: FileFact(PROLOG, True, executable=False)}, "files.executable", Severity.ERROR),
        ("node", {PROLOG: FileFact(PROLOG, True, network="nfs4")}, "files.network", Severity.ERROR),
        (
            "node",
            {PROLOG: FileFact(PROLOG, True, loose="/opt is writable for its group")},
            "files.writable",
            Severity.ERROR,
        ),
        (
            "node",
            {PROLOG: FileFact(PROLOG, True, interpreter="/usr/bin/python3", interpreter_exists=False)},
            "files.interpreter",
            Severity.ERROR,
        ),
        ("node", {PREFIX: FileFact(PREFIX, True, network="lustre")}, "files.network", Severity.ERROR),
        (
            "node",
            {TOML: FileFact(TOML, True, loose=f"{TOML} is writable for its group")},
            "files.writable",
            Severity.ERROR,
        ),
        ("node", {SPANK: FileFact(SPANK, False)}, "spank.file", WARNING),
        ("node", {SPANK: FileFact(SPANK, True, release=(21, 8))}, "spank.release", WARNING),
        (
            "controller",
            {"/var/spool/aistation/events": FileFact("/var/spool/aistation/events", False)},
            "files.spool",
            Severity.ERROR,
        ),
        (
            "controller",
            {"/lib/slurm/job_submit_lua.so": FileFact("/lib/slurm/job_submit_lua.so", False)},
            "submit.lua_plugin",
            Severity.ERROR,
        ),
    ],
)
def test_files_of_this_host(role: str, files: Facts, rule: str, severity: Severity, tmp_path: Path) -> None:
    [item] = found(with_host(offline_site(tmp_path), role, files))
    assert (item.rule, item.severity) == (rule, severity)


@pytest.mark.parametrize("name", ["job_submit.lua", "aistation.lua"])
def test_lua_beside_slurm_conf(name: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{name}"
    [item] = found(with_host(offline_site(tmp_path), "controller", {path: FileFact(path, False)}))
    assert item.rule == "submit.lua_file"
    assert path in item.message


def test_a_sites_own_scripts_are_to_be_chained(tmp_path: Path) -> None:
    path, lua = "/etc/slurm/taskprolog.sh", f"{tmp_path}/job_submit.lua"
    site = offline_site(tmp_path, {"TaskProlog": path})
    [item] = found(with_host(site, "node", {path: FileFact(path, True, head="#!/bin/sh\necho export A=1\n")}))
    assert (item.rule, item.severity) == ("hooks.task_prolog", Severity.ERROR)
    assert f"aistation install --chain TaskProlog={path}" in item.change
    assert found(with_host(site, "node", {path: FileFact(path, True, head=f"#!/bin/sh\nexec {PROLOG}\n")})) == []
    [item] = found(with_host(offline_site(tmp_path), "controller", {lua: FileFact(lua, True, head="-- rules")}))
    assert f"--chain job_submit.lua={lua}" in item.change


def _nodes(site: Site, *nodes: NodeFact) -> Site:
    return replace(site, nodes=nodes)


DAEMONS: tuple[tuple[str, Callable[[Site], Site], str, Severity], ...] = (
    ("controller down", lambda s: replace(s, silent=("ctl2",)), "daemons.controller", WARNING),
    ("file not in force", lambda s: with_live(s, MinJobAge="3600 sec"), "daemons.stale", WARNING),
    (
        "hook dropped",
        lambda s: with_host(s, "controller", dropped=frozenset({"EpilogSlurmctld"})),
        "hooks.dropped",
        Severity.ERROR,
    ),
    (
        "older slurmd",
        lambda s: _nodes(s, NodeFact("gpu2", "gpu2", "22.05.3", "IDLE"), NodeFact("gpu3", "gpu3", "21.08.1", "IDLE")),
        "daemons.releases",
        Severity.ERROR,
    ),
    (
        "idle node with used GPUs",
        lambda s: _nodes(s, NodeFact("gpu2", "gpu2", "22.05.8", "IDLE+DRAIN", gpus_used=4)),
        "gres.leaked",
        WARNING,
    ),
    (
        "feature set by hand",
        lambda s: _nodes(s, NodeFact("gpu2", "gpu2", "22.05.8", "IDLE", ("ib_ok",))),
        "features.declared",
        WARNING,
    ),
)


@pytest.mark.parametrize(
    ("title", "change", "rule", "severity"), DAEMONS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_running_daemons(
    title: str, change: Callable[[Site], Site], rule: str, severity: Severity, tmp_path: Path
) -> None:
    [item] = found(change(offline_site(tmp_path)))
    assert (item.rule, item.severity) == (rule, severity)


def test_releases_during_an_update(tmp_path: Path) -> None:
    site = replace(offline_site(tmp_path, release=(24, 11)), nodes=(NodeFact("gpu1", "gpu1", "23.11.4", "IDLE"),))
    [item] = found(site)
    assert (item.rule, item.severity) == ("daemons.releases", WARNING)
    newer = replace(site, nodes=(NodeFact("gpu1", "gpu1", "25.05.0", "IDLE"),))
    assert [item.severity for item in found(newer)] == [Severity.ERROR]


@pytest.mark.parametrize(
    ("role", "changed", "rule", "severity"),
    [
        ("controller", {"watchdog_runs": False}, "daemons.watchdog", Severity.ERROR),
        ("node", {"agent_runs": False}, "daemons.agent", WARNING),
        ("node", {"clock_offset_s": -7.0}, "daemons.clock", WARNING),
        ("node", {"clock_offset_s": 400.0}, "daemons.clock", Severity.ERROR),
        ("node", {"name": "host17", "node": "gpu1"}, "nodes.name", Severity.ERROR),
        ("node", {"slurmd_nodename": "gpu77"}, "nodes.name", Severity.ERROR),
    ],
)
def test_this_host(role: str, changed: dict[str, Any], rule: str, severity: Severity, tmp_path: Path) -> None:
    [item] = found(with_host(with_live(offline_site(tmp_path)), role, **changed))
    assert (item.rule, item.severity) == (rule, severity)


def test_slurmd_nodename_settles_the_name(tmp_path: Path) -> None:
    site = with_live(offline_site(tmp_path))
    assert found(with_host(site, "node", name="host17", node="gpu1", slurmd_nodename="gpu1")) == []


def test_health_check_of_ours_where_no_agent_runs(tmp_path: Path) -> None:
    path = "/etc/aistation/wrappers/health-check"
    changes = {"HealthCheckProgram": path, "HealthCheckInterval": "300", "HealthCheckNodeState": "IDLE"}
    site = offline_site(tmp_path, changes)
    fact = {path: FileFact(path, True, head="#!/bin/sh\n/opt/aistation/.venv/bin/aistation check --act")}
    assert found(with_host(site, "node", fact)) == []
    alone = found(with_host(site, "node", fact, agent_runs=None))
    assert [item.rule for item in alone] == ["nodes.health_check"] * 2


def test_configless_node_needs_the_other_gres_conf(tmp_path: Path) -> None:
    site = offline_site(tmp_path, {"SlurmctldParameters": "enable_configless"})
    path = "/etc/slurm/gres.conf"
    [item] = found(with_host(site, "node", {path: FileFact(path, False)}))
    assert (item.rule, item.severity) == ("nodes.gres_conf", Severity.ERROR)


def test_nothing_is_said_of_what_is_not_known(tmp_path: Path) -> None:
    site = offline_site(
        tmp_path, {"SelectType": None}, {name: None for name in FILES if name != "topology.conf"}, (99, 99)
    )
    assert rules(site) == []


@pytest.mark.parametrize("state", ["MIXED", "ALLOCATED", "IDLE+COMPLETING", "DOWN"])
def test_used_gpus_of_a_node_at_work_are_not_lost(tmp_path: Path, state: str) -> None:
    site = _nodes(offline_site(tmp_path), NodeFact("gpu2", "gpu2", "22.05.8", state, gpus_used=4))
    assert not [item for item in found(site) if item.rule == "gres.leaked"]
