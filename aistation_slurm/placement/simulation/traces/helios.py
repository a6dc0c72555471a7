"""SenseTime's Helios: ``cluster_log.csv`` of one cluster, Slurm jobs of 2020.

https://github.com/S-Lab-System-Group/HeliosData (README: job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time,
start_time, end_time, duration, queue; times in seconds); Hu et al., SC '21, https://doi.org/10.1145/3458817.3476223.
"""

from __future__ import annotations

from aistation_slurm.placement.simulation.traces.loaded import Collector, Loaded, rows, whole_nodes

__all__ = ["read"]

COLUMNS = ("job_id", "gpu_num", "node_num", "submit_time", "duration")


def read(text: str, source: str, gpus_per_node: int) -> Loaded:
    """Jobs of less than a node are left out: the simulator knows whole nodes."""
    found = Collector(source)
    for row in rows(text, source, COLUMNS):
        if not row.known("duration", "gpu_num", "node_num"):
            found.left_out["that did not run"] += 1
            continue
        submit = row.time("submit_time")
        nodes = whole_nodes(row.number("gpu_num"), row.number("node_num"), gpus_per_node)
        if not nodes:
            found.left_out["of less than a node"] += 1
        elif submit is None:
            raise row.error("submit_time", "a time such as 2020-06-09 18:41:01")
        else:
            found.add(submit, nodes, row.number("duration"))
    return found.loaded()
