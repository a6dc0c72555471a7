"""Nodes that a job could take, as far as is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aistation_slurm.recovery.fitting import fitting, share_partition
from aistation_slurm.slurm.client import Job, Node

BASE = Node("gpu1", "IDLE", partitions=("gpu",), gres="gpu:8", features=("h100", "ib"))
JOB = Job(7, "PENDING", partition="gpu", excluded_nodes=("gpu9",))

CASES: list[tuple[str, Node, bool]] = [
    ("the same", BASE, True),
    ("busy", replace(BASE, state="ALLOCATED"), True),
    ("features in another order", replace(BASE, features=("ib", "h100")), True),
    ("reserved: the caller decides", replace(BASE, flags=frozenset({"RESERVED"})), True),
    ("drained", replace(BASE, flags=frozenset({"DRAIN"})), False),
    ("down", replace(BASE, state="DOWN"), False),
    ("other GRES", replace(BASE, gres="gpu:4"), False),
    ("other features", replace(BASE, features=("a100", "ib")), False),
    ("other partition", replace(BASE, partitions=("cpu",)), False),
    ("excluded by the job", replace(BASE, name="gpu9"), False),
    ("bad", replace(BASE, name="gpu8"), False),
]


@pytest.mark.parametrize(("node", "fits"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_fitting(node: Node, fits: bool) -> None:
    other = replace(node, name=node.name if node.name != "gpu1" else "gpu2")
    found = [n.name for n in fitting(JOB, ["gpu1"], {"gpu1": BASE, other.name: other}, ["gpu8"])]
    assert (other.name in found) is fits
    assert "gpu1" in found


def test_nothing_fits_where_the_former_nodes_are_gone() -> None:
    assert fitting(JOB, ["old1"], {"gpu1": BASE}) == []


@pytest.mark.parametrize(
    ("partition", "others", "fits"), [("a,b", ["b"], True), ("a", ["b"], False), ("", ["b"], True)]
)
def test_partitions(partition: str, others: list[str], fits: bool) -> None:
    assert share_partition(partition, others) is fits
