"""Why a job is where it is, or why it waits, and what would start it sooner. Pure: Slurm's records in, sentences out.

Counted in whole idle nodes, as training jobs ask for them; Slurm may fit a job that wants less than a node beside another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.placement.note import Note, read_note
from aistation_slurm.placement.occupancy import PartitionUse, QueuedJob, Use
from aistation_slurm.placement.view import View, queue
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.topology.model import Switch, Topology, natural
from aistation_slurm.topology.shapes import plural

__all__ = ["Explanation", "explain", "fewest_leaves"]


@dataclass(frozen=True)
class Explanation:
    """leaves: that the job's nodes hang on, by name; optimum: the fewest that so many nodes of the partition can have.

    sooner: each a thing that would start a waiting job sooner, with what it would do.
    """

    job: str
    state: str
    nodes: int
    leaves: Mapping[str, tuple[str, ...]]
    optimum: int
    why: tuple[str, ...] = ()
    sooner: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "job": self.job,
            "state": self.state,
            "nodes": self.nodes,
            "leaves": {leaf: list(nodes) for leaf, nodes in self.leaves.items()},
            "leaf_count": len(self.leaves),
            "optimum": self.optimum,
            "why": list(self.why),
            "sooner": list(self.sooner),
        }


def fewest_leaves(sizes: Iterable[int], nodes: int) -> int:
    """Leaves that ``nodes`` nodes need at least where leaves have so many; 0 where all of them do not hold that many."""
    left = nodes
    for count, size in enumerate(sorted(sizes, reverse=True), start=1):
        left -= size
        if left <= 0:
            return count
    return 0


def explain(job: Job, jobs: Sequence[Job], nodes: Sequence[Node], topology: Topology, now: float) -> Explanation:
    """now: unix seconds."""
    if not topology.leaf_of:
        topology = Topology("tree", (Switch("no topology", tuple(node.name for node in nodes)),))
    view = View()
    view.update(topology, nodes, jobs)
    name = job.partition.partition(",")[0]
    use = next((p for p in view.occupancy.partitions if p.name == name), PartitionUse(name, ()))
    note = read_note(job.admin_comment)
    started = bool(job.nodes) and job.state != "PENDING"
    wanted = len(job.nodes) if started else (job.min_nodes or job.node_count or 1)
    optimum = fewest_leaves([len(leaf.nodes) for leaf in use.leaves], wanted)
    if started:
        leaves: dict[str, list[str]] = {}
        for node in job.nodes:
            leaves.setdefault(topology.leaf_of.get(node, "no switch"), []).append(node)
        found = {leaf: tuple(there) for leaf, there in sorted(leaves.items(), key=lambda item: natural(item[0]))}
        why = [*_where(found, wanted, optimum, name), *_done(job, note), *_outcome(job, len(found))]
        return Explanation(job.argument, job.state, wanted, found, optimum, tuple(why))
    why = [f"waits, says Slurm, for: {job.reason or 'no reason given'}", *_done(job, note)]
    why += _room(job, use, wanted, optimum)
    sooner = _sooner(job, jobs, use, note, wanted, now) if job.state == "PENDING" else []
    return Explanation(job.argument, job.state, wanted, {}, optimum, tuple(why), tuple(sooner))


# ---- what is


def _where(leaves: Mapping[str, Sequence[str]], nodes: int, optimum: int, partition: str) -> list[str]:
    there = "; ".join(f"{leaf}: {hostlist.fold(names)}" for leaf, names in leaves.items())
    said = [f"{plural(nodes, 'node')} below {_switches(len(leaves))} ({there})"]
    if optimum:
        how = "that is the fewest" if len(leaves) <= optimum else f"the fewest is {optimum}"
        said.append(f"{how} that {plural(nodes, 'node')} of partition {partition} can have")
    return said


def _done(job: Job, note: Optional[Note]) -> list[str]:
    """What was asked of Slurm, and by whom."""
    said = []
    if job.required_switches:
        whose = (
            "AIStation"
            if note is not None and note.switches == job.required_switches
            else "the job's owner (or --ais-switch)"
        )
        wait = f" for up to {job.switch_wait_s} s" if job.switch_wait_s else ""
        said.append(f"{whose} asked for at most {_switches(job.required_switches)}, and to wait{wait} for so few")
    if note is not None and note.users_own:
        said.append("its own --exclude stands: AIStation adds no nodes to it")
    if note is not None and note.excluded:
        said.append(
            f"AIStation keeps it off {hostlist.fold(note.excluded)}: degraded fabric, or kept for larger jobs that wait"
        )
    others = sorted(set(job.excluded_nodes) - set(note.excluded if note is not None else ()), key=natural)
    if others:
        said.append(f"excluded by its owner or by the recovery: {hostlist.fold(others)}")
    if note is None and not job.required_switches:
        said.append("AIStation did nothing to its placement")
    return said


def _outcome(job: Job, leaves: int) -> list[str]:
    """Why it got more leaves than it was to have."""
    if not job.required_switches or leaves <= job.required_switches:
        return []
    waited = (job.start_time or 0) - (job.eligible_time or job.submit_time or 0)
    if job.restart_cnt:
        return ["it was restarted: Slurm counts the time of its first start as waited, so the limit no longer held"]
    return [f"the limit was given up: it had waited {waited} s, of {job.switch_wait_s} s that it was to wait"]


def _switches(count: int) -> str:
    return f"{count} leaf switch{'' if count == 1 else 'es'}"


def _free(job: Job, use: PartitionUse, *, all_nodes: bool = False) -> dict[str, int]:
    """Leaf -> idle nodes that the job may use; all_nodes: exclusions and grades aside."""
    fit = (Use.FREE, Use.DEGRADED) if all_nodes else (Use.FREE,)
    excluded = frozenset() if all_nodes else frozenset(job.excluded_nodes)
    free = {leaf.name: sum(1 for n in leaf.nodes if n.use in fit and n.name not in excluded) for leaf in use.leaves}
    return {leaf: count for leaf, count in free.items() if count}


def _room(job: Job, use: PartitionUse, wanted: int, optimum: int) -> list[str]:
    free = _free(job, use)
    total, largest = sum(free.values()), max(free.values(), default=0)
    least = f" (at best below {_switches(optimum)})" if optimum else ""
    said = [
        f"it wants {plural(wanted, 'node')}{least}; {total} that it may use are idle, below {_switches(len(free))}, "
        f"{largest} below the emptiest"
    ]
    gone = [n.name for leaf in use.leaves for n in leaf.nodes if n.use is Use.UNAVAILABLE]
    if gone:
        said.append(f"{plural(len(gone), 'node')} drained, down or reserved in the partition: {hostlist.fold(gone)}")
    return said


# ---- what would change it


def _sooner(
    job: Job, jobs: Sequence[Job], use: PartitionUse, note: Optional[Note], wanted: int, now: float
) -> list[str]:
    if job.priority == 0:
        return [f"it is held: scontrol release {job.argument}"]
    free = _free(job, use)
    total = sum(free.values())
    now_leaves = fewest_leaves(free.values(), wanted)
    said = []
    if total >= wanted and job.required_switches and now_leaves > job.required_switches:
        left = _patience_left(job, now)
        until = f"; it gives up waiting in {left:.0f} s" if left is not None else ""
        how = f"scontrol update JobId={job.argument} Switches={now_leaves}"
        said.append(f"{now_leaves} leaf switches instead of {job.required_switches} would do now ({how}){until}")
    if total < wanted:
        said += _more_room(job, use, note, wanted, total, now)
    if total >= wanted:
        said += _behind(job, queue(jobs), use, now)
    return said


def _behind(job: Job, waiting: Sequence[QueuedJob], use: PartitionUse, now: float) -> list[str]:
    """There is room, but not for this one."""
    of_partition = [one for one in waiting if one.partition == use.name]
    place = next((at for at, one in enumerate(of_partition) if one.job_id == job.job_id), len(of_partition))
    if not place:
        return []
    first = of_partition[0]
    said = (
        f"before it: {plural(place, 'job')} of its partition, first job {first.job_id} of {plural(first.nodes, 'node')}"
    )
    start = _enough_at(use, first.nodes, now)
    if start is not None and start > now:
        said += f", which can start in about {_minutes(start - now)}: with a time limit below that, backfill may start this one now"
    return [said]


def _more_room(job: Job, use: PartitionUse, note: Optional[Note], wanted: int, total: int, now: float) -> list[str]:
    said = []
    if total:
        said.append(f"{plural(total, 'node')} instead of {wanted} are idle now")
    off = sum(_free(job, use, all_nodes=True).values())
    if off >= wanted and note is not None and note.excluded:
        said.append(f"with the nodes that it is kept off there would be room now ({off} are idle), on worse links")
    ready = _enough_at(use, wanted, now)
    if ready is not None:
        said.append(
            f"by the time limits of running jobs, {plural(wanted, 'node')} are free in at most {_minutes(ready - now)}"
        )
    elif use.size < wanted:
        said.append(
            f"the partition has only {plural(use.size, 'node')} in service now that jobs of several nodes may use"
        )
    else:
        said.append("running jobs have no time limit: when nodes become free is not known")
    return said


def _enough_at(use: PartitionUse, wanted: int, now: float) -> Optional[float]:
    """When so many nodes are free at the latest; None where that is not known."""
    missing = wanted - use.free
    if missing <= 0:
        return now
    ends = sorted(end for leaf in use.leaves for end in leaf.ends)
    return max(now, ends[missing - 1]) if len(ends) >= missing else None


def _patience_left(job: Job, now: float) -> Optional[float]:
    """Seconds until Slurm drops the switch limit, counted from the time since which it could have started."""
    since = job.eligible_time or job.submit_time
    return max(0.0, since + job.switch_wait_s - now) if since and job.switch_wait_s else None


def _minutes(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
