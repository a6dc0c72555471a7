"""The client of a watchdog that has a backup: nothing is changed but by the host that is in control at that very moment.

One look at the cluster can take long enough for control to move (a controller that answers slowly is often about to go). So
the proof is asked for before each change, wherever in the watchdog it comes from; looking is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.recovery.primary import FRESH_S, Primary
from aistation_slurm.slurm.client import Job, Node, Reservation, SlurmClient

__all__ = ["ActingClient"]


class ActingClient:
    """A SlurmClient. Every change raises SlurmUnavailable, and is not made, where this host is not known to be in control."""

    def __init__(self, client: SlurmClient, primary: Primary) -> None:
        self._client, self._primary = client, primary

    def _acting(self) -> SlurmClient:
        if not self._primary.acts(FRESH_S):
            raise SlurmUnavailable(f"nothing is changed from here now: {self._primary.state}")
        return self._client

    # ---- looks

    def jobs(self) -> list[Job]:
        return self._client.jobs()

    def job(self, job_id: int) -> Optional[Job]:
        return self._client.job(job_id)

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        return self._client.nodes(names)

    def cluster_name(self) -> str:
        return self._client.cluster_name()

    def reservations(self) -> list[Reservation]:
        return self._client.reservations()

    # ---- changes

    def drain(self, node: str, reason: str) -> None:
        self._acting().drain(node, reason)

    def down(self, node: str, reason: str) -> None:
        self._acting().down(node, reason)

    def update_node(self, node: str, **fields: str) -> None:
        self._acting().update_node(node, **fields)

    def resume(self, node: str) -> None:
        self._acting().resume(node)

    def requeue(self, job: Job) -> None:
        self._acting().requeue(job)

    def release(self, job: Job) -> None:
        self._acting().release(job)

    def hold(self, job: Job) -> None:
        self._acting().hold(job)

    def update_job(self, job: Job, **fields: str) -> None:
        self._acting().update_job(job, **fields)

    def create_reservation(self, name: str, **fields: str) -> None:
        self._acting().create_reservation(name, **fields)

    def update_reservation(self, name: str, **fields: str) -> None:
        self._acting().update_reservation(name, **fields)

    def delete_reservation(self, name: str) -> None:
        self._acting().delete_reservation(name)
