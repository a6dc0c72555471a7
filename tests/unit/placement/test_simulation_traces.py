"""Public traces are read by their own column names; a bad line is named. Samples are lines of the traces' own descriptions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aistation_slurm.placement.simulation import traces
from aistation_slurm.placement.simulation.traces import TraceError

SACCT = """\
JobIDRaw|Submit|Eligible|Start|End|NNodes|TimelimitRaw|State
101|2026-11-01T10:00:00|2026-11-01T10:00:00|2026-11-01T10:00:05|2026-11-01T10:10:05|4|60|COMPLETED
102|2026-11-01T10:01:00|2026-11-01T10:05:00|2026-11-01T10:20:00|2026-11-01T10:20:30|1|UNLIMITED|FAILED
102.batch|2026-11-01T10:01:00|2026-11-01T10:05:00|2026-11-01T10:20:00|2026-11-01T10:20:30|1||FAILED
103|2026-11-01T10:02:00|Unknown|Unknown|Unknown|2|30|CANCELLED by 1000
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,16,16,2,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uVMrF,vchbv,8,16,1,FAILED,2020-06-09 18:42:27,2020-06-09 18:42:27,2020-06-09 18:42:27,0,0
1425514,uVMrF,vchbv,8,16,1,CANCELLED,2020-06-09 18:42:28,,,,
"""
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
dlctk,uf794,8,64,960,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,18,10.0,1152.0
5778432,u5907,1,8,128,Other,FAILED,2023-05-17 19:01:58+08:00,2023-05-17 19:02:54+08:00,2023-05-17 19:04:51+08:00,117,32,936.0
"""
ALIBABA = """\
4f057009a5d481acec67b088,ps,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,,MISC
4f057009a5d481acec67b088,worker,16.0,Terminated,1739170.0,1739300.0,600.0,29.296875,100.0,V100
5a057009a5d481acec67b088,tensorflow,1.0,Terminated,1739180.0,1739200.0,600.0,29.296875,50.0,MISC
6b057009a5d481acec67b088,tensorflow,8.0,Running,1739180.0,,600.0,29.296875,100.0,V100
"""


def philly(gpus: int = 8, machines: int = 1) -> list[dict[str, Any]]:
    detail = [{"ip": f"m{m}", "gpus": [f"gpu{n}" for n in range(gpus)]} for m in range(machines)]
    return [
        {
            "status": "Pass",
            "vc": "ee9e8c",
            "jobid": "application_1506638472019_14199",
            "attempts": [
                {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23", "detail": detail},
                {"start_time": "2017-10-07 01:13:30", "end_time": "2017-10-07 01:14:00", "detail": detail},
                {"start_time": "2017-10-07 01:14:30", "end_time": None, "detail": detail},
            ],
            "submitted_time": "2017-10-07 01:11:39",
            "user": "ce2f4c",
        },
        {
            "status": "Killed",
            "vc": "x",
            "jobid": "y",
            "attempts": [],
            "submitted_time": "2017-10-07 02:00:00",
            "user": "z",
        },
    ]


CASES = {
    "sacct": (
        SACCT,
        [(0.0, 4, 600.0, 3600.0), (300.0, 1, 30.0, 60.0)],
        {"that are steps": 1, "that did not run to an end": 1},
    ),
    "helios": (HELIOS, [(0.0, 2, 249.0, 540.0)], {"of less than a node": 1, "that did not run": 2}),
    "acme": (ACME, [(0.0, 8, 18.0, 60.0), (60.0, 1, 117.0, 240.0)], {}),
    "alibaba": (
        ALIBABA,
        [(0.0, 2, 130.0, 300.0)],
        {"(tasks) without a GPU": 1, "of less than a node": 1, "(tasks) that did not run to an end": 1},
    ),
    "philly": (json.dumps(philly(8, 2)), [(0.0, 2, 104.0, 240.0)], {"that did not run to an end": 1}),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("told", [True, False], ids=["told", "by its first line"])
def test_a_trace(kind: str, told: bool) -> None:
    text, jobs, left_out = CASES[kind]
    loaded = traces.read(text, "file", kind if told else "auto")
    assert [tuple(job)[1:] for job in loaded.jobs] == jobs
    assert loaded.left_out == left_out


def test_alibaba_with_a_line_of_names() -> None:
    named = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n" + ALIBABA
    assert traces.read(named, "file").jobs == traces.read(ALIBABA, "file").jobs


BAD = {
    "a number": (HELIOS.replace(",16,16,2,", ",many,16,2,"), r"^file:3: gpu_num is 'many', expected a number$"),
    "a time": (
        HELIOS.replace("2020-06-09 18:41:27", "yesterday", 1),
        r"^file:3: submit_time is 'yesterday', expected a time",
    ),
    "a column": (HELIOS.replace("node_num", "nodes"), r"^file:1: no column node_num; there are: job_id, user"),
    "a line cut short": (HELIOS + "1425599,u,vc,8\n", r"^file:6: 4 fields, expected 12$"),
    "a negative run time": (
        HELIOS.replace(",249,", ",-249,"),
        r"^file:3: duration is '-249', expected a number from 0 on$",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(TraceError, match=message):
        traces.read(text, "file", "helios")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("[1]", "philly", "job 1: not as in cluster_job_log"),
        ("{}", "philly", "expected a list of jobs"),
        ("[", "philly", "not JSON"),
        ("JobID|Submit|Start|End\n1|x|y|z\n", "sacct", "no column NNodes or AllocNodes"),
        ("hello\n", "auto", "not known as a trace"),
        ("", "auto", "not known as a trace"),
        (json.dumps(philly(1)), "philly", "no job of whole nodes"),
    ],
)
def test_what_is_no_trace(text: str, kind: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        traces.read(text, "file", kind)
