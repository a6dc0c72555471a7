"""JSON of every version's shape -> Job and Node. Inputs: recorded output and the public cases of area slurm-json."""

from __future__ import annotations

import json

import pytest

from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm.decode import jobs_from_json, nodes_from_json, number
from aistation_slurm.slurm.gres import gpu_count, gpu_indices, tres_gpus
from tests.unit.public_cases import case
from tests.unit.slurm.replies import recorded

NEW_SHAPE = {
    # data_parser v0.0.42 (24.11): numbers as objects, lists for states, comments and exit codes as objects
    "meta": {"plugin": {"data_parser": "data_parser/v0.0.42"}},
    "errors": [],
    "jobs": [
        {
            "job_id": 4711,
            "job_state": ["FAILED", "COMPLETING"],
            "array_job_id": {"set": True, "infinite": False, "number": 4700},
            "array_task_id": {"set": True, "infinite": False, "number": 0},
            "start_time": {"set": True, "infinite": False, "number": 1796091137},
            "time_limit": {"set": False, "infinite": True, "number": 0},
            "priority": {"set": True, "infinite": False, "number": 1},
            "exit_code": {
                "status": ["SIGNALED"],
                "return_code": {"set": False, "infinite": False, "number": 0},
                "signal": {"id": {"set": True, "infinite": False, "number": 9}, "name": "SIGKILL"},
            },
            "nodes": "gpu[1-2]",
            "excluded_nodes": "gpu[7,9]",
            "required_nodes": "",
            "restart_cnt": 2,
            "requeue": True,
            "batch_flag": True,
            "comment": "mine",
            "admin_comment": "[ais resume=auto max=3]",
            "required_switches": 1,
            "state_description": "",
            "state_reason": "None",
        }
    ],
}


def test_running_job_of_22_05() -> None:
    (job,) = jobs_from_json(recorded("running.squeue.json"))
    assert (job.job_id, job.state, job.flags, job.nodes) == (1, "RUNNING", frozenset(), ("gpu1", "gpu2"))
    assert (job.start_time, job.restart_cnt, job.node_count, job.requeue) == (1796091137, 0, 2, True)
    assert (job.comment, job.admin_comment) == ("my run = 3 blanks", "site note [ais resume=auto max=3]")
    assert [gpu_indices(text) for text in job.gres_detail] == [list(range(8))] * 2
    assert (job.array_job_id, job.array_task_id, job.time_limit_s, job.argument) == (None, None, None, "1")


def test_a_requeued_job_of_22_05_is_completing_first_and_then_pending() -> None:
    (ending,) = jobs_from_json(recorded("completing.squeue.json"))
    assert ending.completing
    assert (ending.state, ending.restart_cnt, ending.finished) == ("UNKNOWN", 1, False)
    (pending,) = jobs_from_json(recorded("requeued.squeue.json"))
    assert not pending.completing
    assert (pending.state, pending.reason, pending.nodes, pending.priority > 0) == ("PENDING", "BeginTime", (), True)


def test_states_reasons_and_exits_of_22_05() -> None:
    jobs = {job.job_id: job for job in jobs_from_json(recorded("mixed.squeue.json"))}
    assert (jobs[2].held_by_failed_launch, jobs[2].priority, jobs[2].required_nodes) == (True, 0, ("gpu1", "gpu2"))
    assert (jobs[4].held_by_failed_launch, jobs[4].priority, jobs[4].reason) == (False, 0, "JobHeldUser")
    assert jobs[5].requeue is False
    assert (jobs[6].state, jobs[6].exit_code, jobs[6].exit_signal) == ("FAILED", 1, 0)
    assert (jobs[7].state, jobs[7].exit_code, jobs[7].exit_signal) == ("FAILED", 0, 11)
    assert [jobs[i].argument for i in (10, 11, 3)] == ["3_0", "3_1", "3_2"]
    assert (jobs[8].het_job_id, jobs[9].het_job_id) == (8, 8)
    assert jobs[1].exit_signal == 15


def test_the_shape_since_23_11() -> None:
    (job,) = jobs_from_json(json.dumps(NEW_SHAPE))
    assert (job.state, job.completing, job.finished) == ("FAILED", True, False)
    assert (job.argument, job.start_time, job.time_limit_s, job.priority) == ("4700_0", 1796091137, None, 1)
    assert (job.exit_code, job.exit_signal, job.required_switches) == (0, 9, 1)
    assert job.excluded_nodes == ("gpu7", "gpu9")
    assert (job.comment, job.admin_comment) == ("mine", "[ais resume=auto max=3]")


def test_a_node_that_went_down_in_22_05() -> None:
    nodes = {node.name: node for node in nodes_from_json(recorded("node_down.sinfo.json"))}
    assert (nodes["gpu2"].state, nodes["gpu2"].responding, nodes["gpu2"].reason) == ("DOWN", False, "Not responding")
    assert nodes["gpu2"].reason_time is not None
    assert (nodes["gpu1"].state, nodes["gpu1"].schedulable, nodes["gpu1"].partitions) == ("IDLE", True, ("gpu",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "printed nothing"),
        ("   \n", "printed nothing"),
        ("{}", "no JSON with 'jobs'"),
        ('{"jobs": [', "no JSON with 'jobs'"),
        ("[]", "got `array`"),
        ('{"jobs": null}', "got `null`"),
        ('{"jobs": [5]}', "got `int`"),
        ('{"jobs": [{"job_state": ["RUNNING"]}]}', "a job without job_id"),
        ('{"jobs": [{"job_id": {"set": false, "number": 7}}]}', "a job without job_id"),
        ('{"sinfo": []}', "no JSON with 'jobs'"),
        ('{"errors": ["x"], "jobs": []}', "x"),
    ],
)
def test_what_is_no_answer_is_never_no_jobs(text: str, words: str) -> None:
    with pytest.raises(SlurmUnavailable, match=words):
        jobs_from_json(text)


def test_slurmctld_down_is_not_an_empty_cluster() -> None:
    """22.05 ends with code 0 and an empty list; only ``errors`` tells."""
    text = '{"errors": [{"description": "Failed while looking for jobs", "error_number": -1}], "jobs": []}'
    with pytest.raises(SlurmUnavailable, match="Failed while looking for jobs"):
        jobs_from_json(text)
    assert jobs_from_json('{"errors": [], "jobs": []}') == []


def test_090_drain_is_in_the_flags() -> None:
    known = case("090")
    nodes = nodes_from_json(known["input"])
    assert [n.state for n in nodes] == known["expected"]["base"]
    assert [sorted(n.flags) for n in nodes] == known["expected"]["flags"]
    assert [n.schedulable for n in nodes] == known["expected"]["schedulable"]


def test_093_job_state_text_or_list() -> None:
    known = case("093")["expected"]
    jobs = {job.job_id: job for job in jobs_from_json(case("093")["input"])}
    assert {i: job.state for i, job in jobs.items()} == known["base"]
    assert {i: sorted(jobs[i].flags) for i in known["flags"]} == known["flags"]
    assert {i: jobs[i].finished for i in known["finished"]} == known["finished"]


def test_097_required_switches() -> None:
    known = case("097")
    by_parser = {}
    for line in known["input"].splitlines():
        version = json.loads(line)["meta"]["plugin"]["data_parser"].split("/")[1]
        by_parser[version] = jobs_from_json(line)[0].required_switches
    assert by_parser == known["expected"]["required_switches"]
    assert jobs_from_json('{"jobs": [{"job_id": 7}]}')[0].required_switches == known["expected"]["absent_means"]


def test_100_gpus_in_gres_and_tres() -> None:
    known = case("100")["expected"]
    lines = [
        line.split(":" if line.startswith(("tres", "gres_detail")) else "=", 1)
        for line in case("100")["input"].splitlines()
    ]
    details = [json.loads(text) for key, text in lines if key == "gres_detail"]
    assert [[gpu_indices(text) for text in detail] for detail in details] == known["indices"]
    assert [tres_gpus(text.strip()) for key, text in lines if key == "tres"] == known["gpus"]
    assert [tres_gpus(text.strip()) for key, text in lines if key == "tres_per_node"] == [known["tres_per_node_gpus"]]
    counts = [gpu_count(text) for key, text in lines if key == "Gres"]
    assert counts == [known["gres_line6_count"], known["gres_line7_count"]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), ("5", 5), (0, 0), ({"set": True, "infinite": False, "number": 7}, 7), ({"set": False, "number": 7}, None),
     ({"set": True, "infinite": True, "number": 0}, None), (None, None), (True, None), (0xFFFFFFFE, None), ("Infinity", None)],
)  # fmt: skip
def test_numbers(value: object, expected: object) -> None:
    assert number(value) == expected
