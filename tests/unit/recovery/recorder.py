"""One job and what is asked to be changed: the edge of a unit test, with refusals by kind of request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from aistation_slurm.config import Slurm
from aistation_slurm.errors import SlurmRefused
from aistation_slurm.slurm.cli_backend import CliBackend
from aistation_slurm.slurm.client import Job, Node, Reservation

__all__ = ["Recorder"]


def _no_command(*_: Any, **__: Any) -> str:
    raise AssertionError("no command is to be run")


class Recorder(CliBackend):
    """``done`` lists the changes that were not refused, in order."""

    def __init__(
        self,
        seen: Optional[Job],
        refuse: Optional[Mapping[str, str]] = None,
        reservations: Sequence[Reservation] = (),
        nodes: Sequence[Node] = (),
    ) -> None:
        super().__init__(Slurm(), runner=_no_command)
        self.seen, self.refuse, self.known = seen, dict(refuse or {}), list(reservations)
        self.there = list(nodes)
        self.done: list[tuple[Any, ...]] = []

    def _note(self, kind: str, *what: Any) -> None:
        if kind in self.refuse:
            raise SlurmRefused(self.refuse[kind])
        self.done.append((kind, *what))

    def job(self, job_id: int) -> Optional[Job]:
        return self.seen

    def reservations(self) -> list[Reservation]:
        return self.known

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        return self.there

    def update_job(self, job: Job, **fields: str) -> None:
        self._note("update_job", job.job_id, fields)

    def create_reservation(self, name: str, **fields: str) -> None:
        self._note("create", name, fields)

    def update_reservation(self, name: str, **fields: str) -> None:
        self._note("update_reservation", name, fields)

    def delete_reservation(self, name: str) -> None:
        self._note("delete", name)
