"""What tests that share one cluster do between each other, and how they read a node list."""

from __future__ import annotations

from ClusterShell.NodeSet import NodeSet

from tests.cluster.cluster import Cluster

__all__ = ["expand", "reset"]


def expand(hostlist: str) -> list[str]:
    """``gpu[1-2]`` as ``["gpu1", "gpu2"]``; empty for Slurm's ``(null)``."""
    return [] if hostlist in ("", "(null)") else list(NodeSet(hostlist))


def reset(cluster: Cluster) -> None:
    """End all jobs, heal the hardware, and give every drained node back: the next test finds a healthy cluster."""
    ids = cluster.run(["squeue", "-h", "-o", "%A"]).stdout.split()
    if ids:
        cluster.run(["scancel", *sorted(set(ids))], check=False)
        cluster.wait_for(lambda: not cluster.run(["squeue", "-h"]).stdout.strip(), 90, "all jobs to end")
    for name in cluster.names:
        cluster.heal(name)
    if cluster.aistation:
        # a state file that still tells of the fault would drain the node again the moment it is resumed
        for name in cluster.names:
            cluster.run(["aistation", "check"], host=name, check=False, timeout=60)
    for name in cluster.names:
        if "DRAIN" in cluster.node(name)["flags"]:
            cluster.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])

    def all_idle() -> bool:
        return all(cluster.node(n)["state"] == "IDLE" and not cluster.node(n)["flags"] for n in cluster.names)

    cluster.wait_for(all_idle, 60, "every node to be IDLE and not drained")
