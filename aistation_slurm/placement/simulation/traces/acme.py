"""Shanghai AI Lab's Acme: ``trace_seren.csv`` or ``trace_kalos.csv``, LLM development of 2023.

https://github.com/InternLM/AcmeTrace (README: job_id, user, node_num, gpu_num, cpu_num, type, state, submit_time, start_time,
end_time, duration, queue, gpu_time; times in seconds); Hu et al., NSDI '24,
https://www.usenix.org/conference/nsdi24/presentation/hu. Helios without its column vc.
"""

from __future__ import annotations

from aistation_slurm.placement.simulation.traces import helios
from aistation_slurm.placement.simulation.traces.loaded import Loaded

__all__ = ["read"]


def read(text: str, source: str, gpus_per_node: int) -> Loaded:
    return helios.read(text, source, gpus_per_node)
