"""How an open breaker reaches the nodes: a reservation ``ais-breaker_<partition>`` that reserves nothing.

It begins a thousand days after the moment until which the breaker is open, so no job ever meets it, and a node that reads it
late, or long after the watchdog has died, takes it for closed. It is in `scontrol show reservation`, where an administrator
sees it and may delete it. Measured and compared with other ways in docs/decisions/0016-breaker.md.

A node reads it only before it drains itself: one request, whose answer holds a few hundred bytes for each reservation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from aistation_slurm.errors import SlurmRefused
from aistation_slurm.node.breaker import breaker_open
from aistation_slurm.slurm.client import Reservation, SlurmClient

__all__ = ["breaker_says_no", "open_until", "put_marker", "remove_marker"]

log = logging.getLogger(__name__)

PREFIX = "ais-breaker_"
FAR_S = 1000 * 86400
"""Farther than the end of any job: Slurm counts one without a limit as a year."""


def open_until(reservations: Iterable[Reservation]) -> dict[str, float]:
    """Partition -> unix time until which its breaker is open, past ones included."""
    return {
        r.name[len(PREFIX) :]: float(r.start_time - FAR_S)
        for r in reservations
        if r.name.startswith(PREFIX) and r.start_time is not None
    }


def put_marker(client: SlurmClient, partition: str, node: str, until: float) -> None:
    """Say that the breaker is open until then (unix time), or later than said before. node: any one of the partition.

    Raises SlurmUnavailable and SlurmRefused.
    """
    name, start = f"{PREFIX}{partition}", time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(until + FAR_S))
    if any(r.name == name for r in client.reservations()):
        client.update_reservation(name, StartTime=start)
    else:
        client.create_reservation(
            name, Nodes=node, Users="root", StartTime=start, Duration="1", Flags="IGNORE_JOBS,OVERLAP"
        )


def remove_marker(client: SlurmClient, partition: str) -> None:
    """Say that it is closed. Raises SlurmUnavailable."""
    try:
        client.delete_reservation(f"{PREFIX}{partition}")
    except SlurmRefused:
        pass  # somebody has deleted it


def breaker_says_no(client: SlurmClient, node: str, state_dir: str, now: float) -> bool:
    """Whether this node must not drain itself now. Two requests at most, one where no breaker is open.

    By the node's own file first, which a site's configuration management may write. Where Slurm refuses to show
    reservations the breaker counts as closed: that must not keep a lost GPU in service. Raises SlurmUnavailable where Slurm
    cannot be asked; then it could not be told of a drain either.
    """
    if breaker_open(state_dir, now):
        return True
    try:
        reservations = client.reservations()
    except SlurmRefused as exc:
        log.warning("%s: whether the mass-drain breaker is open cannot be told, so it is not: %s", node, exc)
        return False
    is_open = {partition for partition, until in open_until(reservations).items() if until > now}
    if not is_open:
        return False
    found = next((n for n in client.nodes([node]) if n.name == node), None)
    return found is not None and bool(is_open.intersection(found.partitions))
