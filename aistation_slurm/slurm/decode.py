"""Slurm's JSON of any version, decoded into the records of :mod:`aistation_slurm.slurm.client`.

Shapes that differ (found in the releases' own output): job and node state are one string up to 23.02 and a list after;
22.05 keeps node flags in ``state_flags`` with a lower-case state; numbers are plain up to 22.05 and
``{"set", "infinite", "number"}`` after; ``minimum_switches`` became ``required_switches`` in data_parser v0.0.42.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import msgspec

from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.states import JOB_FLAGS, split_state

__all__ = ["job_from_mapping", "jobs_from_json", "nodes_from_json", "number"]

NO_VAL = 0xFFFFFFFE


def number(value: Any) -> Optional[int]:
    """A number of any version: plain, ``{"set": true, "number": 5}``, text; None for unset, infinite or NO_VAL."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = int(value)
    except (TypeError, ValueError):
        return None
    return None if found in (NO_VAL, NO_VAL + 1, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF) else found


def _time(value: Any) -> Optional[int]:
    return number(value) or None


def _load(text: str, key: str, command: str) -> list[dict[str, Any]]:
    """The list under ``key``. Empty or broken output is an error, never "none".

    So is a filled ``errors`` list: with slurmctld down, 22.05 ends with code 0, an empty list and the error in there.
    """
    try:
        whole = msgspec.json.decode(text)
        found = whole[key]
        errors = whole.get("errors")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as exc:
        what = "printed nothing" if not text.strip() else f"printed no JSON with {key!r}"
        raise SlurmUnavailable(f"{command} {what}; this says nothing about {key}") from exc
    if errors:
        said = "; ".join(_error_text(e) for e in errors) if isinstance(errors, list) else str(errors)
        raise SlurmUnavailable(f"{command}: {said}; is slurmctld running?")
    if not isinstance(found, list):
        raise SlurmUnavailable(f"{command} printed {key!r} as {type(found).__name__}, expected a list")
    return [row for row in found if isinstance(row, dict)]


def _error_text(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    return str(error.get("description") or error.get("error") or error)


def jobs_from_json(text: str, command: str = "squeue --json") -> list[Job]:
    """Jobs of ``squeue --json`` (every state: filters of the command are ignored by some versions)."""
    return [job_from_mapping(row) for row in _load(text, "jobs", command)]


def job_from_mapping(row: Mapping[str, Any]) -> Job:
    """One element of the ``jobs`` list."""
    state, flags = split_state(row.get("job_state"), known_flags=JOB_FLAGS)
    code, signal = _exit(row)
    array_id = number(row.get("array_job_id"))
    limit = number(row.get("time_limit"))
    detail = row.get("gres_detail") or ()
    switches = row.get("required_switches", row.get("minimum_switches"))
    requeue = row.get("requeue")
    return Job(
        job_id=number(row.get("job_id")) or 0,
        state=state,
        flags=flags,
        reason=str(row.get("state_description") or row.get("state_reason") or ""),
        name=str(row.get("name") or ""),
        user_id=_or(number(row.get("user_id")), -1),
        user_name=str(row.get("user_name") or ""),
        partition=str(row.get("partition") or ""),
        nodes=_nodes(row.get("nodes")),
        required_nodes=_nodes(row.get("required_nodes")),
        excluded_nodes=_nodes(row.get("excluded_nodes")),
        start_time=_time(row.get("start_time")),
        eligible_time=_time(row.get("eligible_time")),
        end_time=_time(row.get("end_time")),
        submit_time=_time(row.get("submit_time")),
        restart_cnt=number(row.get("restart_cnt")) or 0,
        comment=_comment(row, "comment"),
        admin_comment=_comment(row, "admin_comment"),
        exit_code=code,
        exit_signal=signal,
        priority=_or(number(row.get("priority")), 0),
        node_count=number(row.get("node_count")) or 0,
        time_limit_s=limit * 60 if limit is not None else None,
        array_job_id=array_id or None,
        array_task_id=number(row.get("array_task_id")) if array_id else None,
        het_job_id=number(row.get("het_job_id")) or None,
        requeue=bool(requeue) if requeue is not None else None,
        batch=_batch(row),
        required_switches=number(switches) or 0,
        gres_detail=tuple(str(d) for d in detail) if isinstance(detail, (list, tuple)) else (),
        std_out=str(row.get("standard_output") or ""),
    )


def _or(value: Optional[int], default: int) -> int:
    return default if value is None else value


def _batch(row: Mapping[str, Any]) -> bool:
    flag = row.get("batch_flag")
    return bool(number(flag) if not isinstance(flag, bool) else flag) if flag is not None else True


def _comment(row: Mapping[str, Any], key: str) -> str:
    """Comments moved into ``comment: {job, administrator, system}`` in some versions."""
    value = row.get(key)
    whole = row.get("comment")
    if isinstance(whole, Mapping):
        value = whole.get("job" if key == "comment" else "administrator")
    return str(value or "")


def _exit(row: Mapping[str, Any]) -> tuple[int, int]:
    """Exit code and signal: a wait(2) status in 22.05, a mapping later."""
    value = row.get("exit_code")
    if isinstance(value, Mapping) and "return_code" in value:
        signal = value.get("signal") or {}
        found = signal.get("signal_id", signal.get("id")) if isinstance(signal, Mapping) else signal
        return number(value["return_code"]) or 0, number(found) or 0
    status = number(value) or 0
    return (status >> 8) & 0xFF, status & 0x7F


def _nodes(value: Any) -> tuple[str, ...]:
    return tuple(hostlist.expand(",".join(map(str, value)) if isinstance(value, list) else str(value or "")))


def nodes_from_json(text: str, command: str = "sinfo --json") -> list[Node]:
    """Nodes of ``sinfo --json`` (22.05) or ``scontrol show nodes --json``."""
    found = []
    for row in _load(text, "nodes", command):
        state, flags = split_state(row.get("state"), row.get("state_flags"))
        found.append(
            Node(
                name=str(row.get("name") or ""),
                state=state,
                flags=flags,
                reason=str(row.get("reason") or ""),
                reason_user=str(row.get("reason_set_by_user") or ""),
                reason_time=_time(row.get("reason_changed_at")),
                boot_time=_time(row.get("boot_time")),
                slurmd_start_time=_time(row.get("slurmd_start_time")),
                partitions=tuple(str(p) for p in row.get("partitions") or ()),
                comment=str(row.get("comment") or ""),
                gres=str(row.get("gres") or ""),
            )
        )
    return found
