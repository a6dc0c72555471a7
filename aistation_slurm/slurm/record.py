"""Records that ``scontrol show job`` and ``scontrol show node`` print (the form of several lines), as fallback for JSON.

The form cannot be read without doubt: values hold blanks, ``=`` and, where a user chose them, line ends. So a value ends
only before a key that scontrol is known to print, and a job whose decisive keys appear twice is not believed at all.
"""

from __future__ import annotations

import logging
import re
from datetime import datetime
from typing import Optional

from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Job, Node, Reservation
from aistation_slurm.slurm.gres import tres_nodes
from aistation_slurm.slurm.hostlist import HostlistError
from aistation_slurm.slurm.node_comment import shown_comment
from aistation_slurm.slurm.states import UNKNOWN, job_state, node_state

__all__ = [
    "job_from_text",
    "jobs_from_text",
    "node_from_text",
    "nodes_from_text",
    "record_fields",
    "reservations_from_text",
]

log = logging.getLogger(__name__)

_WHOLE_LINE_WORDS = (
    "Reason OS Comment AdminComment SystemComment Extra Command WorkDir StdErr StdIn StdOut BatchScript SubmitLine"
)
_WHOLE_LINE = frozenset(_WHOLE_LINE_WORDS.split())
"""Keys whose value runs to the end of the line when they stand at its beginning, blanks and "=" included."""
_WORDS = """
JobId ArrayJobId ArrayTaskId ArrayTaskThrottle HetJobId HetJobOffset HetJobIdSet JobName SLUID UserId GroupId MCS_label
Priority Nice Account QOS WCKey JobState Reason FailedNode Dependency Requeue Restarts BatchFlag Reboot ExitCode
DerivedExitCode RunTime TimeLimit TimeMin SubmitTime EligibleTime AccrueTime ResizeTime StartTime EndTime Deadline
CompletingTime CronJob CrontabSpec PreemptEligibleTime PreemptTime SuspendTime SecsPreSuspend LastSchedEval Scheduler
Partition AllocNode:Sid ReqNodeList ExcNodeList NodeList SchedNodeList BatchHost StepMgrEnabled FedOrigin
FedViableSiblings FedActiveSiblings NumNodes NumCPUs NumTasks CPUs/Task ReqB:S:C:T TRES ReqTRES AllocTRES Socks/Node
NtasksPerN:B:S:C CoreSpec ThreadSpec JOB_GRES Nodes CPU_IDs Mem GRES MinCPUsNode MinMemoryNode MinMemoryCPU
MinTmpDiskNode Features BatchFeatures ClusterFeatures DelayBoot Reservation OverSubscribe Exclusive Contiguous Licenses
LicensesAlloc Network Power TresPerNode TresPerJob TresPerTask TresPerSocket TresPerStep TresBind TresFreq CpusPerTres
MemPerTres NtasksPerTRES GresEnforceBind GresAllowTaskSharing GresOneTaskPerSharing KillOInInvalidDependent
KillOnInvalidDependent OOMKillStep SpreadJob SpreadSegments ConsolidateSegments ExpeditedRequeue SegmentSize MailUser
MailType Container ContainerID ContainerType BurstBuffer BurstBufferState Burst_Buffer Prefer Clusters Switches
SELinuxContext MemUpdate
NodeName Arch CoresPerSocket CPUAlloc CPUEfctv CPUTot CPULoad CPUSpecList CoreSpecCount CpuBind AvailableFeatures
ActiveFeatures Gres GresDrain GresUsed NodeAddr NodeHostName BcastAddr Port Version RealMemory AllocMem FreeMem
MemSpecLimit RestrictedCoresPerGPU Sockets Boards State NextState ThreadsPerCore TmpDisk Weight Owner Partitions BootTime
SlurmdStartTime LastBusyTime ResumeAfterTime CfgTRES CapWatts CurrentWatts AveWatts ExtSensorsJoules ExtSensorsWatts
ExtSensorsTemp ReservationName InstanceId InstanceType Topology TLSCertLastRenewal TLSCertTokenSet
"""
# what any release from 22.05 to 26.05 prints (src/scontrol/info_job.c, info_node.c)
_KEYS = _WHOLE_LINE.union(_WORDS.split())
_DECISIVE_WORDS = "JobId JobState UserId Priority Requeue Restarts BatchFlag StartTime NodeList AdminComment"
_DECISIVE = frozenset(_DECISIVE_WORDS.split())
_KEY = re.compile(r"(?:^|(?<=\s))([A-Za-z][\w:/]*)=")


def record_fields(text: str) -> dict[str, str]:
    """``Key=value`` pairs of one record; of a key that appears twice, the first."""
    return _scan(text)[0]


def _scan(text: str) -> tuple[dict[str, str], set[str]]:
    """The fields, and the keys that appear more than once."""
    fields: dict[str, str] = {}
    repeated: set[str] = set()
    for line in text.splitlines():
        starts = [m for m in _KEY.finditer(line) if m.group(1) in _KEYS]
        if starts and starts[0].group(1) in _WHOLE_LINE and not line[: starts[0].start()].strip():
            starts = starts[:1]
        for match, following in zip(starts, [*starts[1:], None]):
            key = match.group(1)
            if key in fields:
                repeated.add(key)
                continue
            fields[key] = line[match.end() : following.start() if following else None].strip()
    return fields, repeated


def _records(text: str, first_key: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text) if part.lstrip().startswith(f"{first_key}=")]


def _time(text: Optional[str]) -> Optional[int]:
    """Unix seconds (SLURM_TIME_FORMAT=%s) or local time as scontrol prints it; None for Unknown, None, N/A."""
    if text and text.isascii() and text.isdigit() and len(text) < 12:
        return int(text) or None
    try:
        return int(datetime.fromisoformat(text or "").timestamp())
    except ValueError:
        return None


def _int(text: Optional[str], default: int = 0) -> int:
    match = re.match(r"-?\d{1,18}", text or "", re.ASCII)
    return int(match.group()) if match else default


def _nodes(text: Optional[str]) -> tuple[str, ...]:
    return tuple(hostlist.expand(text or ""))


def _minutes_s(text: str) -> Optional[int]:
    """``1-02:03:04`` -> seconds; None for UNLIMITED."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9}):(\d{1,9}):(\d{1,9})", text, re.ASCII)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(g or 0) for g in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def jobs_from_text(text: str) -> list[Job]:
    """Every record. One that cannot be read without doubt comes back in state ``UNKNOWN``, which nothing acts on."""
    found: dict[int, Job] = {}
    for record in _records(text, "JobId"):
        job = job_from_text(record)
        if job.job_id in found:
            log.warning("job %d appears twice in scontrol's output; not believed", job.job_id)
            job = Job(job.job_id, UNKNOWN)
        found[job.job_id] = job
    return list(found.values())


def job_from_text(text: str) -> Job:
    """One record of ``scontrol show job``."""
    fields, repeated = _scan(text)
    job_id = _int(fields.get("JobId"))
    if repeated & _DECISIVE:
        log.warning("job %d: %s appear twice in scontrol's output; not believed", job_id, ", ".join(sorted(repeated)))
        return Job(job_id, UNKNOWN)
    try:
        return _job(job_id, fields, text)
    except HostlistError as exc:
        log.warning("job %d in scontrol's output is not believed: %s", job_id, exc)
        return Job(job_id, UNKNOWN)


def _job(job_id: int, fields: dict[str, str], text: str) -> Job:
    nodes = _nodes(fields.get("NodeList"))
    state, flags = job_state(fields.get("JobState", ""))
    user, _, uid = fields.get("UserId", "").rstrip(")").rpartition("(")
    code, _, signal = fields.get("ExitCode", "0:0").partition(":")
    task = fields.get("ArrayTaskId", "")
    fewest, _, most = fields.get("NumNodes", "").partition("-")
    return Job(
        job_id=job_id,
        state=state,
        flags=flags,
        # 22.05 puts underscores for the blanks of a description, and JSON does not
        reason=fields.get("Reason", "").replace("_", " "),
        name=fields.get("JobName", ""),
        user_id=_int(uid, -1),
        user_name=user,
        partition=fields.get("Partition", ""),
        nodes=nodes,
        required_nodes=_nodes(fields.get("ReqNodeList")),
        excluded_nodes=_nodes(fields.get("ExcNodeList")),
        start_time=_time(fields.get("StartTime")),
        eligible_time=_time(fields.get("EligibleTime")),
        end_time=_time(fields.get("EndTime")),
        submit_time=_time(fields.get("SubmitTime")),
        restart_cnt=_int(fields.get("Restarts")),
        comment=_null(fields.get("Comment")),
        admin_comment=_null(fields.get("AdminComment")),
        exit_code=_int(code),
        exit_signal=_int(signal),
        priority=_int(fields.get("Priority"), -1),
        node_count=_int(fewest),
        # 22.05 has one TRES: what is asked for while PENDING, what is given after
        min_nodes=tres_nodes(fields.get("ReqTRES") or (fields.get("TRES", "") if state == "PENDING" else "")),
        max_nodes=_int(most),
        time_limit_s=_minutes_s(fields.get("TimeLimit", "")),
        array_job_id=_int(fields.get("ArrayJobId")) or None,
        array_task_id=int(task) if task.isdecimal() and len(task) < 10 else None,
        het_job_id=_int(fields.get("HetJobId")) or None,
        requeue=None if "Requeue" not in fields else fields["Requeue"] == "1",
        batch=fields.get("BatchFlag", "1") != "0",
        required_switches=_int(fields.get("Switches", "").partition("@")[0]),
        switch_wait_s=_minutes_s(fields.get("Switches", "").partition("@")[2]) or 0,
        gres_detail=_gres_detail(text, len(nodes)),
        std_out=fields.get("StdOut", ""),
        cron="CrontabSpec" in fields,
        reservation=_null(fields.get("Reservation")),
        nice=_int(fields.get("Nice")),
        tasks=_int(fields.get("NumTasks")),
        tasks_per_node=_int(fields.get("NtasksPerN:B:S:C")),
        cpus_per_task=max(_int(fields.get("CPUs/Task"), 1), 1),
    )


_ALLOCATED = re.compile(r"^ +Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(.*)$", re.MULTILINE)


def _gres_detail(text: str, nodes: int) -> tuple[str, ...]:
    """Of ``scontrol --details``, one text a node: ``Nodes=gpu[1-2] CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)`` -> two.

    Empty where it is not one a node: a line end in a comment can add such lines.
    """
    found: list[str] = []
    for names, gres in _ALLOCATED.findall(text):
        found += [gres.strip()] * len(hostlist.expand(names))
    return tuple(found) if len(found) == nodes else ()


def _null(text: Optional[str]) -> str:
    return "" if text in (None, "(null)") else str(text)


def nodes_from_text(text: str) -> list[Node]:
    """Every record of ``scontrol show node``."""
    # a Comment may hold empty lines
    records = re.split(r"\n\s*\n(?=NodeName=)", text)
    return [node_from_text(record) for record in records if record.lstrip().startswith("NodeName=")]


_REASON = re.compile(r"^(?P<text>.*) \[(?P<user>[^@\]]*)@(?P<time>[^\]]*)\]$")


def node_from_text(text: str) -> Node:
    """One record of ``scontrol show node``."""
    fields = record_fields(text)
    state, flags = node_state(fields.get("State", ""))
    reason = fields.get("Reason", "")
    match = _REASON.match(reason)
    return Node(
        name=fields.get("NodeName", ""),
        state=state,
        flags=flags,
        reason=match.group("text") if match else reason,
        reason_user=match.group("user") if match else "",
        reason_time=_time(match.group("time")) if match else None,
        boot_time=_time(fields.get("BootTime")),
        slurmd_start_time=_time(fields.get("SlurmdStartTime")),
        partitions=tuple(p for p in fields.get("Partitions", "").split(",") if p),
        comment=shown_comment(text),
        gres=_null(fields.get("Gres")),
        extra=_null(fields.get("Extra")),
        hostname=fields.get("NodeHostName", ""),
        features=_list(fields.get("ActiveFeatures")),
    )


def reservations_from_text(text: str) -> list[Reservation]:
    """Every record of ``scontrol show reservation``. Only operators choose what stands there."""
    found = []
    for part in _records(text, "ReservationName"):
        fields = dict(word.partition("=")[::2] for word in part.split())
        found.append(
            Reservation(
                name=fields["ReservationName"],
                nodes=_nodes(fields.get("Nodes")),
                start_time=_time(fields.get("StartTime")),
                end_time=_time(fields.get("EndTime")),
                flags=frozenset(_list(fields.get("Flags"))),
                users=_list(fields.get("Users")),
            )
        )
    return found


def _list(text: Optional[str]) -> tuple[str, ...]:
    return tuple(item for item in _null(text).split(",") if item)
