"""A stand-in for the module pyslurm 25.11, as far as pyslurm_worker uses it; copied to ``pyslurm.py`` by the tests.

Attribute names and forms are those of pyslurm's source, v25.11.2. ``FAKE_PYSLURM`` says how it misbehaves.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

__version__ = "25.11.2"
HOW = os.environ.get("FAKE_PYSLURM", "")

if HOW == "exit":  # what Slurm's library does without a readable slurm.conf
    os._exit(1)
if HOW == "older":
    __version__ = "24.11.0"


class RPCError(Exception):
    def __init__(self, errno, msg):
        super().__init__(msg)
        self.errno = errno


class _Record:
    """Attributes by name; what is not given is None, as in pyslurm."""

    layout = None

    def __init__(self, **given):
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.get(name)

    def get_resource_layout_per_node(self):
        return self.layout


class _BadText(_Record):
    @property
    def name(self):
        return b"\xc3(".decode("utf-8")


class Job(_Record):
    @staticmethod
    def load(job_id):
        _misbehave()
        if job_id == 4:
            return JOBS[2]  # slurm_load_job answers an array's first id with every task
        found = [job for job in JOBS if job.id == job_id]
        if not found:
            raise RPCError(2017, "Invalid job id specified")
        return found[0]


RUNNING = Job(
    id=1, state="RUNNING", state_reason="None", name="train é", user_id=20001, user_name="alice", partition="gpu",
    allocated_nodes="gpu[1-2]", start_time=1796091137, submit_time=1796091135, eligible_time=1796091135, end_time=1827627137,
    requeue_count=2, comment="mine", admin_comment="[ais resume=auto]", exit_code=0, exit_code_signal=0, priority=7,
    num_nodes=2, requested_tres=SimpleNamespace(node=SimpleNamespace(count=2)), time_limit=90, is_requeueable=True,
    is_batch_job=True, required_switches=1, standard_output="/shared/alice/slurm-1.out", is_cronjob=False, cluster="big",
    layout={
        "gpu1": {"cpu_ids": "0", "gres": {"gpu:a100": {"count": 8, "indexes": "0-7"}}, "memory": 0},
        "gpu2": {"cpu_ids": "0", "gres": {"gpu:a100": {"count": 3, "indexes": "0,3,5"}}, "memory": 0},
    },
)  # fmt: skip
BAD_TEXT = _BadText(
    id=2, state="PENDING", priority=0, state_reason="JobHeldUser", excluded_nodes="gpu[1,3]", cluster="big"
)
TASKS = [
    Job(id=3, state="FAILED", array_id=3, array_task_id=0, exit_code=0, exit_code_signal=11, time_limit="UNLIMITED"),
    Job(id=4, state="COMPLETING", array_id=3, array_task_id=1, heterogeneous_id=0, is_requeueable=False),
]
FOREIGN = Job(id=1, state="FAILED", cluster="other")
JOBS = [RUNNING, BAD_TEXT, *TASKS, FOREIGN]
NODES = [
    _Record(
        name="gpu1", hostname="gpu1", state="IDLE+DRAIN", reason="by hand", reason_user="root", reason_time=1796091137,
        boot_time=1796000000, slurmd_start_time=1796000100, partitions=["gpu"], comment="c", extra="e",
        configured_gres={"gpu:a100": 8, "nvme": 1},
    ),
    _Record(name="gpu2", state="DOWN*", configured_gres={}),
]  # fmt: skip


def _misbehave():
    if HOW == "hang":
        time.sleep(3600)
    if HOW == "crash":
        os.abort()
    if HOW == "down":
        raise RPCError(1800, "Unable to contact slurm controller (connect failure)")


class Jobs:
    @staticmethod
    def load():
        _misbehave()
        return SimpleNamespace(values=lambda: list(JOBS))


class Nodes:
    @staticmethod
    def load():
        _misbehave()
        return SimpleNamespace(values=lambda: list(NODES))


class slurmctld:
    class Config:
        @staticmethod
        def load():
            if HOW == "down at first":
                raise RPCError(1800, "Unable to contact slurm controller (connect failure)")
            sys.stderr.write("what the library says to a person\n")
            return SimpleNamespace(version="25.11.4", cluster_name="big")
