"""A slurm.conf in the style of a large public site: includes, many partitions, many kinds of nodes. And the command on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from aistation_slurm.cli.doctor import command

NODES = 1056
PARTITIONS = 42
PREFIX = "/opt/aistation"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """22 racks of 48 GPU nodes, 64 CPU nodes, login nodes; settings by topic in files of their own."""
    (tmp_path / "slurm.conf").write_text(
        "# Managed by Ansible\nClusterName=Horizon\nSlurmctldHost=slurm-a(10.1.0.1)\nSlurmctldHost=slurm-b(10.1.0.2)\n"
        "include conf.d/security.conf\ninclude conf.d/scheduling.conf\nInclude conf.d/hooks-%c.conf\n"
        "include conf.d/nodes.conf\ninclude conf.d/partitions.conf\n"
    )
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "security.conf").write_text(
        "AuthType=auth/munge\nSlurmUser=slurm\nPrivateData=jobs,usage\nProctrackType=proctrack/cgroup\n"
        "TaskPlugin=task/affinity,task/cgroup\nJobAcctGatherType=jobacct_gather/cgroup\nReturnToService=1\n"
    )
    (folder / "scheduling.conf").write_text(
        "SchedulerType=sched/backfill\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory,CR_CORE_DEFAULT_DIST_BLOCK\n"
        "SchedulerParameters=bf_continue,bf_window=10080,\\\nbf_max_job_test=2000,\\\nmax_switch_wait=86400,defer_batch\n"
        "PriorityType=priority/multifactor\nTopologyPlugin=topology/tree\nTopologyParam=SwitchAsNodeRank\nGresTypes=gpu,shard\n"
        "MessageTimeout=60\nBatchStartTimeout=60\nUnkillableStepTimeout=300\nKillWait=30\nSlurmdTimeout=300\nMinJobAge=600\n"
        "AccountingStorageType=accounting_storage/slurmdbd\nJobSubmitPlugins=require_timelimit,lua\nJobFileAppend=1\n"
        "SuspendTime=-1\nResumeTimeout=1200\nRequeueExitHold=2\n"
    )
    (folder / "hooks-horizon.conf").write_text(
        f"PrologFlags=Contain,X11,DeferBatch\nProlog={PREFIX}/prolog/aistation-prolog\nPrologEpilogTimeout=300\n"
        f"Epilog=/etc/aistation/wrappers/epilog\nTaskProlog=/etc/aistation/wrappers/task-prolog\n"
        f"EpilogSlurmctld={PREFIX}/epilog/aistation-epilog-slurmctld\nHealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=300\n"
        "RebootProgram=/usr/sbin/reboot\n"
    )
    racks = [
        f"NodeName=r{rack:02d}g[01-48] Features=h200,ndr,rack{rack} NodeAddr=r{rack:02d}g[01-48]-mgmt\n"
        for rack in range(1, 23)
    ]
    (folder / "nodes.conf").write_text(
        "NodeName=DEFAULT CPUs=192 Boards=1 SocketsPerBoard=2 CoresPerSocket=48 ThreadsPerCore=2 \\\n"
        "  RealMemory=2000000 Gres=gpu:h200:8 State=UNKNOWN\n" + "".join(racks) + "NodeName=DEFAULT Gres=\n"
    )
    (folder / "nodes.conf").write_text(
        (folder / "nodes.conf")
        .read_text()
        .replace("NodeName=DEFAULT Gres=\n", "NodeName=cpu[001-064] CPUs=128 Gres=shard:0\n")
    )
    partitions = ["PartitionName=DEFAULT MaxTime=2-00:00:00 State=UP OverSubscribe=EXCLUSIVE\n"]
    partitions += [
        f"PartitionName=team{n:02d} Nodes=r[01-22]g[01-48] AllowAccounts=team{n:02d}\n" for n in range(1, 41)
    ]
    partitions += [
        "NodeSet=hopper Feature=h200\n",
        "PartitionName=all Nodes=hopper Default=YES\n",
        "PartitionName=cpu Nodes=cpu[001-064]\n",
    ]
    (folder / "partitions.conf").write_text("".join(partitions))
    (tmp_path / "gres.conf").write_text("AutoDetect=nvml\nName=gpu Type=h200\n")
    (tmp_path / "cgroup.conf").write_text("ConstrainDevices=yes\nConstrainRAMSpace=yes\n")
    leaves = [f"SwitchName=leaf{rack:02d} Nodes=r{rack:02d}g[01-48]\n" for rack in range(1, 23)]
    leaves.append("SwitchName=leafcpu Nodes=cpu[001-064]\nSwitchName=spine Switches=leaf[01-22],leafcpu\n")
    (tmp_path / "topology.conf").write_text("".join(leaves))
    (tmp_path / "plugstack.conf").write_text("include plugstack.conf.d/*.conf\n")
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf.d/10-pyxis.conf").write_text(
        "required /usr/lib/slurm/spank_pyxis.so execute_entrypoint=0\n"
    )
    (tmp_path / "plugstack.conf.d/50-ais.conf").write_text(f"optional {PREFIX}/slurm_plugins/spank_aistation.so\n")
    return tmp_path / "slurm.conf"


def run(conf: Path, *more: str) -> tuple[int, str]:
    arguments = ["--offline", "--slurm-conf", str(conf), "--slurm-version", "24.11", *more]
    done = CliRunner().invoke(command, arguments, env={"AISTATION_CONFIG": ""})
    return done.exit_code, done.output


def test_it_is_read_whole_and_gets_no_false_advice(large: Path) -> None:
    code, out = run(large, "--json")
    found = json.loads(out)
    assert found["problems"] == []
    assert (code, found["slurm_release"]) == (0, "24.11")
    assert found["not_looked_at"] == ["this host and the running daemons (--offline)"]


def test_one_fault_in_an_included_file_is_named_with_that_files_line(large: Path) -> None:
    hooks = large.parent / "conf.d/hooks-horizon.conf"
    hooks.write_text(hooks.read_text().replace("Contain,X11,DeferBatch", "Contain,X11"))
    code, out = run(large)
    assert code == 1
    assert "error: PrologFlags=Contain,X11 has no DeferBatch  [hooks.prolog_flags]" in out
    assert f"    where   {hooks}:1\n" in out
    assert (
        f"    change  {hooks}:1: `PrologFlags=Alloc,DeferBatch,Contain,X11` instead of `PrologFlags=Contain,X11`" in out
    )
    assert "1 error, 0 warnings, 0 notes" in out
    assert run(large, "--ignore", "hooks.prolog_flags")[0] == 0


def test_notes_are_no_problem(large: Path) -> None:
    text = (large.parent / "conf.d/scheduling.conf").read_text()
    (large.parent / "conf.d/scheduling.conf").write_text(text.replace("JobFileAppend=1", "JobFileAppend=0"))
    code, out = run(large)
    assert (code, "note: JobFileAppend=0" in out) == (0, True)


def test_a_bad_release_is_wrong_usage(large: Path) -> None:
    assert run(large, "--slurm-version", "new")[0] == 2
