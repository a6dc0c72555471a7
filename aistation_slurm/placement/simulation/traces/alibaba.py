"""Alibaba PAI: ``pai_task_table.csv`` of cluster-trace-gpu-v2020, with or without a line of column names.

https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2020 (README: job_name, task_name, inst_num, status,
start_time, end_time, plan_cpu, plan_mem, plan_gpu in percent of a GPU, gpu_type); Weng et al., NSDI '22. The file itself has no
line of names (``pai_task_table.header`` has it). A task's launch stands for its submission, which is in another table.
"""

from __future__ import annotations

from typing import NamedTuple

from aistation_slurm.placement.simulation.traces.loaded import Collector, Loaded, rows, whole_nodes

__all__ = ["read"]

COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)


class _Job(NamedTuple):
    start: float
    end: float
    gpus: float


def read(text: str, source: str, gpus_per_node: int) -> Loaded:
    """The tasks of a job that have GPUs together are one job, from the first launch to the last end."""
    found = Collector(source)
    named = text.lstrip("\ufeff").startswith("job_name")
    jobs: dict[str, _Job] = {}
    for row in rows(text, source, COLUMNS, header=() if named else COLUMNS):
        if not row.known("plan_gpu", "inst_num"):
            found.left_out["(tasks) without a GPU"] += 1
            continue
        if not row.known("start_time", "end_time") or row.text("status") in ("Running", "Waiting"):
            found.left_out["(tasks) that did not run to an end"] += 1
            continue
        start, end = row.number("start_time"), row.number("end_time")
        gpus = row.number("inst_num") * row.number("plan_gpu") / 100
        before = jobs.get(row.text("job_name"), _Job(start, end, 0.0))
        jobs[row.text("job_name")] = _Job(min(start, before.start), max(end, before.end), before.gpus + gpus)
    for job in jobs.values():
        nodes = whole_nodes(job.gpus, 1, gpus_per_node)
        if nodes:
            found.add(job.start, nodes, job.end - job.start)
        else:
            found.left_out["of less than a node"] += 1
    return found.loaded()
