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


def parse_record(line: str) -> dict[str, str]:
    """One `scontrol -o show job` line: "JobId=1 JobName=a b Reason=None" -> {"JobId": "1", "JobName": "a b", ...}."""
    found = list(re.finditer(r"(?:^| )([A-Za-z][\w/:]*)=", line))
    ends = [match.start() for match in found[1:]] + [len(line)]
    return {match.group(1): line[match.end() : end].strip() for match, end in zip(found, ends)}
