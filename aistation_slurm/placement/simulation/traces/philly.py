"""Microsoft's Philly: ``cluster_job_log``, a JSON list of jobs of 2017.

https://github.com/msr-fiddle/philly-traces (README: status, vc, jobid, attempts of start_time, end_time and detail of ip and
gpus, submitted_time, user); Jeon et al., USENIX ATC '19, https://arxiv.org/abs/1901.05758.
"""

from __future__ import annotations

import json
from typing import Any

from aistation_slurm.placement.simulation.traces.loaded import Collector, Loaded, Row, TraceError, whole_nodes

__all__ = ["read"]


def read(text: str, source: str, gpus_per_node: int) -> Loaded:
    """A job runs as long as all its attempts together, on the nodes of its last one."""
    try:
        jobs = json.loads(text)
    except ValueError as exc:
        raise TraceError(f"{source}: not JSON: {exc}") from exc
    if not isinstance(jobs, list):
        raise TraceError(f"{source}: expected a list of jobs, as in cluster_job_log")
    found = Collector(source)
    for number, job in enumerate(jobs, start=1):
        try:
            _add(found, job, f"{source}: job {number}", gpus_per_node)
        except (KeyError, TypeError, AttributeError) as exc:
            raise TraceError(f"{source}: job {number}: not as in cluster_job_log: {exc!r}") from exc
    return found.loaded()


def _add(found: Collector, job: dict[str, Any], place: str, gpus_per_node: int) -> None:
    submit = Row(place, {"submitted_time": job["submitted_time"]}).time("submitted_time")
    run_s = 0.0
    detail: list[dict[str, Any]] = []
    for attempt in job["attempts"]:
        row = Row(place, {name: attempt.get(name) for name in ("start_time", "end_time")})
        start, end = row.time("start_time"), row.time("end_time")
        if start is not None and end is not None:
            run_s += max(0.0, end - start)
            detail = attempt["detail"]
    if submit is None or not detail:
        found.left_out["that did not run to an end"] += 1
        return
    nodes = whole_nodes(sum(len(machine["gpus"]) for machine in detail), 1, gpus_per_node)
    if not nodes:
        found.left_out["of less than a node"] += 1
        return
    found.add(submit, nodes, run_s)
