"""What the prolog's environment says about the job. Everything in it may have been chosen by a user.

Source: Slurm's prep_script_slurmd.c (22.05 to 26.05); SLURM_JOB_GPUS holds gres indices (``0,1,4-7``), which count the
``File=`` lines of gres.conf and are not NVML indices.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aistation_slurm.node.state import DeviceLine

__all__ = ["GateJob", "indices", "matches", "plain"]

MAX_GPUS = 1024


class GateJob:
    """``gpus``: gres indices. ``health``: ``quick`` (default), ``full`` or ``off``. ``job_id`` "" when unusable."""

    __slots__ = ("gpus", "health", "job_id", "nodes")

    def __init__(self, env: Mapping[str, str]) -> None:
        job_id = env.get("SLURM_JOB_ID", "")
        self.job_id = job_id if job_id.isascii() and job_id.isdigit() and len(job_id) <= 20 else ""
        self.gpus = indices(env.get("SLURM_JOB_GPUS", ""))
        self.nodes = number(env.get("SLURM_JOB_NUM_NODES", ""), 1)
        wanted = env.get("SPANK_AISTATION_HEALTH", "")
        self.health = wanted if wanted in ("full", "off") else "quick"

    def own_gpus(self, gpus: Iterable[DeviceLine]) -> list[DeviceLine]:
        """One line of each GPU of this job that the node has, in the node's order."""
        own: dict[str, DeviceLine] = {}
        for line in gpus:
            if line.gres in self.gpus:
                own.setdefault(line.device, line)
        return list(own.values())

    def uses_fabric(self, gpus: Iterable[DeviceLine]) -> bool:
        """Whether the node's ports are the job's: it spans nodes, or it has all of the node's GPUs.

        A job with some GPUs of one node talks over NVLink; a bad port is no reason to move it.
        """
        if self.nodes > 1:
            return True
        return bool(self.gpus) and {line.gres for line in gpus if line.gres >= 0} <= self.gpus


def indices(text: str) -> frozenset[int]:
    """``0,1,4-7`` as a set; empty for anything else. No range makes more than 1024 numbers."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        first, last = number(low, -1), number(high if dash else low, -1)
        if first < 0 or last < first or last >= MAX_GPUS:
            return frozenset()
        found.update(range(first, last + 1))
    return frozenset(found)


def number(text: str, otherwise: int) -> int:
    """A plain decimal number of at most ten digits, as the largest uid has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else otherwise


def matches(pattern: str, check: str) -> bool:
    """Shell pattern as in ``gate.refuse``; the common forms without importing fnmatch (and with it re)."""
    if not any(c in pattern for c in "*?["):
        return pattern == check
    if pattern.endswith("*") and not any(c in pattern[:-1] for c in "*?["):
        return check.startswith(pattern[:-1])
    from fnmatch import fnmatchcase

    return fnmatchcase(check, pattern)


def plain(text: str) -> str:
    """Printable ASCII on one line: what comes from a job must not forge a log line or move a cursor."""
    return " ".join("".join(c if " " <= c <= "~" else " " for c in text).split())
