"""Traces made from a seed: the same seed always gives the same jobs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from aistation_slurm.placement.simulation.engine import TraceJob

__all__ = ["Workload", "make"]


@dataclass(frozen=True)
class Workload:
    """Whole-node jobs. Times in seconds.

    load: node-seconds that arrive over node-seconds that there are; sizes and shares: nodes of a job, and how likely;
    run_s, spread: mean and sigma of the log-normal run times; limits: a job's time limit is its run time by a factor between
    these, up to whole ``limit_step_s`` (Slurm knows minutes).
    """

    jobs: int = 500
    load: float = 0.9
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    shares: tuple[float, ...] = (0.5, 0.2, 0.12, 0.1, 0.05, 0.03)
    run_s: float = 11.0
    spread: float = 0.8
    limits: tuple[float, float] = (1.2, 4.0)
    limit_step_s: float = 60.0


def make(workload: Workload, nodes: int, seed: int) -> list[TraceJob]:
    """Jobs for ``nodes`` nodes, Poisson arrivals. Jobs and their order do not depend on the load, only the times between them."""
    random_ = random.Random(seed)
    mu = math.log(workload.run_s) - workload.spread**2 / 2
    sized = sum(size * share for size, share in zip(workload.sizes, workload.shares)) / sum(workload.shares)
    every_s = sized * workload.run_s / (nodes * workload.load)
    at = 0.0
    made = []
    for number in range(1, workload.jobs + 1):
        at += random_.expovariate(1.0) * every_s
        size = random_.choices(workload.sizes, workload.shares)[0]
        run = max(1.0, random_.lognormvariate(mu, workload.spread))
        factor = random_.uniform(*workload.limits)
        limit = math.ceil(run * factor / workload.limit_step_s) * workload.limit_step_s
        made.append(TraceJob(number, at, min(size, nodes), run, limit))
    return made
