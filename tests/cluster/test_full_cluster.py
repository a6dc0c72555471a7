"""A full cluster, backlog five times the machine: the requeued job is the next to start, and everything is undone.

The parts are called here as the watchdog calls them; no daemon of the suite runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import pytest

from aistation_slurm.config import Elastic, Front, Slurm, Spares
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.recovery import elastic, front, spares
from aistation_slurm.slurm.cli_backend import CliBackend
from aistation_slurm.slurm.client import Job
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

TAG = "[ais resume=auto max=3]"


class Inside:
    """Slurm's commands, run on the cluster's controller; counts them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.count = cluster, 0

    def __call__(self, argv: Sequence[str], *, timeout_s: float, conf: str = "", **_: Any) -> str:
        self.count += 1
        done = self.cluster.run([Path(argv[0]).name, *argv[1:]], timeout=60, check=False)
        if done.returncode:
            raise SlurmRefused(" ".join([Path(argv[0]).name, *argv[1:], done.stderr, done.stdout]))
        return str(done.stdout)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, aistation=False) as up:
        yield up


@pytest.fixture
def slurm(cluster: Cluster) -> Iterator[CliBackend]:
    backend = CliBackend(Slurm(), runner=Inside(cluster))
    yield backend

    def gone() -> bool:
        for left in backend.reservations():
            cluster.run(["scontrol", "delete", f"ReservationName={left.name}"], check=False)
        return backend.reservations() == []

    for user in ("alice", "bob"):
        cluster.run(["scancel", f"--user={user}"])
    cluster.wait_for(gone, 60, "every reservation to be gone")  # a reserved node would not count as idle
    cluster.reset()


def look(slurm: CliBackend, job_id: int) -> Job:
    job = slurm.job(job_id)
    assert job is not None
    return job


def full(cluster: Cluster, slurm: CliBackend, running: int = 2, seconds: int = 12) -> tuple[Job, list[int]]:
    """A running job of two nodes that is last in the queue's order, and a backlog of five times the machine."""
    job_id = cluster.submit("srun sleep 600", "--nodes=2", "--gpus-per-node=8", "--nice=200")
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    cluster.run(["scontrol", "update", f"JobId={job_id}", f"AdminComment={TAG}"])
    backlog = [
        cluster.submit(f"sleep {seconds + 3 * (index % 3)}", "--nodes=1", "--gpus-per-node=8", "--time=3", user="bob")
        for index in range(20)
    ]
    for first in backlog[:running]:
        cluster.wait_job(first, "RUNNING", timeout=60)
    return look(slurm, job_id), backlog


def drain_and_requeue(cluster: Cluster, slurm: CliBackend, job: Job, bad: str, config: Front) -> str:
    cluster.run(["scontrol", "update", f"NodeName={bad}", "State=DRAIN", "Reason=ais:gpu.lost GPU3 x [abc123]"])
    kept = front.keep_nodes(slurm, job, [bad], config)
    slurm.requeue(job)
    return kept


def put_in_front(
    cluster: Cluster, slurm: CliBackend, job: Job, bad: str, config: Front, spare_count: int = 0
) -> front.FrontPlan:
    """What the watchdog does at its looks: the plan once the requeue is seen, the start once COMPLETING is over."""
    nodes = {node.name: node for node in slurm.nodes()}
    seen, jobs = look(slurm, job.job_id), slurm.jobs()
    plan = front.plan_front(seen, job.nodes, [bad], nodes, jobs, config, time.time(), spare_count)
    assert plan is not None
    assert front.apply_front(slurm, plan, config).startswith("in front: keeps gpu")
    cluster.wait_for(lambda: look(slurm, job.job_id).state == "PENDING", 60, "the last attempt to end")
    time.sleep(2)
    slurm.update_job(look(slurm, job.job_id), ExcNodeList=bad, StartTime="now")
    return plan


def started_after(cluster: Cluster, slurm: CliBackend, backlog: list[int], since: int) -> list[int]:
    return [job.job_id for job in slurm.jobs() if job.job_id in backlog and (job.start_time or 0) > since and job.nodes]


def test_the_requeued_job_is_the_next_to_start(cluster: Cluster, slurm: CliBackend) -> None:
    config = Front()
    job, backlog = full(cluster, slurm)
    good, bad = job.nodes
    assert drain_and_requeue(cluster, slurm, job, bad, config) == f"kept {good} for it"
    requeued = int(time.time())
    plan = put_in_front(cluster, slurm, job, bad, config)
    assert good in plan.kept
    assert plan.new_nice < plan.old_nice == 200

    cluster.wait_for(lambda: look(slurm, job.job_id).state == "RUNNING", 60, "the requeued job to run")
    again = look(slurm, job.job_id)
    assert good in again.nodes
    assert bad not in again.nodes
    overtook = started_after(cluster, slurm, backlog, requeued)
    assert [j for j in overtook if (look(slurm, j).start_time or 0) < (again.start_time or 0)] == []
    print(f"requeue to running again on a full cluster: {(again.start_time or 0) - requeued} s")

    assert front.undo_due(again, time.time()) == "the job runs"
    assert front.undo_front(slurm, again, time.time()) == "no longer in front: the job runs"
    after = look(slurm, job.job_id)
    assert (after.state, after.nice, after.reservation, after.admin_comment) == ("RUNNING", 200, "", TAG)
    assert slurm.reservations() == []
    cluster.wait_for(lambda: started_after(cluster, slurm, backlog, again.start_time or 0), 60, "backlog to go on")


def test_what_a_killed_watchdog_left_is_undone_by_a_later_one(cluster: Cluster, slurm: CliBackend) -> None:
    config = Front(keep_nodes_s=30)
    job, _ = full(cluster, slurm)
    bad = job.nodes[1]
    drain_and_requeue(cluster, slurm, job, bad, config)
    # killed before it put the job in: the reservation serves nobody, and is cleared once it is no longer young
    now = time.time()
    assert front.clear_leftovers(slurm, slurm.jobs(), now) == []
    cluster.wait_for(lambda: look(slurm, job.job_id).state == "PENDING", 60, "the last attempt to end")
    assert front.clear_leftovers(slurm, slurm.jobs(), now + front.GRACE_S + 2) == [f"ais-{job.job_id}"]
    # killed after: the tag tells what to undo, and when
    nodes = {node.name: node for node in slurm.nodes()}
    waiting = look(slurm, job.job_id)
    plan = front.plan_front(waiting, job.nodes, [bad], nodes, slurm.jobs(), config, time.time())
    assert plan is not None
    front.apply_front(slurm, plan, config)
    raised = look(slurm, job.job_id)
    assert (raised.nice, raised.reservation) == (plan.new_nice, f"ais-{job.job_id}")
    assert front.undo_due(raised, time.time()) == ""
    assert front.undo_front(slurm, raised, plan.until) == "no longer in front: its time is up"
    after = look(slurm, job.job_id)
    assert (after.state, after.nice, after.reservation) == ("PENDING", 200, "")
    assert after.priority > 0
    assert slurm.reservations() == []
    assert front.plan_front(after, job.nodes, [bad], nodes, slurm.jobs(), config, time.time()) is None, "once a restart"
    cluster.run(["scancel", str(job.job_id)])


@pytest.fixture
def standby(cluster: Cluster, slurm: CliBackend) -> Spares:
    """gpu4 is on standby, and the other nodes are taken."""
    config = Spares(nodes=("gpu4",), after_s=0)
    nodes = {node.name: node for node in slurm.nodes()}
    whole = spares.plan_standby(nodes, slurm.jobs(), slurm.reservations(), config)
    assert whole == ("gpu4",)
    spares.apply_standby(slurm, whole, False, config)
    return config


def test_a_spare_replaces_the_drained_node_and_returns(cluster: Cluster, slurm: CliBackend, standby: Spares) -> None:
    job, _ = full(cluster, slurm, running=1, seconds=120)
    good, bad = job.nodes
    drain_and_requeue(cluster, slurm, job, bad, Front())
    put_in_front(cluster, slurm, job, bad, Front(), spare_count=1)
    waiting = look(slurm, job.job_id)
    nodes = {node.name: node for node in slurm.nodes()}
    now = time.time()
    lend = spares.plan_lend(waiting, job.nodes, [bad], nodes, slurm.reservations(), standby, now, now - 1)
    assert lend is not None
    assert (lend.spares, lend.standby) == (("gpu4",), ())
    assert set(lend.front) >= {good, "gpu4"}
    assert spares.apply_lend(slurm, lend, standby) == "lent spare gpu4"
    cluster.wait_for(lambda: look(slurm, job.job_id).state == "RUNNING", 60, "the requeued job to run")
    assert set(look(slurm, job.job_id).nodes) == {good, "gpu4"}
    front.undo_front(slurm, look(slurm, job.job_id), time.time())

    def due() -> Optional[tuple[str, ...]]:
        known = {node.name: node for node in slurm.nodes()}
        return spares.plan_standby(known, slurm.jobs(), slurm.reservations(), standby)

    assert due() is None, "its borrower runs on it"
    cluster.run(["scancel", str(job.job_id)])
    cluster.wait_for(lambda: due() == ("gpu4",), 60, "the spare to be free to return")
    # backlog may have it by now: it goes back all the same
    assert spares.apply_standby(slurm, ("gpu4",), False, standby) == "on standby: gpu4"
    assert due() is None
    (reservation,) = slurm.reservations()
    assert (reservation.name, reservation.nodes, reservation.users) == ("ais-spares", ("gpu4",), ("root",))


def test_a_job_of_a_range_starts_smaller_and_grows_back(cluster: Cluster, slurm: CliBackend) -> None:
    script = "srun --ntasks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE)) sleep 600"
    job_id = cluster.submit(script, "--nodes=2-4", "--ntasks-per-node=2", "--ntasks=8", "--gpus-per-node=8")
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    cluster.run(["scontrol", "update", f"JobId={job_id}", "AdminComment=[ais resume=auto nodes=2-4]"])
    job = look(slurm, job_id)
    assert len(job.nodes) == 4
    bad = job.nodes[3]
    cluster.run(["scontrol", "update", f"NodeName={bad}", "State=DRAIN", "Reason=ais:gpu.lost GPU3 x [abc123]"])

    def requeue() -> None:
        slurm.requeue(job)
        cluster.wait_for(lambda: look(slurm, job_id).state == "PENDING", 60, "the job to be back in the queue")

    def start() -> Job:
        time.sleep(1)  # watchdog.start_gap_s: slurmd refuses a credential of the last terminate's second
        slurm.update_job(look(slurm, job_id), StartTime="now")
        cluster.wait_job(job_id, "RUNNING", timeout=60)
        return look(slurm, job_id)

    config = Elastic(resize=True, after_s=60)
    requeue()
    now, nodes = time.time(), {node.name: node for node in slurm.nodes()}
    smaller = elastic.plan_shrink(look(slurm, job_id), job.nodes, [bad], nodes, config, now, now - 61)
    assert smaller is not None
    assert elastic.apply_size(slurm, smaller) == "starts with 3 nodes and 6 tasks"
    assert len(start().nodes) == 3

    cluster.run(["scontrol", "update", f"NodeName={bad}", "State=RESUME"])
    cluster.wait_for(lambda: slurm.nodes([bad])[0].schedulable, 60, "the node to be back")
    requeue()
    nodes = {node.name: node for node in slurm.nodes()}
    larger = elastic.plan_growth(look(slurm, job_id), job.nodes, [], nodes, config)
    assert larger is not None
    assert elastic.apply_size(slurm, larger) == "starts with 4 nodes and 8 tasks"
    again = start()
    assert (len(again.nodes), again.admin_comment) == (4, "[ais resume=auto nodes=2-4]")
