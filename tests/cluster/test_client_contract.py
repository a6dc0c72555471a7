"""What every SlurmClient has to do, on a real Slurm: the commands' JSON, their text, and pyslurm where it can be imported."""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import pickle
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.slurm.client import Job, Node
from tests.cluster import Cluster
from tests.cluster.client_far import NO_JSON

pytestmark = pytest.mark.cluster

FAR = ["/opt/aistation/.venv/bin/python", "/opt/aistation/tests/cluster/client_far.py"]
FORMS = ["json", "text", "pyslurm"]
PROLOG = """#!/bin/sh
[ ! -e /shared/prolog-fails-on-$SLURMD_NODENAME ]
"""
NAME = "a \"b\" 'c' é漢 x=1 [y]"
WORDS = f"{NAME} State=DOWN JobState=FAILED Priority=0"
"""With what could be taken for fields; scontrol's text then tells a comment, but not a name (see record.py)."""


class Far:
    """A SlurmClient whose backend runs on the controller's host."""

    def __init__(self, cluster: Cluster, form: str) -> None:
        self.form = form
        self.process = cluster.popen(
            [*FAR, form], env={"PYTHONPATH": "/opt/aistation"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            sent = base64.b64encode(pickle.dumps((method, arguments, keywords))).decode("ascii")
            self.process.stdin.write(sent + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            assert line, f"the backend ended during {method}"
            fine, value = pickle.loads(base64.b64decode(line))
            if not fine:
                raise value
            return value

        return call

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    extra = "Prolog=/shared/prolog.sh\nPrologFlags=Alloc,DeferBatch\nMinJobAge=300\nSchedulerParameters=bf_interval=5"
    with Cluster(nodes=3, aistation=False, conf_extra=extra) as up:
        shared = up.dir / "shared"
        (shared / "prolog.sh").write_text(PROLOG)
        (shared / "prolog.sh").chmod(0o755)
        folder = shared / NO_JSON.rpartition("/")[2]
        folder.mkdir()
        said = "fatal: Unable to find plugin: serializer/json"
        for name in ("squeue", "sinfo"):
            (folder / name).write_text(f'#!/bin/sh\necho "{name}: {said}" >&2\nexit 1\n')
        (folder / "scontrol").write_text('#!/bin/sh\nexec /usr/bin/scontrol "$@"\n')
        for path in folder.iterdir():
            path.chmod(0o755)
        yield up


@pytest.fixture(scope="module")
def clients(cluster: Cluster) -> Iterator[dict[str, Far]]:
    forms = [form for form in FORMS if form != "pyslurm" or importlib.util.find_spec("pyslurm")]
    made = {form: Far(cluster, form) for form in forms}
    yield made
    for client in made.values():
        client.end()


@pytest.fixture(params=FORMS)
def slurm(request: pytest.FixtureRequest, clients: dict[str, Far]) -> Far:
    if request.param not in clients:
        pytest.skip("pyslurm is not installed here (it is built for one Slurm release: 25.11)")
    return clients[request.param]


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    for name in cluster.names:
        (cluster.dir / f"shared/prolog-fails-on-{name}").unlink(missing_ok=True)
    cluster.reset()


def sleeping(cluster: Cluster, *options: str, state: str = "RUNNING") -> int:
    job_id = cluster.submit("sleep 600", *options, user="alice")
    if state:
        cluster.wait_job(job_id, state, timeout=60)
    return job_id


def found(slurm: Far, job_id: int) -> Job:
    """The job, by itself and in the whole list, which have to agree as soon as nothing changes in between."""
    deadline = time.monotonic() + 30
    while True:
        alone = slurm.job(job_id)
        (listed,) = (job for job in slurm.jobs() if job.job_id == job_id)
        if alone == listed or time.monotonic() > deadline:
            break
    assert alone == listed
    assert isinstance(alone, Job)
    return alone


def settled(slurm: Far, cluster: Cluster, job_id: int, state: str) -> Job:
    cluster.wait_for(lambda: (slurm.job(job_id) or Job(0, "")).state == state, 90, f"job {job_id} to be {state}")
    return found(slurm, job_id)


def the_node(slurm: Far, name: str) -> Node:
    """The node, by itself and among all, which have to agree (but for who set the reason: a name or a number)."""
    (alone,) = slurm.nodes([name])
    (listed,) = (node for node in slurm.nodes() if node.name == name)
    assert dataclasses.replace(alone, reason_user="") == dataclasses.replace(listed, reason_user="")
    assert isinstance(alone, Node)
    return alone


def test_no_jobs_is_an_empty_list(cluster: Cluster, clients: dict[str, Far]) -> None:
    """Must stay the first test: only a new controller has no job in memory."""
    assert {form: client.jobs() for form, client in clients.items()} == {form: [] for form in clients}
    assert {client.cluster_name() for client in clients.values()} == {"aistest"}


def test_a_running_job(cluster: Cluster, slurm: Far) -> None:
    before = int(time.time()) - 2
    job_id = sleeping(
        cluster, "--nodes=2", "--gpus-per-node=4", "--time=90", "--comment=mine", "--job-name=train", "--output=t.out"
    )
    job = found(slurm, job_id)
    assert (job.state, job.finished, job.completing, job.name, job.comment) == (
        "RUNNING",
        False,
        False,
        "train",
        "mine",
    )
    assert (job.user_id, job.user_name, job.partition) == (20001, "alice", "gpu")
    assert job.nodes == tuple(cluster.expand(cluster.show_job(job_id)["NodeList"]))
    assert (job.node_count, job.time_limit_s, job.restart_cnt, job.batch, job.requeue) == (2, 5400, 0, True, True)
    assert job.submit_time is not None
    assert job.start_time is not None
    assert before <= job.submit_time <= job.start_time <= time.time() + 2
    assert len(job.gres_detail) == 2
    assert all("IDX:0-3" in detail for detail in job.gres_detail)
    assert (job.array_job_id, job.array_task_id, job.het_job_id, job.argument) == (None, None, None, str(job_id))
    assert job.priority > 0
    assert job.std_out == "/shared/alice/t.out"
    assert not job.cron


def test_how_jobs_end(cluster: Cluster, slurm: Far) -> None:
    ends = {
        cluster.submit("exit 3"): ("FAILED", 3, 0),
        cluster.submit("kill -9 $$"): ("FAILED", 0, 9),
        cluster.submit("true"): ("COMPLETED", 0, 0),
    }
    for job_id, (state, code, signal) in ends.items():
        job = settled(slurm, cluster, job_id, state)
        assert (job.state, job.exit_code, job.exit_signal) == (state, code, signal)
        assert job.finished
        assert job.end_time is not None
    cancelled = sleeping(cluster)
    cluster.run(["scancel", str(cancelled)])
    assert settled(slurm, cluster, cancelled, "CANCELLED").finished


def test_texts_that_users_choose(cluster: Cluster, slurm: Far) -> None:
    job_id = sleeping(cluster, f"--job-name={NAME}", f"--comment={WORDS}", "--hold", state="PENDING")
    slurm.update_job(found(slurm, job_id), AdminComment="[ais resume=auto max=3] é = 'x'")
    job = found(slurm, job_id)
    assert (job.state, job.user_name, job.comment) == ("PENDING", "alice", WORDS)
    assert job.admin_comment == "[ais resume=auto max=3] é = 'x'"
    assert job.name == NAME
    slurm.update_job(job, Comment="", AdminComment="b")
    assert (found(slurm, job_id).comment, found(slurm, job_id).admin_comment) == ("", "b")


def test_a_name_of_any_bytes_hides_no_job(cluster: Cluster, slurm: Far) -> None:
    other = sleeping(cluster, "--hold", state="PENDING")
    options = r"b'--hold', b'--wrap=true', b'--comment=\xff\xfe', b'--job-name=\xc3('"
    script = f"import subprocess; subprocess.run([b'sbatch', {options}], check=True)"
    cluster.run(["/usr/bin/python3", "-c", script], user="alice")
    jobs = [job for job in slurm.jobs() if job.state == "PENDING"]
    assert other in {job.job_id for job in jobs}
    assert len(jobs) == 2


def test_a_name_that_is_like_fields_forges_nothing(cluster: Cluster, slurm: Far) -> None:
    job_id = sleeping(cluster, "--hold", f"--job-name={WORDS}", "--comment=mine", state="PENDING")
    job = found(slurm, job_id)
    assert (job.state, job.name) in {("PENDING", WORDS), ("UNKNOWN", "")}


def test_line_ends_in_a_comment_forge_nothing(cluster: Cluster, slurm: Far) -> None:
    forged = "x\n   JobState=FAILED Reason=None\n\nJobId=1 JobName=x\n   JobState=RUNNING NodeList=gpu1\n"
    job_id = sleeping(cluster, "--hold", f"--comment={forged}", state="PENDING")
    jobs = {job.job_id: job for job in slurm.jobs()}
    assert jobs[job_id].state in ("PENDING", "UNKNOWN")
    assert all(job.state != "RUNNING" for job in jobs.values())


def test_required_and_excluded_nodes_and_a_refused_update(cluster: Cluster, slurm: Far) -> None:
    job_id = sleeping(cluster, "--hold", "--nodelist=gpu1,gpu2", "--nodes=2", "--exclude=gpu3", state="PENDING")
    job = found(slurm, job_id)
    assert (job.required_nodes, job.excluded_nodes, job.nodes) == (("gpu1", "gpu2"), ("gpu3",), ())
    assert (job.priority, job.held_by_failed_launch) == (0, False)
    with pytest.raises(SlurmRefused, match=r"(?i)node name"):
        slurm.update_job(job, ExcNodeList="gpu3,nosuch", Comment="not taken")
    assert (found(slurm, job_id).excluded_nodes, found(slurm, job_id).comment) == (("gpu3",), "")
    slurm.update_job(job, ExcNodeList="", Comment="two words")
    assert (found(slurm, job_id).excluded_nodes, found(slurm, job_id).comment) == ((), "two words")


def test_a_range_of_nodes_and_switches(cluster: Cluster, slurm: Far) -> None:
    job_id = sleeping(cluster, "--hold", "--nodes=2-3", "--switches=1@30:00", "--no-requeue", state="PENDING")
    job = found(slurm, job_id)
    assert (job.min_nodes, job.max_nodes, job.requeue) == (2, 3, False)
    assert job.required_switches == (0 if slurm.form == "json" else 1), "22.05's JSON does not tell it"
    slurm.update_job(job, NumNodes="1-2")
    assert (found(slurm, job_id).min_nodes, found(slurm, job_id).max_nodes) == (1, 2)


def test_hold_and_release(cluster: Cluster, slurm: Far) -> None:
    full = sleeping(cluster, "--nodes=3", "--exclusive")
    job_id = sleeping(cluster, "--nodes=3", "--exclusive", state="PENDING")
    slurm.hold(found(slurm, job_id))
    held = found(slurm, job_id)
    assert (held.priority, held.reason) == (0, "JobHeldUser")
    slurm.release(held)
    assert found(slurm, job_id).priority > 0
    assert found(slurm, full).state == "RUNNING"


def test_requeue(cluster: Cluster, slurm: Far) -> None:
    job_id = sleeping(cluster)
    first = found(slurm, job_id)
    slurm.requeue(first)
    job = settled(slurm, cluster, job_id, "PENDING")
    cluster.wait_for(lambda: not slurm.job(job_id).completing, 60, "the epilogs to end")
    job = found(slurm, job_id)
    assert (job.restart_cnt, job.nodes, job.requeue) == (1, (), True)
    with pytest.raises(SlurmRefused, match="pending"):
        slurm.requeue(job)
    slurm.update_job(job, StartTime="now")
    again = settled(slurm, cluster, job_id, "RUNNING")
    assert again.start_time != first.start_time


def test_a_job_that_may_not_be_requeued(cluster: Cluster, slurm: Far) -> None:
    job_id = sleeping(cluster, "--no-requeue")
    with pytest.raises(SlurmRefused, match="disabled"):
        slurm.requeue(found(slurm, job_id))
    assert found(slurm, job_id).state == "RUNNING"


def test_one_task_of_an_array(cluster: Cluster, slurm: Far) -> None:
    array = cluster.submit("sleep 600", "--array=0-2", user="alice")

    def tasks() -> dict[int, Job]:
        jobs = [job for job in slurm.jobs() if job.array_job_id == array and job.state == "RUNNING"]
        return {job.array_task_id: job for job in jobs if job.array_task_id is not None}

    cluster.wait_for(lambda: len(tasks()) == 3, 60, "three tasks to run")
    before = tasks()
    assert {job.argument for job in before.values()} == {f"{array}_0", f"{array}_1", f"{array}_2"}
    owner = next(job for job in before.values() if job.job_id == array)
    assert found(slurm, array).array_task_id == owner.array_task_id
    slurm.requeue(owner)
    cluster.wait_for(lambda: slurm.job(array).state == "PENDING", 60, "the task to be requeued")
    assert set(tasks()) == set(before) - {owner.array_task_id}, "no other task was touched"
    assert slurm.job(array).argument == owner.argument


def test_tasks_that_wait_are_one_record(cluster: Cluster, slurm: Far) -> None:
    array = cluster.submit("sleep 600", "--array=3-5", "--hold", user="alice")
    job = found(slurm, array)
    assert (job.state, job.array_job_id, job.array_task_id, job.argument) == ("PENDING", array, None, str(array))


def test_a_heterogeneous_job(cluster: Cluster, slurm: Far) -> None:
    leader = cluster.submit("sleep 600", "--nodes=1", ":", "--nodes=2", user="alice")
    for job_id in (leader, leader + 1):
        assert settled(slurm, cluster, job_id, "RUNNING").het_job_id == leader
    assert (len(found(slurm, leader).nodes), len(found(slurm, leader + 1).nodes)) == (1, 2)
    with pytest.raises(SlurmRefused):
        slurm.requeue(found(slurm, leader + 1))
    slurm.requeue(found(slurm, leader))
    cluster.wait_for(lambda: {slurm.job(i).state for i in (leader, leader + 1)} == {"PENDING"}, 60, "both requeued")


def test_held_after_a_failed_launch(cluster: Cluster, slurm: Far) -> None:
    (cluster.dir / "shared/prolog-fails-on-gpu2").touch()
    job_id = cluster.submit("sleep 600", "--nodelist=gpu2", user="alice")
    cluster.wait_for(lambda: slurm.job(job_id).held_by_failed_launch, 90, "the job to be held")
    job = found(slurm, job_id)
    assert (job.state, job.priority, job.restart_cnt) == ("PENDING", 0, 1)
    cluster.wait_for(lambda: the_node(slurm, "gpu2").drained, 60, "gpu2 to be drained")
    assert the_node(slurm, "gpu2").reason == "Prolog error"
    (cluster.dir / "shared/prolog-fails-on-gpu2").unlink()
    slurm.resume("gpu2")
    slurm.release(job)
    slurm.update_job(job, StartTime="now")
    assert settled(slurm, cluster, job_id, "RUNNING").nodes == ("gpu2",)


def test_drain_and_resume(cluster: Cluster, slurm: Far) -> None:
    idle = the_node(slurm, "gpu1")
    assert (idle.state, idle.drained, idle.schedulable, idle.responding) == ("IDLE", False, True, True)
    assert (idle.partitions, idle.gres, idle.reason, idle.reason_time) == (("gpu",), "gpu:8", "", None)
    assert idle.boot_time is not None
    assert idle.slurmd_start_time is not None
    before = int(time.time())
    slurm.drain("gpu1", WORDS)
    drained = the_node(slurm, "gpu1")
    assert (drained.state, drained.drained, drained.schedulable, drained.reason) == ("IDLE", True, False, WORDS)
    assert drained.reason_time is not None
    assert before - 2 <= drained.reason_time <= time.time() + 2
    slurm.resume("gpu1")
    resumed = the_node(slurm, "gpu1")
    assert (resumed.drained, resumed.reason, resumed.reason_time) == (False, "", None)
    assert [node.name for node in slurm.nodes()] == cluster.names
    with pytest.raises(SlurmRefused, match=r"(?i)node name"):
        slurm.drain("nosuch", "x")


def test_a_nodes_comment_and_a_busy_node(cluster: Cluster, slurm: Far) -> None:
    slurm.update_node("gpu3", Comment="site = x [ais refused=5@1796091137] é")
    sleeping(cluster, "--nodelist=gpu3", "--exclusive")
    node = the_node(slurm, "gpu3")
    assert (node.comment, node.state, node.schedulable) == ("site = x [ais refused=5@1796091137] é", "ALLOCATED", True)
    slurm.update_node("gpu3", Comment="")
    assert the_node(slurm, "gpu3").comment == ""


def test_a_node_that_is_gone(cluster: Cluster, slurm: Far) -> None:
    slurm.down("gpu3", "by hand")
    node = the_node(slurm, "gpu3")
    assert (node.state, node.responding, node.schedulable, node.reason) == ("DOWN", False, False, "by hand")
    slurm.resume("gpu3")


def test_a_job_that_nobody_knows(cluster: Cluster, slurm: Far) -> None:
    assert slurm.job(99_999_999) is None
    unknown = Job(99_999_999, "RUNNING")
    for change in ("requeue", "release", "hold"):
        with pytest.raises(SlurmRefused, match=r"(?i)invalid job id"):
            getattr(slurm, change)(unknown)


def test_the_controller_is_stopped(cluster: Cluster, slurm: Far) -> None:
    job_id = sleeping(cluster)
    job = found(slurm, job_id)
    cluster.stop_slurmctld()
    try:
        calls = {
            "jobs": lambda: slurm.jobs(),
            "nodes": lambda: slurm.nodes(),
            "requeue": lambda: slurm.requeue(job),
        }
        if slurm.form != "text":  # there each of them is a scontrol, which tries for ten seconds
            calls["job"] = lambda: slurm.job(job_id)
        for call in calls.values():
            with pytest.raises(SlurmUnavailable):
                call()
    finally:
        cluster.start_slurmctld()
    assert settled(slurm, cluster, job_id, "RUNNING").restart_cnt == 0
