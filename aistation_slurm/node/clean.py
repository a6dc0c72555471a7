"""The epilog's work in the full interpreter: ``python -m aistation_slurm.node.clean``, started by node/cleanup.py.

What it prints goes to slurmd's log and syslog. Reads the job from the epilog's environment; every number is checked.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import msgspec

from aistation_slurm.config import Config, load
from aistation_slurm.errors import AistationError, StateFileError
from aistation_slurm.node import jobs, state
from aistation_slurm.node.bounded import forks_end_with_us
from aistation_slurm.node.gpu_memory import leftover_memory
from aistation_slurm.node.jobs import JobRecord
from aistation_slurm.node.lock import agent_is_running
from aistation_slurm.node.orphans import EndedJob, judge
from aistation_slurm.node.processes import ProcessFacts, live_jobs, read_process, start_ticks
from aistation_slurm.probes.gres import gpu_minors
from aistation_slurm.probes.nvml import GpuSnapshot, read_nvml

__all__ = ["end_processes", "ended_job", "main", "orphans"]

HANG = "gpu.driver_hang"
NVML_DEADLINE_S = 5.0
KILL_WAIT_S = 2.0


def main() -> int:
    """Exit code 0; 3 with one line where the configuration cannot be used."""
    record = jobs.from_environment(os.environ, time.time())
    try:
        config = load()
    except AistationError as exc:
        print(exc)
        return 3
    known = jobs.read(config.node.state_dir, record.job_id)
    if not record.gpus and known is not None:
        record = known  # Slurm's epilog does not name the GPUs in every version
    has_agent = agent_is_running(config.node.state_dir)
    try:
        _clean(config, record)
    finally:
        jobs.finish(config.node.state_dir, record.job_id, has_agent)
        _refresh(config)
    return 0


def _clean(config: Config, record: JobRecord) -> None:
    if record.job_id <= 0 or record.uid < 0:
        print("the environment names no job or no uid; nothing is ended")
        return
    gpus = _own_gpus(config, record)
    if not gpus:
        return
    job = ended_job(record, jobs.read_all(config.node.state_dir), live_jobs())
    found = orphans(gpus, job, config.epilog.protect)
    if found and not config.enforcing(config.epilog):
        print(f"observe mode: would end {', '.join(_name(p) for p in found)}")
    elif found:
        left = end_processes(found, config.epilog.term_grace_s)
        for process in left:
            print(f"{_name(process)} did not end after SIGKILL; it sits in the kernel")
        gpus = _own_gpus(config, record)
    for line in leftover_memory(gpus, config.epilog.memory_free_mib):
        print(line)


def _own_gpus(config: Config, record: JobRecord) -> list[GpuSnapshot]:
    """The job's GPUs as NVML shows them now; none, with a line, where that cannot be told."""
    try:
        known = state.read(f"{config.node.state_dir}/state")
        if any(line.check == HANG and line.status != "ok" for line in known.node_findings):
            print("the driver does not answer: processes are not looked at")
            return []
    except AistationError:
        pass
    probe = msgspec.structs.replace(config.probe, nvml_deadline_s=min(NVML_DEADLINE_S, config.probe.nvml_deadline_s))
    snapshot, result = read_nvml(probe)
    if result.late and result.pid:
        try:
            os.killpg(result.pid, signal.SIGKILL)
        except OSError:
            pass
    if snapshot.error or not snapshot.gpus:
        print(f"NVML could not be asked, so no process is ended: {snapshot.error or 'no GPU'}")
        return []
    name = os.environ.get("SLURMD_NODENAME", "")
    minors = gpu_minors(Path(config.node.gres_conf), name) or sorted(g.minor for g in snapshot.gpus if g.minor >= 0)
    own = {minors[index] for index in record.gpus if index < len(minors)}
    return [gpu for gpu in snapshot.gpus if gpu.minor in own]


def ended_job(record: JobRecord, records: dict[int, JobRecord], live: frozenset[int]) -> EndedJob:
    """Other jobs on this node: those with a slurmstepd, and those that the gate let start and no epilog has removed."""
    others = (live | frozenset(records)) - {record.job_id}
    same_user = frozenset(i for i in others if i not in records or records[i].uid in (record.uid, -1))
    return EndedJob(record.job_id, record.uid, others=same_user, live=others)


def orphans(
    gpus: Sequence[GpuSnapshot], job: EndedJob, protect: Sequence[str], proc: str = "/proc"
) -> list[ProcessFacts]:
    """The processes on these GPUs that may be ended; says why for each, also for those that are left."""
    found = []
    for pid in sorted({p.pid for gpu in gpus for p in gpu.processes}):
        process = read_process(pid, proc)
        if process is None:
            continue
        verdict = judge(process, job, protect)
        print(f"{_name(process)} holds a GPU of the job and {verdict.why}: {'ended' if verdict.end else 'left alone'}")
        if verdict.end:
            found.append(process)
    return found


def end_processes(processes: Sequence[ProcessFacts], grace_s: float) -> list[ProcessFacts]:
    """SIGTERM, then SIGKILL after ``grace_s``; those that still are there. A pid that was used again is never hit."""
    held: dict[int, ProcessFacts] = {}
    try:
        for process in processes:
            fd = _open_pidfd(process)
            if fd is not None:
                held[fd] = process
        _signal(held, signal.SIGTERM)
        _wait(held, grace_s)
        _signal(held, signal.SIGKILL)
        _wait(held, KILL_WAIT_S)
        return list(held.values())
    finally:
        for fd in held:
            os.close(fd)


def _open_pidfd(process: ProcessFacts) -> Optional[int]:
    """A handle on exactly this process, or None when it is gone (the pid may be someone else's by now)."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if start_ticks(process.pid) != process.start:
        os.close(fd)
        return None
    return fd


def _signal(held: dict[int, ProcessFacts], number: signal.Signals) -> None:
    for fd in held:
        try:
            signal.pidfd_send_signal(fd, number)
        except OSError:
            pass  # it ended meanwhile


def _wait(held: dict[int, ProcessFacts], seconds: float) -> None:
    """Until all have ended or time is up; those that ended leave ``held``."""
    deadline = time.monotonic() + seconds
    poller = select.poll()
    for fd in held:
        poller.register(fd, select.POLLIN)
    while held and time.monotonic() < deadline:
        for fd, _ in poller.poll(1000 * max(0.0, deadline - time.monotonic())):
            poller.unregister(fd)
            os.close(fd)
            del held[fd]


def _refresh(config: Config) -> None:
    """The agent looks again at once; without one, this looks and drains as `aistation check --act` would."""
    state_dir = config.node.state_dir
    if agent_is_running(state_dir):
        try:
            state.write_file(f"{state_dir}/refresh", b"")
        except OSError as exc:
            print(f"{state_dir}/refresh: {exc.strerror}")
        return
    # only here, since these imports cost more than all the rest of the epilog
    from aistation_slurm.node import history
    from aistation_slurm.node.drain import drain_for
    from aistation_slurm.node.health import check_node
    from aistation_slurm.node.publish import publish

    try:
        report = check_node(config, now=time.time(), events=history.events(config))
        try:
            publish(report, config)
        except StateFileError as exc:
            print(exc)
        if config.enforcing(config.epilog):
            from aistation_slurm.slurm import connect

            said = drain_for(report, config, connect(config))
            if said:
                print(said)
    except AistationError as exc:
        print(exc)


def _name(process: ProcessFacts) -> str:
    return f"process {process.pid} ({process.name})"


if __name__ == "__main__":
    forks_end_with_us()
    sys.exit(main())
