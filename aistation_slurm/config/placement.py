"""Section ``[placement]`` of aistation.toml."""

from __future__ import annotations

from typing import Annotated, Optional

import msgspec

from aistation_slurm.config.values import Mode, Percent


class Placement(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Few leaf switches and good links for new jobs: the table that job_submit.lua looks up (docs/placement.md)."""

    mode: Optional[Mode] = None
    """``observe``: no table is published by the watchdog, and pending jobs stay as they are."""
    table: str = "/var/lib/aistation/decisions"
    """aistation.lua has the same path; the folder must be writable for nobody but SlurmUser or root."""
    ttl_s: Annotated[float, msgspec.Meta(ge=60, le=604800)] = 900.0
    """A table that was not renewed for so long is not used any more."""
    degraded: tuple[str, ...] = ("fabric.rate", "fabric.errors", "fabric.flap")
    """Checks (shell patterns) of which a warning makes a node's agent grade the node as degraded fabric; a fail of any ``fabric.*``
    does in any case."""
    avoid_percent: Percent = 25.0
    """Where more of a partition's nodes are degraded, the fabric and not the nodes is at fault, and none is avoided."""
    correct: bool = True
    """Correct exclusions and limits of pending jobs when grades or the table change; only those that AIStation made."""
    corrections_per_s: Annotated[float, msgspec.Meta(gt=0, le=10)] = 10.0
    """Each is a request to slurmctld, which must not notice them."""
    wait_max_s: Annotated[float, msgspec.Meta(ge=0, le=604800)] = 86400.0
    """The most that a job waits for few leaf switches. 0: limits are hints alone. slurmctld's max_switch_wait cuts it too."""
    busy_at: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """From a queue that asks for so many times a partition's nodes, jobs of nearly a leaf may have two: more of it favours few leaf
    switches, less of it short waits."""
    quiet_below: Annotated[float, msgspec.Meta(ge=0)] = 0.15
    """Below a queue that asks for so many times a partition's nodes, jobs of nearly a leaf may have two as well: nobody else would
    use what they leave free. Limits are strict from here to ``busy_at``."""
    crossing_percent: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 15.0
    """How much longer a job runs whose every edge crosses leaf switches without need, for the node-seconds of ``aistation placement
    simulate`` (Dong et al., HPCA 2025: about 15 % for training with a moderate share of communication)."""
