"""Placement on a real Slurm: the table that the watchdog publishes, degraded nodes, waiting jobs, a broken table, rank order."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aistation_slurm.placement import table_file
from aistation_slurm.placement.note import read_note
from aistation_slurm.placement.table import PartitionRow, Row, TableError, body, render
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

POLL_S = 1.0
NODES = 6
LEAVES = ("gpu1,gpu3,gpu5", "gpu2,gpu4,gpu6")
"""As a site cables them that counts its nodes by rack and not by leaf."""
ONE_EACH = "--gpus-per-node=1"


@pytest.fixture(scope="module")
def whole() -> Iterator[Cluster]:
    config = {"watchdog": {"poll_s": POLL_S}, "placement": {"avoid_percent": 60.0}}
    with Cluster(nodes=NODES, gpus=1, hcas=1, config=config, conf_extra="SchedulerParameters=bf_interval=1") as c:
        lines = [f"SwitchName=leaf{number} Nodes={nodes}" for number, nodes in enumerate(LEAVES, start=1)]
        text = "\n".join([*lines, "SwitchName=spine Switches=leaf1,leaf2", ""])
        (c.conf_dir / "topology.conf").write_text(text, encoding="utf-8")
        c.run(["scontrol", "reconfigure"])
        c.wait_for(lambda: limit(c, 2) and limit(c, NODES), 30, "the watchdog to have a topology")
        yield c


@pytest.fixture
def cluster(whole: Cluster) -> Iterator[Cluster]:
    yield whole
    whole.run(["aistation", "placement", "grade", whole.hostlist, "--well"])
    whole.reset()
    published(whole, "")


def table_path(c: Cluster) -> Path:
    return c.disk("ctl") / "var/lib/aistation/decisions"


def avoided(c: Cluster) -> str:
    """Nodes that the table in force keeps jobs of several nodes off; "no table" where there is none that is right."""
    try:
        table = table_file.read(table_path(c))
    except TableError:
        table = None
    row = table.partition("gpu") if table is not None else None
    return ",".join(row.avoid) if row is not None else "no table"


def limit(c: Cluster, nodes: int) -> int:
    """Leaf switches for a job of so many nodes in the table in force, 0 where it says nothing."""
    try:
        table = table_file.read(table_path(c))
    except TableError:
        table = None
    partition = table.partition("gpu") if table is not None else None
    row = partition.row(nodes) if partition is not None else None
    return row.switches(nodes) if row is not None else 0


def published(c: Cluster, nodes: str) -> None:
    c.wait_for(lambda: avoided(c) == nodes, 30, f"the table to keep jobs off {nodes or 'no node'}")


def grade(c: Cluster, nodes: str, *how: str) -> None:
    c.run(["aistation", "placement", "grade", nodes, *how])


def excluded(c: Cluster, job: int) -> str:
    text = c.show_job(job).get("ExcNodeList", "(null)")
    return ",".join(c.expand(text))


def test_the_watchdog_publishes_and_a_submission_looks_it_up(cluster: Cluster) -> None:
    published(cluster, "")
    found = os.stat(table_path(cluster))
    assert (found.st_mode & 0o777, found.st_uid) == (0o644, os.stat(table_path(cluster).parent).st_uid)
    argv = ["sbatch", "--parsable", "--hold", "--nodes=2", "--wrap=true"]
    result = cluster.run(argv, "alice")
    job = cluster.show_job(int(result.stdout))
    note = read_note(job["AdminComment"])
    assert job["Switches"].startswith(f"{limit(cluster, 2)}@")
    assert note is not None
    assert (note.nodes, note.switches, note.excluded, note.ours) == (2, limit(cluster, 2), (), True)
    assert f"at most {note.switches} leaf switch" in result.stderr
    four = cluster.show_job(cluster.submit("true", "--hold", "--nodes=4"))
    assert four["Switches"].startswith(f"{limit(cluster, 4)}@")
    for own in (["--switches=2@1:00"], ["--nodelist=gpu1,gpu2"]):
        said = cluster.run([*argv, *own], "alice")
        assert "aistation" not in said.stderr
    assert "Switches" not in cluster.show_job(cluster.submit("true", "--hold", "--nodes=1"))


DERIVED = {
    "--nodes=4": 4,
    "--nodes=2-4": 4,
    "--gpus=3": 3,
    "--gpus=4": 4,
    "--gpus=1": 0,
    "--ntasks=64": 2,
    "--ntasks=32": 0,
    "--ntasks=8 --ntasks-per-node=2": 4,
    "--ntasks=4 --gpus-per-task=1": 4,
    "--nodes=4 --array=1-3": 4,
    "--nodes=4 --partition=gpu": 4,
    "--nodes=2 --contiguous": 0,
    "--nodes=2 --spread-job": 0,
    "--nodes=2 --reservation=course": 0,
}
"""Options, and the nodes that they come to; 0: no limit."""


def test_sizes_are_derived_as_the_real_slurmctld_describes_jobs(cluster: Cluster) -> None:
    c = cluster
    published(c, "")
    when = ["starttime=now+60minutes", "duration=60", "users=alice"]
    c.run(["scontrol", "create", "reservation", "ReservationName=course", "nodes=gpu[1-3]", *when])
    try:
        for options, nodes in DERIVED.items():
            job = c.show_job(c.submit("true", "--hold", *options.split()))
            wanted = str(limit(c, nodes)) if nodes else ""
            assert job.get("Switches", "").partition("@")[0] == wanted, options
            noted = read_note(job.get("AdminComment", ""))
            assert (noted.nodes if noted else 0) == (
                nodes or (2 if "--spread" in options or "--cont" in options else 0)
            ), options
    finally:
        c.run(["scancel", "--user=alice"])
        c.run(["scontrol", "delete", "ReservationName=course"])


def test_the_parts_of_a_heterogeneous_job_wait_for_each_other_alone(cluster: Cluster) -> None:
    c = cluster
    grade(c, "gpu1", "--degraded", "test")
    published(c, "gpu1")
    text = "#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH hetjob\n#SBATCH --nodes=3\ntrue\n"
    job = c.submit(text, "--hold")
    shown = c.run(["scontrol", "show", "job", str(job)]).stdout
    assert shown.count("ExcNodeList=gpu1") == 2
    assert "Switches=" not in shown
    c.run(["scancel", str(job)])


def test_degraded_nodes_get_no_job_of_several_nodes_and_waiting_jobs_follow(cluster: Cluster) -> None:
    c = cluster
    before = c.submit("sleep 600", "--hold", "--nodes=3", ONE_EACH)
    own = c.submit("sleep 600", "--hold", "--nodes=2", ONE_EACH, "--exclude=gpu6")
    assert excluded(c, before) == ""
    grade(c, "gpu[1-3]", "--degraded", "test of cables")
    published(c, "gpu1,gpu2,gpu3")
    # a job that waited is corrected; the user's own exclusion stands
    c.wait_for(lambda: excluded(c, before) == "gpu1,gpu2,gpu3", 30, "the waiting job to be kept off gpu1-3")
    c.run(["scontrol", "reconfigure"])
    assert excluded(c, before) == "gpu1,gpu2,gpu3"
    assert excluded(c, own) == "gpu6"

    first = c.submit("sleep 600", "--nodes=3", ONE_EACH)
    second = c.submit("sleep 600", "--nodes=2", ONE_EACH)
    assert set(c.expand(c.wait_job(first, "RUNNING")["nodes"])) == {"gpu4", "gpu5", "gpu6"}
    small = [c.submit("sleep 600", "--nodes=1", ONE_EACH) for _ in range(3)]
    there = {c.wait_job(job, "RUNNING")["nodes"] for job in small}
    assert there == {"gpu1", "gpu2", "gpu3"}
    # more nodes than there are others: never made impossible
    large = c.submit("sleep 600", "--hold", "--nodes=4", ONE_EACH)
    assert excluded(c, large) == ""

    c.run(["scancel", *map(str, small)])
    c.wait_for(lambda: all(c.node(n)["state"] == "IDLE" for n in ("gpu1", "gpu2", "gpu3")), 60, "gpu1-3 to be idle")
    time.sleep(3 * POLL_S)
    assert c.show_job(second)["JobState"] == "PENDING"
    grade(c, "gpu[1-3]", "--well")
    nodes = c.expand(c.wait_job(second, "RUNNING", timeout=30)["nodes"])
    assert set(nodes) <= {"gpu1", "gpu2", "gpu3"}
    c.wait_for(lambda: excluded(c, before) == "", 30, "the held job to be let on all nodes again")
    assert excluded(c, own) == "gpu6"


def test_the_limit_of_a_waiting_job_follows_the_table(cluster: Cluster) -> None:
    c, path = cluster, table_path(cluster)
    published(c, "")
    c.stop_watchdog()
    try:
        loose = body([PartitionRow("gpu", NODES, NODES, rows=(Row(2, NODES, NODES, 5, 300),))])
        path.write_text(render(loose, int(time.time()), 600), encoding="utf-8")
        time.sleep(1.2)  # the table of before may be used within the same second
        waits = c.submit("true", "--hold", "--nodes=3")
        own = c.submit("true", "--hold", "--nodes=3", "--ais-switch=pack,max=1,wait=5")
        assert c.show_job(waits)["Switches"] == "6@00:05:00"
    finally:
        c.start_watchdog()
    c.wait_for(lambda: 0 < limit(c, 3) < 6, 30, "the watchdog's own table")
    c.wait_for(lambda: c.show_job(waits)["Switches"].startswith(f"{limit(c, 3)}@"), 30, "the job's limit to follow")
    assert c.show_job(own)["Switches"] == "1@00:05:00"
    assert excluded(c, waits) == ""


def waiting_part(c: Cluster, array: int) -> str:
    """What scontrol shows of the tasks that wait, once they are kept off gpu5."""
    records = c.run(["scontrol", "show", "job", str(array)]).stdout.split("\n\n")
    return next((r for r in records if "JobState=PENDING" in r and "ExcNodeList=gpu5" in r), "")


def test_an_array_that_waits_is_corrected_too(cluster: Cluster) -> None:
    c = cluster
    array = c.submit("sleep 600", "--nodes=3", ONE_EACH, "--array=1-3")
    c.wait_for(lambda: c.run(["squeue", "-h", "-t", "R"]).stdout.count("\n") == 2, 60, "two of its tasks to run")
    grade(c, "gpu5", "--degraded", "test")
    text = c.wait_for(lambda: waiting_part(c, array), 30, "the part that waits to be kept off gpu5")
    assert "[ais-place n=3" in text
    assert "x=gpu5]" in text


FAULTS = ("deleted", "cut", "corrupted", "binary", "given away", "unreadable", "aged", "a folder", "a pipe")


def break_table(path: Path, good: str, how: str) -> None:
    path.unlink(missing_ok=True) if not path.is_dir() else path.rmdir()
    if how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "binary":
        path.write_bytes(os.urandom(5000))
    elif how != "deleted":
        texts = {
            "cut": good[: len(good) * 2 // 3],
            "corrupted": good.replace(" 3 ", " 9 ").replace("-", "="),
            "aged": "aistation-decisions 2 1000000 60 " + good.split(" ", 4)[4],
        }
        path.write_text(texts.get(how, good), encoding="utf-8")
    if how not in ("deleted", "given away"):
        shutil.chown(path, "slurm")
    if how == "given away":
        shutil.chown(path, 20001)
    if how == "unreadable":
        shutil.chown(path, "root")
        path.chmod(0o600)


def test_a_storm_of_submissions_bears_every_fault_of_the_table(cluster: Cluster) -> None:
    """Each job is taken, unchanged, and slurmctld stays quick; the watchdog then puts the table right."""
    c, path = cluster, table_path(cluster)
    published(c, "")
    good = path.read_text(encoding="utf-8")
    c.stop_watchdog()
    try:
        storm = "for i in $(seq 12); do sbatch --parsable --hold --nodes=2 --wrap=true || echo lost; done"
        for how in FAULTS:
            streams = [c.popen(["bash", "-c", storm], "alice", stdout=-1, stderr=-1) for _ in range(3)]
            break_table(path, good, how)
            time.sleep(1.2)  # within a second the table of before may still be used
            after = c.run(["sbatch", "--parsable", "--hold", "--nodes=2", "--wrap=true"], "alice", timeout=20)
            out = "".join(process.communicate(timeout=120)[0] for process in streams)
            assert len(out.split()) == 36, how
            assert "lost" not in out, how
            job = c.show_job(int(after.stdout))
            assert ("Switches" in job, job.get("AdminComment")) == (False, None), how
            c.run(["scancel", "--user=alice"])
        assert "is not used" in c.logs("slurmctld")
    finally:
        if path.is_dir():
            path.rmdir()
        c.start_watchdog()
    published(c, "")
    time.sleep(1.2)
    assert "Switches" in c.show_job(c.submit("true", "--hold", "--nodes=2"))
    shutil.chown(path, 20001)
    c.wait_for(lambda: table_file_owner(c) == "slurm", 30, "the watchdog to take its table back")


def table_file_owner(c: Cluster) -> str:
    return table_path(c).owner() if table_path(c).stat().st_uid != 20001 else "alice"


def test_ranks_are_placed_in_the_order_of_the_switches(cluster: Cluster) -> None:
    c = cluster
    script = """
aistation placement hostfile --explain > hosts
aistation placement hostfile --json > hosts.json
SLURM_HOSTFILE=hosts srun --distribution=arbitrary --ntasks=$(wc -l < hosts) bash -c 'echo rank $SLURM_PROCID $SLURMD_NODENAME'
"""
    job = c.submit(script, "--nodes=6", "--ntasks-per-node=2", "--output=ranks.out")
    c.wait_job(job, "COMPLETED", timeout=120)
    out = (c.dir / "shared/alice/ranks.out").read_text(encoding="utf-8")
    ranks = sorted((int(line.split()[1]), line.split()[2]) for line in out.splitlines() if line.startswith("rank"))
    assert [node for _, node in ranks] == [
        n for n in ("gpu1", "gpu3", "gpu5", "gpu2", "gpu4", "gpu6") for _ in range(2)
    ]
    shown = json.loads((c.dir / "shared/alice/hosts.json").read_text(encoding="utf-8"))
    assert shown["ring_edges_between_leaves"] == {"slurm": 6, "ordered": 2}
    assert "6 as Slurm orders them, 2 so" in out


def test_a_job_is_explained(cluster: Cluster) -> None:
    c = cluster
    published(c, "")
    first = c.submit("sleep 600", "--nodes=3", ONE_EACH, "--time=10")
    c.wait_job(first, "RUNNING")
    second = c.submit("sleep 600", "--nodes=6", ONE_EACH, "--time=10")

    def told(job: int, *options: str) -> str:
        return c.run(["aistation", "placement", "explain", str(job), *options], "alice").stdout

    shown = json.loads(told(first, "--json"))
    assert (shown["state"], shown["leaf_count"], shown["optimum"]) == ("RUNNING", 1, 1)
    assert "AIStation asked for at most" in told(first)
    text = told(second)
    assert "it wants 6 nodes (at best below 2 leaf switches); 3 that it may use are idle, below 1 leaf switch" in text
    assert "3 nodes instead of 6 are idle now" in text
    assert "6 nodes are free in at most" in text
    gone = c.run(["aistation", "placement", "explain", "999999"], check=False)
    assert gone.returncode == 3
    assert "does not know job 999999" in gone.stderr
