"""A small Slurm that moves with a clock of its own: command lines in, text out, so that the real parsers are in the loop.

It keeps the rules that recovery rests on (measured on 22.05.8): a requeue is COMPLETING first and then PENDING with a begin
time 121 s ahead; a second requeue is refused; a failed prolog leaves the job held; ExcNodeList replaces and refuses an
unknown name; slurmctld away is an empty list and code 0. Anything it does not know is a test error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.errors import SlurmRefused, SlurmUnavailable
from aistation_slurm.slurm import hostlist

__all__ = ["FakeClock", "Sim", "SimJob", "SimNode"]

BEGIN = 1_796_091_000
OPTED_IN = "site text [ais resume=auto max=3]"
DRAIN = "ais:gpu.lost GPU3 0000:8f:00 fell off the bus [abc123]"


class FakeClock:
    """Wall and monotonic time that move only when somebody sleeps; ``set_wall`` is a person setting the clock."""

    def __init__(self) -> None:
        self._wall = float(BEGIN)
        self._monotonic = 50.0
        self.on_move: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self._wall += seconds
        self._monotonic += seconds
        self.on_move()

    def set_wall(self, delta_s: float) -> None:
        self._wall += delta_s


@dataclass
class SimNode:
    name: str
    state: str = "idle"
    flags: list[str] = field(default_factory=list)
    reason: str = ""
    reason_time: int = 0
    comment: str = ""
    boot_time: int = BEGIN - 86400


@dataclass
class SimJob:
    job_id: int
    node_count: int = 2
    state: str = "PENDING"
    completing_until: Optional[float] = None
    nodes: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    submit_time: int = 0
    start_time: int = 0
    eligible: float = 0.0
    end_time: int = 0
    restart_cnt: int = 0
    priority: int = 1000
    reason: str = "None"
    description: str = ""
    exit_status: int = 0
    comment: str = "mine"
    admin_comment: str = OPTED_IN
    requeue: bool = True
    batch: bool = True
    gres: str = "gpu:8(IDX:0-7)"
    partition: str = "gpu"
    array: Optional[tuple[int, int]] = None
    het: int = 0
    nice: int = 0
    switches: tuple[int, int] = (0, 0)
    """Leaf switches asked for, and seconds to wait for them."""
    reservation: str = ""
    fits: tuple[str, ...] = ()
    """Nodes with the features that the job asks for; empty: all."""
    starts: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    requeues: list[float] = field(default_factory=list)
    """Times of the requeues that Slurm accepted, whoever asked."""
    terminated: tuple[float, float] = (-1e6, -1e6)
    """Unix and monotonic seconds of the last terminate."""
    releases: int = 0
    holds: int = 0

    @property
    def completing(self) -> bool:
        return self.completing_until is not None


class Sim:
    """``spool``: where EpilogSlurmctld leaves its events; None: it is not configured."""

    def __init__(self, clock: FakeClock, spool: Optional[Path], nodes: int = 4) -> None:
        self.clock = clock
        self.spool = spool
        self.nodes = {f"gpu{i}": SimNode(f"gpu{i}") for i in range(1, nodes + 1)}
        self.jobs: dict[int, SimJob] = {}
        self.calls: list[str] = []
        self.reservations: dict[str, str] = {}
        self.changes: list[str] = []
        self.conf = {"KillWait": "30 sec", "UnkillableStepTimeout": "60 sec", "Epilog": "(null)"}
        self.down = False
        self.new_shape = False
        self.refuse: dict[str, str] = {}
        self.hook: Callable[[str], None] = lambda point: None
        self._events = 0
        clock.on_move = self.tick

    # ---- what happens to the cluster

    def submit(self, **fields: Any) -> SimJob:
        job = SimJob(len(self.jobs) + 100, submit_time=int(self.clock.now()), eligible=self.clock.now(), **fields)
        self.jobs[job.job_id] = job
        self.tick()
        return job

    def drain(self, name: str, reason: str = DRAIN) -> None:
        node = self.nodes[name]
        node.flags = sorted({*node.flags, "DRAIN"})
        node.reason, node.reason_time = reason, int(self.clock.now())

    def agent_requeues(self, job: SimJob) -> None:
        self._requeue(job)

    def node_dies(self, name: str) -> None:
        """SlurmdTimeout is over: DOWN, and the batch job there is requeued by Slurm."""
        node = self.nodes[name]
        node.state, node.flags = "down", [*node.flags, "NOT_RESPONDING"]
        node.reason, node.reason_time = node.reason or "Not responding", int(self.clock.now())
        for job in self.jobs.values():
            if job.state == "RUNNING" and name in job.nodes:
                if job.requeue:
                    self._requeue(job)
                else:
                    job.state, job.end_time = "NODE_FAIL", int(self.clock.now())

    def prolog_fails(self, job: SimJob, name: str, reason: str = DRAIN) -> None:
        """The gate drains, exits 1; Slurm requeues and holds."""
        self.drain(name, reason)
        self._requeue(job)
        job.priority, job.reason, job.description = 0, "JobHeldUser", "launch failed requeued held"

    def script_ends(self, job: SimJob, exit_status: int) -> None:
        job.state = "FAILED" if exit_status else "COMPLETED"
        job.exit_status, job.end_time = exit_status, int(self.clock.now())
        self._event(job)

    def tick(self) -> None:
        now = self.clock.now()
        for job in self.jobs.values():
            if job.completing_until is not None and now >= job.completing_until:
                job.completing_until = None
                if job.state == "PENDING":
                    job.nodes = []
                    job.eligible = now + 121
                    job.start_time = int(job.eligible)
                    if job.priority:
                        job.reason = "BeginTime"
            if job.state == "PENDING" and not job.completing and job.priority and job.eligible <= now:
                self._start(job)

    def _start(self, job: SimJob) -> None:
        taken = {
            name for other in self.jobs.values() if other.state == "RUNNING" or other.completing for name in other.nodes
        }
        free = [n for n in self.nodes.values() if n.state == "idle" and "DRAIN" not in n.flags and n.name not in taken]
        names = [n.name for n in free if n.name not in job.excluded and (not job.required or n.name in job.required)]
        if job.fits and len(set(job.fits) - set(job.excluded)) < job.node_count:
            job.priority, job.reason = 0, "BadConstraints"
            return
        names = [name for name in names if not job.fits or name in job.fits]
        if len(names) >= job.node_count:
            job.state, job.nodes, job.reason = "RUNNING", names[: job.node_count], "None"
            job.start_time = int(self.clock.now())
            # slurmd refuses a credential that is not of a later second than the last terminate, and the job is lost.
            # Where the clock was set back meanwhile, Slurm is lost anyway: then only the time that has passed counts.
            wall, monotonic = job.terminated
            last = int(min(wall, self.clock.now() - (self.clock.monotonic() - monotonic)))
            assert job.start_time > last, f"job {job.job_id}: a credential of the last terminate's second"
            job.starts.append((job.start_time, tuple(job.nodes)))

    def _requeue(self, job: SimJob) -> None:
        job.requeues.append(self.clock.now())
        job.restart_cnt += 1
        ran = job.state in ("RUNNING",)
        job.state, job.reason = "PENDING", "None"
        job.completing_until = self.clock.now() + (1.5 if ran else 0.0)
        # at the latest: Slurm sends it again to a node that does not answer
        job.terminated = (job.completing_until, self.clock.monotonic() + (1.5 if ran else 0.0))
        if ran:
            self._event(job)
        self.tick()

    def _event(self, job: SimJob) -> None:
        if self.spool is None:
            return
        self._events += 1
        path = self.spool / f"{job.job_id}.{int(self.clock.now())}-{self._events}.ev"
        lines = {"SPANK_AISTATION_RESUME": "auto", "JOB_ID": job.job_id, "UID": 20001, "EXIT_CODE": job.exit_status}
        lines |= {"NODELIST": hostlist.fold(job.nodes), "RESTART_COUNT": job.restart_cnt, "END": 1}
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

        os.utime(temporary, (self.clock.now(), self.clock.now()))
        temporary.rename(path)

    # ---- what the commands say

    def run(self, argv: Sequence[str], *, timeout_s: float, conf: str = "") -> str:
        words = [Path(argv[0]).name, *argv[1:]]
        line = " ".join(words)
        self.hook(f"before {line}")
        self.calls.append(line)
        self.clock.sleep(0.02)
        out = self._answer(words, line)
        self.hook(f"after {line}")
        return out

    def _answer(self, words: list[str], line: str) -> str:
        if self.down:
            if "--json" in words:
                return json.dumps({"errors": [{"description": "Failed while looking"}], "jobs": [], "nodes": []})
            raise SlurmUnavailable("scontrol: Unexpected message received")
        if words[0] == "squeue":
            return json.dumps({"errors": [], "jobs": [self._job_json(job) for job in self.jobs.values()]})
        if words[0] == "sinfo":
            return json.dumps({"errors": [], "nodes": [self._node_json(node) for node in self.nodes.values()]})
        if words[:3] == ["scontrol", "show", "node"]:
            return "\n\n".join(self._node_text(self.nodes[name]) for name in hostlist.expand(words[3]))
        if words[:3] == ["scontrol", "show", "reservation"]:
            shown = [f"ReservationName={name} {text}" for name, text in self.reservations.items()]
            return "\n\n".join(shown) or "No reservations in the system\n"
        if words == ["scontrol", "show", "config"]:
            return "".join(f"{key:<23} = {value}\n" for key, value in self.conf.items())
        for start, said in self.refuse.items():
            if line.startswith(start):
                raise SlurmRefused(f"{line}: {said}")
        self.changes.append(line)
        if words[:2] == ["scontrol", "requeue"]:
            job = self._find(words[2])
            if job.state == "PENDING":
                raise SlurmRefused(f"{line}: Job is pending execution for job {job.job_id}")
            if not job.requeue:
                raise SlurmRefused(f"{line}: Requested operation is presently disabled")
            self._requeue(job)
        elif words[:2] == ["scontrol", "release"]:
            job = self._find(words[2])
            job.releases += 1
            job.priority, job.reason, job.description = 1000, "None", ""
        elif words[:2] == ["scontrol", "uhold"]:
            job = self._find(words[2])
            if job.state != "PENDING":
                raise SlurmRefused(f"{line}: Job is no longer pending execution")
            job.holds += 1
            job.priority, job.reason, job.description = 0, "JobHeldUser", ""
        elif words[:3] == ["scontrol", "create", "reservation"]:
            fields = dict(word.split("=", 1) for word in words[3:])
            begin, end = _local(int(self.clock.now())), _local(int(self.clock.now()) + 300)
            nodes = f"Nodes={fields['Nodes']} Flags={fields['Flags']} Users={fields['Users']}"
            self.reservations[fields["ReservationName"]] = f"StartTime={begin} EndTime={end}\n   {nodes}"
        elif words[:2] == ["scontrol", "delete"]:
            name = words[2].partition("=")[2]
            if self.reservations.pop(name, None) is None:
                raise SlurmRefused(f"{line}: Requested reservation is invalid")
        elif words[:2] == ["scontrol", "update"] and words[2].startswith("ReservationName="):
            if words[2].partition("=")[2] not in self.reservations:
                raise SlurmRefused(f"{line}: Requested reservation is invalid")
        elif words[:2] == ["scontrol", "update"]:
            fields = dict(word.split("=", 1) for word in words[2:])
            if "NodeName" in fields:
                self._node_down(fields)
            else:
                self._update(line, fields)
        else:
            raise AssertionError(f"the stand-in for Slurm does not know: {line}")
        self.tick()
        return ""

    def _find(self, argument: str) -> SimJob:
        for job in self.jobs.values():
            if argument == (f"{job.array[0]}_{job.array[1]}" if job.array else str(job.job_id)):
                return job
        raise SlurmRefused(f"Invalid job id specified for job {argument}")

    def _node_down(self, fields: dict[str, str]) -> None:
        """DOWN ends what runs there: the job that would not end has ended."""
        node = self.nodes[fields["NodeName"]]
        assert fields["State"] == "DOWN"
        node.state, node.reason, node.flags = "down", fields["Reason"], ["DRAIN"]
        for job in self.jobs.values():
            if job.completing and node.name in job.nodes:
                job.completing_until = self.clock.now()

    def _update(self, line: str, fields: dict[str, str]) -> None:
        job = self._find(fields.pop("JobId"))
        pending_only = {"ExcNodeList", "StartTime"} & set(fields)
        if pending_only and job.state != "PENDING":
            raise SlurmRefused(f"{line}: Job is no longer pending execution for job {job.job_id}")
        if max(len(fields.get(key, "").encode()) for key in ("Comment", "AdminComment")) > 1024:
            raise SlurmRefused(f"{line}: Pathname of a file, directory or other parameter too long")
        if "ExcNodeList" in fields:
            names = hostlist.expand(fields["ExcNodeList"])
            if not set(names) <= set(self.nodes):
                raise SlurmRefused(f"{line}: Invalid node name specified for job {job.job_id}")
            job.excluded = names
        if "Switches" in fields:
            count, _, wait = fields["Switches"].partition("@")
            minutes, _, seconds = wait.partition(":")
            job.switches = (int(count), int(minutes) * 60 + int(seconds))
        job.reservation = fields.get("ReservationName", job.reservation)
        job.nice = int(fields.get("Nice", job.nice))
        job.comment = fields.get("Comment", job.comment)
        job.admin_comment = fields.get("AdminComment", job.admin_comment)
        if "StartTime" in fields:
            job.eligible = self.clock.now() + float(fields["StartTime"].partition("+")[2] or 0)

    def _job_json(self, job: SimJob) -> dict[str, Any]:
        states = [job.state] + (["COMPLETING"] if job.completing else [])
        row: dict[str, Any] = {
            "job_id": job.job_id,
            "name": "train",
            "user_id": 20001,
            "user_name": "alice",
            "partition": job.partition,
            # 22.05 shows COMPLETING instead of the base state
            "job_state": states if self.new_shape else states[-1],
            "state_reason": job.reason,
            "state_description": job.description,
            "nodes": hostlist.fold(job.nodes),
            "required_nodes": hostlist.fold(job.required),
            "excluded_nodes": hostlist.fold(job.excluded),
            "node_count": job.node_count,
            "submit_time": job.submit_time,
            "start_time": job.start_time + (1 if job.completing else 0),
            "eligible_time": int(job.eligible),
            "end_time": job.end_time,
            "restart_cnt": job.restart_cnt,
            "priority": job.priority,
            "exit_code": job.exit_status,
            "comment": job.comment,
            "admin_comment": job.admin_comment,
            "requeue": job.requeue,
            "batch_flag": job.batch,
            "gres_detail": [job.gres] * len(job.nodes) if job.state == "RUNNING" else [],
            "het_job_id": job.het,
            "nice": job.nice,
            "minimum_switches": job.switches[0],
            "maximum_switch_wait_time": job.switches[1],
            "resv_name": job.reservation,
            "array_job_id": job.array[0] if job.array else 0,
            "array_task_id": job.array[1] if job.array else None,
        }
        if self.new_shape:
            for key in ("start_time", "eligible_time", "end_time", "priority", "node_count"):
                row[key] = {"set": True, "infinite": False, "number": row[key]}
        return row

    def _node_json(self, node: SimNode) -> dict[str, Any]:
        row: dict[str, Any] = {
            "name": node.name,
            "state": node.state,
            "state_flags": node.flags,
            "reason": node.reason,
            "reason_changed_at": node.reason_time,
            "boot_time": node.boot_time,
            "comment": node.comment,
            "partitions": ["gpu"],
        }
        if self.new_shape:
            row["state"] = [node.state.upper(), *node.flags]
            del row["state_flags"]
        return row

    def _node_text(self, node: SimNode) -> str:
        state = "+".join([node.state.upper(), *node.flags])
        lines = [f"NodeName={node.name} Arch=x86_64", f"   State={state} Weight=1", "   Partitions=gpu"]
        lines.append(f"   BootTime={_local(node.boot_time)} SlurmdStartTime={_local(node.boot_time)}")
        if node.comment:
            lines.append(f"   Comment={node.comment}")
        if node.reason:
            lines.append(f"   Reason={node.reason} [root@{_local(node.reason_time)}]")
        return "\n".join(lines)


def _local(time: int) -> str:
    return datetime.fromtimestamp(time).isoformat(timespec="seconds")
