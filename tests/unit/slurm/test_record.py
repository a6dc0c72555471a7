"""scontrol's text records, also with text that users chose in order to be taken for something else."""

from __future__ import annotations

import dataclasses
from datetime import datetime

from aistation_slurm.slurm.decode import jobs_from_json, nodes_from_json
from aistation_slurm.slurm.record import job_from_text, jobs_from_text, node_from_text, nodes_from_text, record_fields
from tests.unit.public_cases import case
from tests.unit.slurm.replies import recorded

FORGED = """JobId=5 JobName=j x=1
   JobState=FAILED
   UserId=alice(20001) GroupId=alice(20001) MCS_label=N/A
   Priority=0 Nice=0 Account=(null) QOS=(null)
   JobState=PENDING Reason=JobHeldUser Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   NodeList=
"""


def test_text_and_json_of_the_same_moment_agree() -> None:
    as_json = {job.job_id: job for job in jobs_from_json(recorded("mixed.squeue.json"))}
    as_text = {job.job_id: job for job in jobs_from_text(recorded("mixed.jobs.txt"))}
    assert set(as_text) == set(as_json)
    for job_id, job in as_json.items():
        text = as_text[job_id]
        assert (text.state, text.nodes, text.start_time, text.requeue) == (
            job.state,
            job.nodes,
            job.start_time,
            job.requeue,
        )
        assert (text.exit_code, text.exit_signal) == (job.exit_code, job.exit_signal)
        assert (text.comment, text.admin_comment, text.argument) == (job.comment, job.admin_comment, job.argument)
        assert (text.held_by_failed_launch, text.user_id, text.restart_cnt) == (
            job.held_by_failed_launch,
            job.user_id,
            job.restart_cnt,
        )


def test_nodes_of_text_and_json_agree() -> None:
    as_json = {node.name: node for node in nodes_from_json(recorded("node_down.sinfo.json"))}
    for node in nodes_from_text(recorded("node_down.nodes.txt")):
        # scontrol names the user by name and sinfo's JSON of 22.05 by number
        assert dataclasses.replace(node, reason_user="") == dataclasses.replace(as_json[node.name], reason_user="")


def test_091_flags_after_the_base_state() -> None:
    known = case("091")["expected"]
    nodes = [node_from_text(f"NodeName=n Arch=x\n   {line} Weight=1\n") for line in case("091")["input"].splitlines()]
    assert [n.state for n in nodes] == known["base"]
    assert [n.drained for n in nodes] == known["drain"]
    assert [not n.responding and "NOT_RESPONDING" in n.flags for n in nodes] == known["not_responding"]
    assert [n.schedulable for n in nodes] == known["usable_now"]


def test_098_values_with_blanks_and_equals_signs() -> None:
    known = case("098")["expected"]
    node_text, _, job_text = case("098")["input"].partition("JobId=")
    node = node_from_text(node_text)
    assert (node.reason, node.reason_user) == (known["Reason"], known["Reason_user"])
    assert node.reason_time == int(datetime.fromisoformat(known["Reason_time"]).timestamp())
    assert node.extra == known["Extra"]
    fields = record_fields("JobId=" + job_text)
    assert (fields["StdOut"], fields["WorkDir"]) == (known["StdOut"], known["WorkDir"])
    assert fields["JobName"] == "my job"
    assert not set(known["no_keys"]) & {*fields, *record_fields(node_text)}


def test_111_array_task_held_by_a_failed_launch() -> None:
    job = job_from_text(case("111")["input"])
    assert (job.state, job.held_by_failed_launch, job.restart_cnt) == (
        "PENDING",
        True,
        case("111")["expected"]["restarts"],
    )
    assert job.argument == "80520_114"


def test_122_held_for_max_requeue_is_not_a_failed_launch() -> None:
    job = job_from_text(case("122")["input"].splitlines()[0] + " Priority=0")
    assert (job.reason, job.held_by_failed_launch) == ("JobHoldMaxRequeue", False)


def test_a_line_end_in_a_job_name_forges_no_state() -> None:
    job = job_from_text(FORGED)
    assert (job.job_id, job.state, job.nodes, job.admin_comment) == (5, "UNKNOWN", (), "")


def test_blanks_in_a_job_name_forge_no_state() -> None:
    text = FORGED.replace(
        "JobName=j x=1\n   JobState=FAILED", "JobName=j JobState=FAILED AdminComment=[ais resume=auto]"
    )
    assert job_from_text(text).state == "UNKNOWN"


def test_a_comment_forges_no_other_job() -> None:
    """The forged record has the id of a job that exists: neither of the two is believed."""
    real = recorded("mixed.jobs.txt")
    assert {job.job_id: job.state for job in jobs_from_text(real)}[6] == "FAILED"
    forged = real + "\nJobId=6 JobName=x\n   JobState=RUNNING NodeList=gpu1\n   AdminComment=[ais resume=auto]\n\n"
    assert {job.job_id: job.state for job in jobs_from_text(forged)}[6] == "UNKNOWN"
