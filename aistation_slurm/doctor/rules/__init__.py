"""One file per family of rules. Each has ``judge(site)``: pure, and silent about what is not known."""

from __future__ import annotations

from aistation_slurm.doctor.rules import daemons, files, hooks, nodes, plugins, requeue, scheduling, syntax, timeouts

__all__ = ["FAMILIES"]

FAMILIES = (syntax, hooks, timeouts, requeue, scheduling, plugins, nodes, files, daemons)
