"""A controller in memory, for everything above SlurmClient: nodes with drains, jobs with attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Optional

from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.slurm.client import Job, Node, Reservation


def job(job_id: int = 7, **fields: object) -> Job:
    """A running, opted-in batch job on gpu1; ``fields`` replace."""
    base = Job(
        job_id=job_id,
        state="RUNNING",
        nodes=("gpu1", "gpu2"),
        start_time=1000,
        admin_comment="[ais resume=auto max=3]",
        requeue=True,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


class FakeSlurm:
    """``hook(call)`` runs before each call and may change the world or raise, as a real controller's other users do."""

    def __init__(self, *jobs: Job, hook: Optional[Callable[[str], None]] = None) -> None:
        self.by_name = {name: Node(name=name, state="MIXED") for name in ("gpu1", "gpu2")}
        self.by_id = {j.job_id: j for j in jobs}
        self.reserved: list[Reservation] = []
        self.hook = hook
        self.calls: list[str] = []
        self.down = False

    def _call(self, text: str) -> None:
        self.calls.append(text)
        if self.hook is not None:
            self.hook(text)
        if self.down:
            raise SlurmUnavailable("scontrol did not answer within 10 s")

    def made(self, verb: str) -> list[str]:
        """Calls of this kind, in order."""
        return [c for c in self.calls if c.split()[0] == verb]

    def set_node(self, name: str, reason: str) -> None:
        """Somebody else drains (or, with an empty reason, resumes) a node."""
        flags = frozenset({"DRAIN"}) if reason else frozenset()
        self.by_name[name] = replace(self.by_name[name], flags=flags, reason=reason)

    def next_attempt(self, job_id: int) -> None:
        """The job was requeued and runs again, elsewhere or on the same nodes."""
        old = self.by_id[job_id]
        self.by_id[job_id] = replace(old, start_time=(old.start_time or 0) + 100, restart_cnt=old.restart_cnt + 1)

    # ---- SlurmClient

    def jobs(self) -> list[Job]:
        self._call("jobs")
        return list(self.by_id.values())

    def job(self, job_id: int) -> Optional[Job]:
        self._call(f"job {job_id}")
        return self.by_id.get(job_id)

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        self._call(f"nodes {','.join(names)}")
        return [self.by_name[n] for n in names or self.by_name if n in self.by_name]

    def reservations(self) -> list[Reservation]:
        self._call("reservations")
        return list(self.reserved)

    def drain(self, node: str, reason: str) -> None:
        self._call(f"drain {node}")
        if node not in self.by_name:
            raise SlurmRefused(f"Invalid node name specified: {node}")
        self.set_node(node, reason)

    def update_node(self, node: str, **fields: str) -> None:
        self._call(f"update_node {node} {' '.join(sorted(fields))}")
        assert set(fields) <= {"Reason", "Comment"}, "a drain is set and taken back elsewhere"
        changes = {key.lower(): value for key, value in fields.items()}
        self.by_name[node] = replace(self.by_name[node], **changes)  # type: ignore[arg-type]

    def resume(self, node: str) -> None:
        self._call(f"resume {node}")
        self.set_node(node, "")

    def requeue(self, job: Job) -> None:
        self._call(f"requeue {job.argument}")
        self.by_id[job.job_id] = replace(self.by_id[job.job_id], state="PENDING", flags=frozenset({"COMPLETING"}))

    def release(self, job: Job) -> None:
        raise AssertionError("the node side never releases a job")

    def hold(self, job: Job) -> None:
        raise AssertionError("the node side never holds a job")

    def update_job(self, job: Job, **fields: str) -> None:
        assert set(fields) == {"AdminComment"}, "the node side changes nothing else of a job"
        self._call(f"update {job.argument} {fields['AdminComment']}")

    def cluster_name(self) -> str:
        return "test"
