"""Reservations: what scontrol prints, and which commands change them."""

from __future__ import annotations

from datetime import datetime

import pytest

from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm.client import Reservation
from aistation_slurm.slurm.decode import jobs_from_json, nodes_from_json
from aistation_slurm.slurm.record import job_from_text, node_from_text
from aistation_slurm.slurm.tags import tag_without
from tests.unit.slurm.replies import backend

# printed by 22.05.8 on the test cluster
TWO = """ReservationName=ais-spares StartTime=2026-12-01T04:27:11 EndTime=2027-12-01T04:27:11 Duration=365-00:00:00
   Nodes=gpu[3-4] NodeCnt=2 CoreCnt=64 Features=(null) PartitionName=(null) Flags=IGNORE_JOBS,SPEC_NODES
   TRES=cpu=64
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a
   MaxStartDelay=(null)

ReservationName=ais-6 StartTime=2026-12-01T04:27:12 EndTime=2026-12-01T04:32:12 Duration=00:05:00
   Nodes=gpu2 NodeCnt=1 CoreCnt=64 Features=(null) PartitionName=(null) Flags=FLEX,SPEC_NODES,PURGE_COMP=00:01:00
   TRES=cpu=64
   Users=alice Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a
   MaxStartDelay=(null)
"""


def test_every_reservation_is_read() -> None:
    slurm, _ = backend({"scontrol show reservation": TWO})
    spares, front = slurm.reservations()
    assert (spares.name, spares.nodes, spares.users) == ("ais-spares", ("gpu3", "gpu4"), ("root",))
    assert front == Reservation(
        "ais-6",
        ("gpu2",),
        int(datetime(2026, 12, 1, 4, 27, 12).timestamp()),
        int(datetime(2026, 12, 1, 4, 32, 12).timestamp()),
        frozenset({"FLEX", "SPEC_NODES", "PURGE_COMP=00:01:00"}),
        ("alice",),
    )


def test_none_has_to_be_said() -> None:
    slurm, _ = backend({"scontrol show reservation": "No reservations in the system\n"})
    assert slurm.reservations() == []
    slurm, _ = backend({"scontrol show reservation": ""})
    with pytest.raises(SlurmUnavailable, match="did not say"):
        slurm.reservations()


def test_the_commands() -> None:
    slurm, replies = backend({"scontrol": ""})
    slurm.create_reservation("ais-7", Nodes="gpu1", Duration="5")
    slurm.update_reservation("ais-7", Nodes="gpu[1-2]")
    slurm.delete_reservation("ais-7")
    assert replies.asked == [
        "scontrol create reservation ReservationName=ais-7 StartTime=now Nodes=gpu1 Duration=5",
        "scontrol update ReservationName=ais-7 Nodes=gpu[1-2]",
        "scontrol delete ReservationName=ais-7",
    ]


def test_an_empty_node_list_is_never_sent() -> None:
    slurm, replies = backend({"scontrol": ""})
    with pytest.raises(ValueError, match="choose nodes itself"):
        slurm.update_reservation("ais-spares", Nodes="")
    assert replies.asked == []


NICE = [
    ("null", 0),
    ("4294967246", -50),
    ("-50", -50),
    ("100", 100),
    ("4294967295", -1),
    ('{"set":true,"number":-7}', -7),
]


@pytest.mark.parametrize(("printed", "nice"), NICE)
def test_a_jobs_reservation_and_nice(printed: str, nice: int) -> None:
    shape = '"tasks": 8, "tasks_per_node": 2, "cpus_per_task": 3'
    row = f'{{"job_id": 7, "job_state": "PENDING", "resv_name": "ais-7", "nice": {printed}, {shape}}}'
    (job,) = jobs_from_json(f'{{"jobs": [{row}]}}')
    assert (job.reservation, job.nice) == ("ais-7", nice)
    assert (job.tasks, job.tasks_per_node, job.cpus_per_task) == (8, 2, 3)


def test_the_same_from_text() -> None:
    text = "JobId=7 JobName=x\n   Priority=9 Nice=-50 Account=(null)\n   JobState=PENDING Reason=None\n"
    text += "   NumNodes=4 NumCPUs=24 NumTasks=8 CPUs/Task=3 ReqB:S:C:T=0:0:*:*\n"
    text += "   Socks/Node=* NtasksPerN:B:S:C=2:0:*:* CoreSpec=*\n   Reservation=ais-7\n"
    job = job_from_text(text)
    assert (job.reservation, job.nice) == ("ais-7", -50)
    assert (job.tasks, job.tasks_per_node, job.cpus_per_task) == (8, 2, 3)


def test_a_nodes_features() -> None:
    (node,) = nodes_from_json('{"nodes": [{"name": "gpu1", "state": "idle", "active_features": "a,b"}]}')
    assert node.features == ("a", "b")
    assert node_from_text("NodeName=gpu1 Arch=x86_64\n   ActiveFeatures=a,b\n   State=IDLE\n").features == ("a", "b")


def test_a_tag_without_some_keys() -> None:
    assert tag_without("site [ais resume=auto nice=0:-5@9 max=3]", "nice") == "site [ais resume=auto max=3]"
