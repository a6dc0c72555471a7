"""Slurm's JSON of any version, decoded into the records of :mod:`aistation_slurm.slurm.client`.

Shapes that differ, from Slurm's data_parser sources v0.0.38 (22.05) to v0.0.45 (26.05) and recorded output:

=====================  =====================================================================================
numbers                plain or null in 22.05; ``{"set", "infinite", "number"}`` since; with ``+complex``: plain,
                       null or ``"Infinity"``. Times became such objects with v0.0.40
job_state              one word up to v0.0.39, a list since v0.0.40
node state             22.05: a lower-case word and the list ``state_flags``; a list since v0.0.39
exit_code              wait(2) status up to v0.0.39; ``{"status", "return_code", "signal": {"id"}}`` since;
                       ``signal.signal_id`` in places of v0.0.39
switches               ``minimum_switches`` up to v0.0.41, ``required_switches`` since v0.0.42
standard_output        expanded up to v0.0.42; a pattern since v0.0.43, with ``stdout_expanded`` beside it
=====================  =====================================================================================

Only the fields that are used are decoded (a job of 16 nodes is several kB, most of it cores). What is missing or of a
shape never seen counts as not told; what is no list of jobs at all is SlurmUnavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Optional, TypeVar, Union

import msgspec

from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.gres import tres_nodes
from aistation_slurm.slurm.hostlist import HostlistError
from aistation_slurm.slurm.states import UNKNOWN, job_state, node_state

__all__ = ["Reader", "jobs_from_json", "nodes_from_json", "number"]

log = logging.getLogger(__name__)

NO_VAL = 0xFFFFFFFE
_UNSET = frozenset({NO_VAL, NO_VAL + 1, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF})


class _JobRow(msgspec.Struct, gc=False):
    """What is read of a job; every other field is skipped undecoded."""

    job_id: Any = None
    job_state: Any = None
    state_reason: Any = None
    state_description: Any = None
    name: Any = None
    user_id: Any = None
    user_name: Any = None
    partition: Any = None
    nodes: Any = None
    required_nodes: Any = None
    excluded_nodes: Any = None
    start_time: Any = None
    eligible_time: Any = None
    end_time: Any = None
    submit_time: Any = None
    restart_cnt: Any = None
    comment: Any = None
    admin_comment: Any = None
    exit_code: Any = None
    priority: Any = None
    hold: Any = None
    node_count: Any = None
    max_nodes: Any = None
    time_limit: Any = None
    array_job_id: Any = None
    array_task_id: Any = None
    het_job_id: Any = None
    requeue: Any = None
    batch_flag: Any = None
    required_switches: Any = None
    minimum_switches: Any = None
    maximum_switch_wait_time: Any = None
    gres_detail: Any = None
    standard_output: Any = None
    stdout_expanded: Any = None
    cron: Any = None
    flags: Any = None
    resv_name: Any = None
    nice: Any = None
    tasks: Any = None
    tasks_per_node: Any = None
    cpus_per_task: Any = None
    tres_req_str: Any = None


class _NodeRow(msgspec.Struct, gc=False):
    name: Any = None
    state: Any = None
    state_flags: Any = None
    reason: Any = None
    reason_set_by_user: Any = None
    reason_changed_at: Any = None
    boot_time: Any = None
    slurmd_start_time: Any = None
    partitions: Any = None
    comment: Any = None
    extra: Any = None
    gres: Any = None
    hostname: Any = None
    active_features: Any = None


class _JobsReply(msgspec.Struct):
    jobs: Union[list[msgspec.Raw], msgspec.UnsetType] = msgspec.UNSET
    errors: Any = None


class _NodesReply(msgspec.Struct):
    nodes: Union[list[_NodeRow], msgspec.UnsetType] = msgspec.UNSET
    errors: Any = None


_Reply = TypeVar("_Reply", _JobsReply, _NodesReply)
_Shape = TypeVar("_Shape")
_JOBS: msgspec.json.Decoder[_JobsReply] = msgspec.json.Decoder(_JobsReply)
_JOB: msgspec.json.Decoder[_JobRow] = msgspec.json.Decoder(_JobRow)
_NODES: msgspec.json.Decoder[_NodesReply] = msgspec.json.Decoder(_NodesReply)


# ---- values


def number(value: Any) -> Optional[int]:
    """A number of any version: plain, ``{"set": true, "number": 5}``, text; None for unset, infinite or NO_VAL."""
    if type(value) is dict:
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if type(value) is int:
        return None if value in _UNSET else value
    if isinstance(value, float) and value.is_integer():
        return number(int(value))
    if isinstance(value, str) and value.isascii() and value.lstrip("-").isdigit() and len(value) <= 20:
        return number(int(value))
    return None


def _at_least(lowest: int, value: Any, default: int) -> int:
    if type(value) is int and lowest <= value < NO_VAL:
        return value  # by far the most
    found = number(value)
    return default if found is None or found < lowest else found


def _time(value: Any) -> Optional[int]:
    return _at_least(0, value, 0) or None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    """A list of texts, or 22.05's comma separated one."""
    if isinstance(value, str):
        value = value.split(",")
    return tuple(item for item in value if item and isinstance(item, str)) if isinstance(value, list) else ()


def _flag(value: Any) -> Optional[bool]:
    if isinstance(value, bool):
        return value
    found = number(value)
    return None if found is None else found != 0


def _nodes(value: Any) -> tuple[str, ...]:
    """Names from a hostlist or a list of them. Raises HostlistError."""
    text = value if isinstance(value, str) else ",".join(_texts(value))
    return _expanded(text) if text else ()


@lru_cache(maxsize=8192)
def _expanded(text: str) -> tuple[str, ...]:
    """The same jobs stand in one look after the other."""
    return tuple(hostlist.expand(text))


def _comments(row: _JobRow) -> tuple[str, str]:
    """The user's and the administrator's; the accounting shape has both in ``comment: {job, administrator}``."""
    if isinstance(row.comment, Mapping):
        return _text(row.comment.get("job")), _text(row.comment.get("administrator"))
    return _text(row.comment), _text(row.admin_comment)


def _exit(value: Any) -> tuple[int, int]:
    """Exit code and signal; (0, 0) also where the job has not ended."""
    if isinstance(value, Mapping) and "return_code" in value:
        signal = value.get("signal")
        if isinstance(signal, Mapping):
            signal = signal.get("id", signal.get("signal_id"))
        return _at_least(0, value["return_code"], 0), _at_least(0, signal, 0)
    status = _at_least(0, value, 0)
    return (status >> 8) & 0xFF, status & 0x7F


def _priority(row: _JobRow) -> int:
    if row.priority is None and row.hold is True:
        return 0
    return _at_least(0, row.priority, -1)


def _nice(value: Any) -> int:
    """22.05 prints a negative one as 32 bits without sign, and null for 0."""
    found = value if type(value) is int else number(value) or 0
    return found - 2**32 if found >= 2**31 else found


# ---- records


Text = Union[str, bytes, bytearray, memoryview]


class Reader:
    """Decodes one look after the other. A record that is as in the look before is the same object again.

    Most of a cluster is, and to build thousands of records anew is the larger part of what a look costs.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        """By a hash of the record's text: a job is several kB of it."""
        self._nodes: dict[str, tuple[_NodeRow, Node]] = {}
        """With the row, since the text of a node changes with its load."""

    def jobs(self, text: Text, command: str = "squeue --json") -> list[Job]:
        """Jobs of ``squeue --json`` (every state: filters of the command are ignored by some versions)."""
        reply = _reply(text, "jobs", command, _JOBS)
        assert reply.jobs is not msgspec.UNSET
        known: dict[int, Job] = {}
        found: dict[int, Job] = {}
        for raw in reply.jobs:
            digest = hash(bytes(raw))
            job = self._jobs.get(digest) or _believed(raw, command)
            known[digest] = job
            if job.job_id in found:
                log.warning("job %d appears twice in the output of %s; not believed", job.job_id, command)
                job = Job(job.job_id, UNKNOWN)
            found[job.job_id] = job
        self._jobs = known
        return list(found.values())

    def nodes(self, text: Text, command: str = "sinfo --json") -> list[Node]:
        """Nodes of ``sinfo --json`` (22.05) or ``scontrol show nodes --json``."""
        reply = _reply(text, "nodes", command, _NODES)
        assert reply.nodes is not msgspec.UNSET
        found: dict[str, tuple[_NodeRow, Node]] = {}
        for row in reply.nodes:
            name = _text(row.name)
            if not name or name in found:
                what = f"{name!r} twice" if name else "a node without name"
                raise SlurmUnavailable(f"{command} printed {what}; this list says nothing about nodes")
            known = self._nodes.get(name)
            found[name] = known if known is not None and known[0] == row else (row, _node(name, row))
        self._nodes = found
        return [node for _, node in found.values()]


def jobs_from_json(text: Text, command: str = "squeue --json") -> list[Job]:
    """Jobs of one answer."""
    return Reader().jobs(text, command)


def nodes_from_json(text: Text, command: str = "sinfo --json") -> list[Node]:
    """Nodes of one answer."""
    return Reader().nodes(text, command)


def _believed(raw: msgspec.Raw, command: str) -> Job:
    """One job; in state ``UNKNOWN`` where a hostlist of it is none. Raises SlurmUnavailable for what is no job at all."""
    try:
        row = _decode(bytes(raw), _JOB)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise SlurmUnavailable(f"{command} printed 'jobs' in a shape that is not known: {exc}") from exc
    job_id = _at_least(1, row.job_id, 0)
    if not job_id:
        raise SlurmUnavailable(f"{command} printed a job without job_id; this list says nothing about jobs")
    try:
        return _job(job_id, row)
    except HostlistError as exc:
        log.warning("job %d in the output of %s is not believed: %s", job_id, command, exc)
        return Job(job_id, UNKNOWN)


def _job(job_id: int, row: _JobRow) -> Job:
    state, flags = job_state(row.job_state)
    code, signal = _exit(row.exit_code)
    comment, admin_comment = _comments(row)
    array_id = _at_least(1, row.array_job_id, 0)
    limit = _at_least(0, row.time_limit, -1)
    switches = row.minimum_switches if row.required_switches is None else row.required_switches
    return Job(
        job_id=job_id,
        state=state,
        flags=flags,
        reason=_text(row.state_description) or _text(row.state_reason),
        name=_text(row.name),
        user_id=_at_least(0, row.user_id, -1),
        user_name=_text(row.user_name),
        partition=_text(row.partition),
        nodes=_nodes(row.nodes),
        required_nodes=_nodes(row.required_nodes),
        excluded_nodes=_nodes(row.excluded_nodes),
        start_time=_time(row.start_time),
        eligible_time=_time(row.eligible_time),
        end_time=_time(row.end_time),
        submit_time=_time(row.submit_time),
        restart_cnt=_at_least(0, row.restart_cnt, 0),
        comment=comment,
        admin_comment=admin_comment,
        exit_code=code,
        exit_signal=signal,
        priority=_priority(row),
        node_count=_at_least(0, row.node_count, 0),
        min_nodes=tres_nodes(_text(row.tres_req_str)),
        max_nodes=_at_least(0, row.max_nodes, 0),
        time_limit_s=limit * 60 if limit >= 0 else None,
        array_job_id=array_id or None,
        array_task_id=number(row.array_task_id) if array_id else None,
        het_job_id=_at_least(1, row.het_job_id, 0) or None,
        requeue=_flag(row.requeue),
        # 22.05 sets BatchFlag=2 where a batch host came back without its script, which prints as false; salloc is never requeued
        batch=_flag(row.batch_flag) is not False or _at_least(0, row.restart_cnt, 0) > 0,
        required_switches=_at_least(0, switches, 0),
        switch_wait_s=_at_least(0, row.maximum_switch_wait_time, 0),
        gres_detail=tuple(_text(item) for item in row.gres_detail) if isinstance(row.gres_detail, list) else (),
        std_out=_text(row.stdout_expanded) or _text(row.standard_output),
        cron=bool(_text(row.cron)) or "CRON_JOB" in _texts(row.flags),
        reservation=_text(row.resv_name),
        nice=_nice(row.nice),
        tasks=_at_least(0, row.tasks, 0),
        tasks_per_node=_at_least(0, row.tasks_per_node, 0),
        cpus_per_task=_at_least(1, row.cpus_per_task, 1),
    )


def _node(name: str, row: _NodeRow) -> Node:
    state, flags = node_state(row.state, row.state_flags)
    return Node(
        name=name,
        state=state,
        flags=flags,
        reason=_text(row.reason),
        reason_user=_text(row.reason_set_by_user),
        reason_time=_time(row.reason_changed_at),
        boot_time=_time(row.boot_time),
        slurmd_start_time=_time(row.slurmd_start_time),
        partitions=_texts(row.partitions),
        comment=_text(row.comment),
        gres=_text(row.gres),
        extra=_text(row.extra),
        hostname=_text(row.hostname),
        features=_texts(row.active_features),
    )


def _reply(text: Text, key: str, command: str, decoder: msgspec.json.Decoder[_Reply]) -> _Reply:
    """The whole answer. Empty or broken output is an error, never "none".

    So is a filled ``errors`` list: with slurmctld down, 22.05 ends with code 0, an empty list and the error in there.
    """
    try:
        reply = _decode(text, decoder)
    except msgspec.ValidationError as exc:
        raise SlurmUnavailable(f"{command} printed {key!r} in a shape that is not known: {exc}") from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        empty = len(text) < 100 and not (text if isinstance(text, str) else bytes(text)).strip()
        what = "printed nothing" if empty else f"printed no JSON with {key!r}"
        raise SlurmUnavailable(f"{command} {what}; this says nothing about {key}") from exc
    if reply.errors:
        errors = reply.errors if isinstance(reply.errors, list) else [reply.errors]
        said = "; ".join(_error_text(error) for error in errors)
        raise SlurmUnavailable(f"{command}: {said}; is slurmctld running?")
    if getattr(reply, key) is msgspec.UNSET:
        raise SlurmUnavailable(f"{command} printed no JSON with {key!r}; this says nothing about {key}")
    return reply


def _decode(text: Text, decoder: msgspec.json.Decoder[_Shape]) -> _Shape:
    """Users may name a job with bytes that are no UTF-8, and Slurm prints them as they are."""
    try:
        return decoder.decode(text)
    except UnicodeEncodeError:
        return decoder.decode(str(text).encode("utf-8", "replace"))
    except msgspec.DecodeError as exc:
        if isinstance(text, str) or "UTF-8" not in str(exc):
            raise
        return decoder.decode(str(text, "utf-8", "replace"))


def _error_text(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    return str(error.get("description") or error.get("error") or error)
