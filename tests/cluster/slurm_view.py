"""Slurm's answers as Python values, in the shape of 22.05. Text in, values out."""

from __future__ import annotations

import json
import re
from typing import Any, Optional


def find_job(squeue_json: str, job_id: int) -> Optional[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(squeue_json)["jobs"]
    job = next((job for job in jobs if job["job_id"] == job_id), None)
    if job is None:
        return None
    job = {key: _plain(value) for key, value in job.items()}
    if isinstance(job["job_state"], list):  # since 23.11: the base state, then flags
        job["job_state"], job["flags"] = _state(job["job_state"], _JOB_STATES)
    return job


def parse_nodes(sinfo_json: str) -> list[dict[str, Any]]:
    """`sinfo --json` nodes, with ``state`` in upper case and ``flags`` for its state_flags."""
    nodes: list[dict[str, Any]] = json.loads(sinfo_json)["nodes"]
    nodes = [{key: _plain(value) for key, value in node.items()} for node in nodes]
    for node in nodes:
        if isinstance(node["state"], list):  # since 23.11: the base state, then flags
            node["state"], node["flags"] = _state(node["state"], _NODE_STATES)
        else:
            node["state"], node["flags"] = node["state"].upper(), list(node["state_flags"])
    return nodes


_JOB_STATES = [
    "PENDING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
]
_NODE_STATES = ["UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"]


def _state(words: list[str], base: list[str]) -> tuple[str, list[str]]:
    return next((word for word in words if word in base), "UNKNOWN"), [word for word in words if word not in base]


def _plain(value: Any) -> Any:
    """{"set": true, "infinite": false, "number": 5} of newer releases is 5; not set is 0, as in 22.05."""
    if isinstance(value, dict) and {"set", "infinite", "number"} <= set(value):
        return value["number"] if value["set"] else 0
    return value


_FREE_TEXT = ("JobName", "Comment", "AdminComment", "SystemComment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut")


def parse_record(text: str) -> dict[str, str]:
    """`scontrol show job` as key -> value.

    "JobId=1 JobName=a b\\n   Comment=x=1 y" -> {"JobId": "1", "JobName": "a b", "Comment": "x=1 y"}: a value that
    users write is the last on its line and reaches to the line's end.
    """
    record: dict[str, str] = {}
    for line in text.splitlines():
        starts = list(re.finditer(r"(?:^\s*| )([A-Za-z][\w/:]*)=", line))
        for this, following in zip(starts, [*starts[1:], None]):
            free = this.group(1) in _FREE_TEXT
            record[this.group(1)] = line[this.end() : None if free or following is None else following.start()].strip()
            if free:
                break
    return record
