"""The kinds of trouble. Each function takes the campaign and this round's random numbers, and says whether it found a victim."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.cluster import gpu_lost, ib_down, xid
from tests.cluster.torture.history import Deed
from tests.cluster.torture.site import JOURNAL_DISK, SPOOL_DISK

if TYPE_CHECKING:
    from tests.cluster.torture.campaign import Campaign

SICK_MAX = 3
"""Nodes out of service at once: two of five stay, which is what the largest job needs."""


@dataclass(frozen=True)
class Trouble:
    """weight: how often, against the others."""

    name: str
    weight: int
    apply: Callable[[Campaign, Random], bool]


# ---- nodes ------------------------------------------------------------------------------------------------------------


def _victim(c: Campaign, rng: Random) -> str:
    """A node in service, nine times of ten one with a job; empty where too many are out already."""
    well = [name for name in c.operator.well() if c.site.is_on(name)]
    if len(c.operator.care) >= SICK_MAX or not well:
        return ""
    busy = [name for name in well if name in c.busy_nodes()]
    return rng.choice(busy if busy and rng.random() < 0.9 else well)


def _gpu_fault(c: Campaign, rng: Random, kind: str) -> bool:
    node = _victim(c, rng)
    if not node:
        return False
    gpu = rng.randrange(c.site.gpus)
    c.do(Deed(c.round, time.time(), kind, node, gpu=gpu, check=rf"ais:gpu\.\w+ GPU{gpu} "))
    (c.site.dir / f"shared/broken/{node}.{gpu}").touch()
    c.site.inject(node, gpu_lost(gpu) if kind == "GPU lost" else xid(gpu, 95))
    # a lost GPU comes back with a reboot only, one with a fatal Xid perhaps after a reset
    c.operator.take(node, "sick", reboot=kind == "GPU lost" or rng.random() < 0.5)
    return True


def lose_gpu(c: Campaign, rng: Random) -> bool:
    return _gpu_fault(c, rng, "GPU lost")


def fatal_xid(c: Campaign, rng: Random) -> bool:
    return _gpu_fault(c, rng, "fatal Xid")


def cut_power(c: Campaign, rng: Random) -> bool:
    node = _victim(c, rng)
    if not node:
        return False
    c.operator.cut_power(node, off_s=rng.choice((0.0, rng.uniform(1, 10), rng.uniform(20, 30))))
    return True


def lose_link(c: Campaign, rng: Random) -> bool:
    node = _victim(c, rng)
    if not node:
        return False
    port = f"mlx5_{rng.randrange(c.site.hcas)}"
    c.do(Deed(c.round, time.time(), "link down", node, check=rf"ais:fabric\.\w+ {port}\b"))
    c.site.inject(node, ib_down(port))
    c.operator.take(node, "sick", heals_at=time.time() + rng.uniform(8, 20))
    return True


def kill_agent(c: Campaign, rng: Random) -> bool:
    nodes = [name for name in c.site.names if c.site.is_on(name) and c.site.agent_runs(name)]
    node = rng.choice(nodes)
    c.site.kill_agent(node)
    deed = c.do(Deed(c.round, time.time(), "agent killed", node, harmless=True))
    c.later(rng.uniform(0.5, 10), lambda: c.restart_agent(node, deed))
    return True


# ---- the controller ---------------------------------------------------------------------------------------------------


def stop_slurmctld(c: Campaign, rng: Random) -> bool:
    if not c.site.controller_up:
        return False
    deed = c.do(Deed(c.round, time.time(), "slurmctld away"))
    c.site.stop_slurmctld(signal.SIGTERM)
    c.later(rng.choice((0.0, rng.uniform(1, 12))), lambda: c.restart_slurmctld(deed))
    return True


def kill_watchdog(c: Campaign, rng: Random) -> bool:
    if not c.watchdog_wanted:
        return False
    c.site.kill_watchdog()
    c.stay_dead(c.do(Deed(c.round, time.time(), "watchdog killed")), rng.uniform(0.0, 4.0))
    return True


def kill_watchdog_between_steps(c: Campaign, rng: Random) -> bool:
    """Several times, each at the n-th commit, command or file removal of its life."""
    deed = c.do(Deed(c.round, time.time(), "watchdog killed between steps"))
    c.burn(deed, [rng.randint(1, 60) for _ in range(rng.randint(1, 6))])
    return True


def _fill(c: Campaign, rng: Random, kind: str, folder: str) -> bool:
    if next(c.history.open(kind=kind), None) is not None:
        return False
    deed = c.do(Deed(c.round, time.time(), kind))
    c.site.fill(folder, leave_kib=rng.choice((0, 0, 8, 64)))

    def undo() -> None:
        c.site.empty(folder)
        deed.until = time.time()

    c.later(rng.uniform(3, 12), undo)
    return True


def fill_journal(c: Campaign, rng: Random) -> bool:
    return _fill(c, rng, "journal disk full", JOURNAL_DISK)


def fill_spool(c: Campaign, rng: Random) -> bool:
    return _fill(c, rng, "event spool full", SPOOL_DISK)


def jump_clock(c: Campaign, rng: Random) -> bool:
    if c.site.clock_offset_s:
        return False
    seconds = rng.choice((2, 30, 90, 3600)) * rng.choice((-1, 1))
    deed = c.do(Deed(c.round, time.time(), f"clock {seconds:+d} s"))
    c.site.set_clock(seconds)

    def undo() -> None:
        c.site.set_clock(0)
        deed.until = time.time()

    c.later(rng.uniform(5, 20), undo)
    return True


# ---- people -----------------------------------------------------------------------------------------------------------


def drain_as_admin(c: Campaign, rng: Random) -> bool:
    nodes = [name for name in c.site.names if name not in c.operator.admin]
    if not nodes or not c.site.controller_up or len(c.operator.admin) + len(c.operator.care) >= SICK_MAX:
        return False
    node = rng.choice(nodes)
    deed = Deed(c.round, time.time(), "admin drain", node, harmless=True)
    if not c.operator.drain(node, rng.choice(("memory test tomorrow", "ais is installed here", "RMA 4711 (fan)"))):
        return False
    c.do(deed)
    c.later(rng.uniform(5, 20), lambda: c.end_admin_drain(node, deed))
    return True


def cancel(c: Campaign, rng: Random) -> bool:
    job = c.some_job(rng, "RUNNING", "PENDING")
    if job is None:
        return False
    deed = Deed(c.round, time.time(), "cancel", job=job.job_id)
    done, _ = c.site.try_run("scancel", str(job.job_id), user=job.plan.user)
    if done:
        c.do(deed).until = time.time()
    return done


def requeue(c: Campaign, rng: Random) -> bool:
    job = c.some_job(rng, "RUNNING")
    if job is None:
        return False
    deed = Deed(c.round, time.time(), "requeue", job=job.job_id)
    done, _ = c.site.try_run("scontrol", "requeue", str(job.job_id), user=job.plan.user)
    if done:
        c.do(deed)
        for wait in (4.0, 9.0, 16.0):  # its user does not want to wait for two minutes
            c.later(wait, lambda: c.start_now(job))
    return done


def hold(c: Campaign, rng: Random) -> bool:
    """A hold keeps a job that gets requeued from starting, until its user releases it."""
    job = c.some_job(rng, "RUNNING", "PENDING")
    if job is None:
        return False
    deed = Deed(c.round, time.time(), "hold", job=job.job_id, harmless=True)
    done, _ = c.site.try_run("scontrol", "uhold", str(job.job_id), user=job.plan.user)
    if done:
        c.do(deed)
        c.later(rng.uniform(3, 15), lambda: c.release(job, deed))
    return done


TROUBLES = (
    Trouble("GPU lost", 6, lose_gpu),
    Trouble("fatal Xid", 3, fatal_xid),
    Trouble("power cut", 5, cut_power),
    Trouble("link down", 3, lose_link),
    Trouble("agent killed", 2, kill_agent),
    Trouble("slurmctld away", 3, stop_slurmctld),
    Trouble("watchdog killed", 2, kill_watchdog),
    Trouble("watchdog killed between steps", 4, kill_watchdog_between_steps),
    Trouble("journal disk full", 2, fill_journal),
    Trouble("event spool full", 2, fill_spool),
    Trouble("clock jump", 2, jump_clock),
    Trouble("admin drain", 2, drain_as_admin),
    Trouble("cancel", 1, cancel),
    Trouble("requeue", 1, requeue),
    Trouble("hold", 1, hold),
)
