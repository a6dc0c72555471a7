"""A node's Comment, as recorded from scontrol 22.05 and in the order of fields that 26.05 prints."""

from __future__ import annotations

import pytest

from aistation_slurm.slurm import tags
from aistation_slurm.slurm.node_comment import shown_comment
from aistation_slurm.slurm.record import nodes_from_text

HEAD = (
    "NodeName=gpu1 Arch=x86_64 CoresPerSocket=1 \n   CPUAlloc=0 CPUEfctv=32 CPUTot=32 CPULoad=1.10\n   Gres=gpu:8\n"
    "   NodeAddr=10.0.0.1 NodeHostName=rack1-host3 Version=22.05.8\n"
    "   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
)
REASON = "   Reason=memory test Comment=none [root@2026-12-01T04:16:07]\n"
LATER = "   Extra=site data\n   InstanceId=i-1 InstanceType=p5\n   ReservationName=maint\n"

COMMENTS = [
    "rack 12",
    "rack 'q' \"dq\" [ais refused=1@2]",
    "site text State=DRAIN Reason=x rack 12",
    "first line\nReason=foo\n\nlast line",
    "one\n two = 2",
    "Überhitzt",
]


@pytest.mark.parametrize("after", ["\n\n", LATER + "\n"], ids=["22.05", "26.05"])
@pytest.mark.parametrize("comment", COMMENTS)
def test_a_comment_is_read_as_it_was_written(comment: str, after: str) -> None:
    shown = f"{HEAD}{REASON}   Comment={comment}\n{after}"
    assert shown_comment(shown) == comment
    (node,) = nodes_from_text(shown)
    assert (node.comment, node.reason, node.drained) == (comment, "memory test Comment=none", True)
    assert node.hostname == "rack1-host3"


@pytest.mark.parametrize("shown", [HEAD + REASON + "\n\n", HEAD + "   Comment=(null)\n\n", "", "no such node"])
def test_no_comment_is_none(shown: str) -> None:
    assert shown_comment(shown) == ""


def test_comments_of_several_nodes_are_kept_apart() -> None:
    shown = f"{HEAD}   Comment=one\n\nmore\n\n{HEAD.replace('gpu1', 'gpu2')}   Comment=two\n\n"
    assert [(node.name, node.comment) for node in nodes_from_text(shown)] == [("gpu1", "one\n\nmore"), ("gpu2", "two")]


def test_refusals_are_added_without_touching_the_sites_text() -> None:
    assert tags.comment_with_refusal("", 7, 100) == "[ais refused=7@100]"
    first = tags.comment_with_refusal("rack 12\nrow 3", 7, 100)
    assert first == "rack 12\nrow 3 [ais refused=7@100]"
    second = tags.comment_with_refusal(first + " bob", 8, 101)
    assert second == "rack 12\nrow 3 [ais refused=7@100,8@101] bob"
    assert tags.refusals_of(second) == ((7, 100), (8, 101))


def test_the_newest_eight_refusals_are_kept_each_job_once() -> None:
    comment = ""
    for job_id in [1, 2, 3, 4, 5, 6, 7, 8, 9, 2]:
        comment = tags.comment_with_refusal(comment, job_id, 1000 + job_id)
    assert [job for job, _ in tags.refusals_of(comment)] == [3, 4, 5, 6, 7, 8, 9, 2]


def test_the_largest_refusals_that_slurm_can_name_are_read_back() -> None:
    comment = ""
    for number in range(8):
        comment = tags.comment_with_refusal(comment, 4294967294 - number, 4102444800)
    assert len(tags.refusals_of(comment)) == 8
