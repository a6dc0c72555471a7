"""Slurm 22.05's answers as Python values. Text in, values out."""

from __future__ import annotations

import json
import re
from typing import Any, Optional


def find_job(squeue_json: str, job_id: int) -> Optional[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(squeue_json)["jobs"]
    return next((job for job in jobs if job["job_id"] == job_id), None)


def parse_nodes(sinfo_json: str) -> list[dict[str, Any]]:
    """`sinfo --json` nodes, with ``state`` in upper case and ``flags`` for its state_flags."""
    nodes: list[dict[str, Any]] = json.loads(sinfo_json)["nodes"]
    for node in nodes:
        node["state"] = node["state"].upper()
        node["flags"] = list(node["state_flags"])
    return nodes


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
