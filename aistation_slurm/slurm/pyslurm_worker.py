"""The process that imports pyslurm: reads requests, one JSON a line, and answers in the shape of ``squeue --json``.

A process of its own, since Slurm's library ends the process that imports it where it finds no configuration, blocks without
letting go of the interpreter for as long as it tries a controller that is away, and can crash. Written for pyslurm 25.11.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["answer", "job_row", "main", "node_row"]

INVALID_JOB_ID = 2017
"""ESLURM_INVALID_JOB_ID of slurm_errno.h."""


def _value(thing: Any, name: str) -> Any:
    """An attribute; None where it cannot be read: a user may put bytes into a text that are no UTF-8."""
    try:
        return getattr(thing, name)
    except (UnicodeDecodeError, ValueError, IndexError):
        return None


def _gres(found: Any) -> str:
    """pyslurm's ``{"gpu:a100": 8}`` or ``{"gpu": {"count": 3, "indexes": "0,3,5"}}`` as Slurm writes it."""
    words = []
    for name, value in found.items() if isinstance(found, dict) else ():
        if isinstance(value, dict):
            words.append(f"{name}:{value.get('count')}(IDX:{value.get('indexes')})")
        else:
            words.append(f"{name}:{value}")
    return ",".join(words)


def job_row(job: Any) -> dict[str, Any]:
    """A pyslurm.Job as a row of ``squeue --json``."""

    def of(name: str) -> Any:
        return _value(job, name)

    try:
        layout = (job.get_resource_layout_per_node() or {}) if of("state") == "RUNNING" else {}
    except ValueError:
        layout = {}
    wanted = of("requested_tres")
    return {
        "job_id": of("id"),
        "job_state": of("state"),
        "state_reason": of("state_reason"),
        "name": of("name"),
        "user_id": of("user_id"),
        "user_name": of("user_name"),
        "partition": of("partition"),
        "nodes": of("allocated_nodes"),
        "required_nodes": of("required_nodes"),
        "excluded_nodes": of("excluded_nodes"),
        "start_time": of("start_time"),
        "eligible_time": of("eligible_time"),
        "end_time": of("end_time"),
        "submit_time": of("submit_time"),
        "restart_cnt": of("requeue_count"),
        "comment": of("comment"),
        "admin_comment": of("admin_comment"),
        "exit_code": {"return_code": of("exit_code"), "signal": {"id": of("exit_code_signal")}},
        "priority": of("priority"),
        "node_count": of("num_nodes"),
        "max_nodes": of("max_nodes"),
        "tres_req_str": f"node={_count(_value(wanted, 'node'))}" if wanted is not None else "",
        "time_limit": of("time_limit"),
        "array_job_id": of("array_id"),
        "array_task_id": of("array_task_id"),
        "het_job_id": of("heterogeneous_id"),
        "requeue": of("is_requeueable"),
        "batch_flag": of("is_batch_job"),
        "required_switches": of("required_switches"),
        "gres_detail": [_gres(node.get("gres")) for node in layout.values()],
        "stdout_expanded": of("standard_output"),
        "cron": of("cronjob_time"),
        "flags": ["CRON_JOB"] if of("is_cronjob") else [],
        "resv_name": of("reservation"),
        "nice": of("nice"),
        "tasks_per_node": of("ntasks_per_node"),
        "cpus_per_task": of("cpus_per_task"),
        "tasks": of("ntasks"),
    }


def _count(tres: Any) -> Any:
    """Of a TrackableResource, or the number itself."""
    return getattr(tres, "count", tres) or 0


def node_row(node: Any) -> dict[str, Any]:
    """A pyslurm.Node as a row of ``scontrol show nodes --json``."""

    def of(name: str) -> Any:
        return _value(node, name)

    return {
        "name": of("name"),
        "hostname": of("hostname"),
        "state": of("state"),
        "reason": of("reason"),
        "reason_set_by_user": of("reason_user"),
        "reason_changed_at": of("reason_time"),
        "boot_time": of("boot_time"),
        "slurmd_start_time": of("slurmd_start_time"),
        "partitions": of("partitions"),
        "comment": of("comment"),
        "extra": of("extra"),
        "gres": _gres(of("configured_gres")),
    }


def answer(pyslurm: Any, request: dict[str, Any], cluster: str) -> dict[str, Any]:
    """One request: ``{"call": "hello"|"jobs"|"job"|"nodes", "id": 5}``."""
    call = request["call"]
    if call == "hello":
        config = pyslurm.slurmctld.Config.load()
        return {"pyslurm": pyslurm.__version__, "slurm": config.version, "cluster": config.cluster_name}
    if call == "job":
        try:
            found = [pyslurm.Job.load(request["id"])]
        except pyslurm.RPCError as exc:
            if exc.errno != INVALID_JOB_ID:
                raise
            found = []
        return {"jobs": [job_row(job) for job in found], "errors": []}
    if call == "nodes":
        return {"nodes": [node_row(node) for node in pyslurm.Nodes.load().values()], "errors": []}
    # of a federation, the other clusters' jobs are in the collection too, some with the same ids
    jobs = [job for job in pyslurm.Jobs.load().values() if _value(job, "cluster") in (None, cluster)]
    return {"jobs": [job_row(job) for job in jobs], "errors": []}


def main() -> None:
    """Answer until the pipe from the parent ends."""
    import pyslurm

    cluster = ""
    for line in sys.stdin.buffer:
        try:
            reply = answer(pyslurm, json.loads(line), cluster)
            cluster = reply.get("cluster") or cluster
        except pyslurm.RPCError as exc:
            reply = {"errors": [{"description": f"{exc} ({exc.errno})"}]}
        sys.stdout.buffer.write(json.dumps(reply, ensure_ascii=True).encode("ascii", "replace") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
