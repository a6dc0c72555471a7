from __future__ import annotations

import json

import pytest

from aistation_slurm.findings import Action, Status
from aistation_slurm.slurm.client import Node
from aistation_slurm.sweep.answers import judge
from aistation_slurm.sweep.fanout import Answer
from aistation_slurm.sweep.gather import gather
from aistation_slurm.sweep.targets import Target

GPU1 = Target("gpu1", "host1", Node("gpu1", "IDLE"))
LOST = {"check": "gpu.lost", "status": "fail", "subject": "GPU3 0000:5d:00", "evidence": "Xid 79", "action": "reboot"}


def report(node: str = "gpu1", *findings: dict[str, object], **more: object) -> bytes:
    return json.dumps({"node": node, "status": "ok", "findings": list(findings), **more}).encode()


def test_a_report_counts_whatever_the_exit_code() -> None:
    found = judge(GPU1, Answer(1, report("gpu1", LOST, boot_id="b", news=1), b"aistation: a word"))
    assert (found.status, found.boot_id, len(found.drains)) == (Status.FAIL, "b", 1)
    assert found.findings[0].action is Action.REBOOT


@pytest.mark.parametrize("name", ["gpu1", "host1", "host1.cluster.example"])
def test_a_node_may_say_its_hosts_name(name: str) -> None:
    assert judge(GPU1, Answer(1, report(name, LOST))).status is Status.FAIL


@pytest.mark.parametrize(
    ("answer", "check", "words"),
    [
        (Answer(255, b"", b"banner\nssh: no route\n"), "sweep.unreachable", "ssh: no route"),
        (Answer(127, b"", b"sh: aistation: not found"), "sweep.unreachable", "not found"),
        (Answer(0, b"", b""), "sweep.unreachable", "no word"),
        (Answer(None, b"{", b"", lost="no answer within 9 s"), "sweep.no_answer", "no answer within 9 s"),
        (Answer(0, b"Welcome\n" + report("gpu1", LOST)), "sweep.garbled", "Welcome"),
        (Answer(0, report("gpu1", LOST)[:-9]), "sweep.garbled", "no report"),
        (Answer(0, b'{"node": "gpu1"}'), "sweep.garbled", "findings"),
        (Answer(0, report("gpu1", {**LOST, "status": "terrible"})), "sweep.garbled", "terrible"),
        (Answer(1, report("gpu2", LOST)), "sweep.garbled", "gpu2 answered in its place"),
        (Answer(3, report("gpu1")), "sweep.garbled", "empty"),
        (Answer(0, b"\xff\xfe\x00[[[["), "sweep.garbled", "no report"),
    ],
)
def test_what_cannot_be_believed_is_unknown_and_drains_nobody(answer: Answer, check: str, words: str) -> None:
    found = judge(GPU1, answer)
    assert (found.status, found.drains) == (Status.UNKNOWN, ())
    assert found.findings[0].check == check
    assert words in found.findings[0].evidence


def test_a_terminal_obeys_no_node() -> None:
    bad = {**LOST, "evidence": "\x1b]0;owned\x07\x1b[2Jred\nline", "subject": "\u202egpu", "action": "sing"}
    (finding,) = judge(GPU1, Answer(1, report("gpu1", bad))).findings
    assert finding.evidence == "]0;owned [2Jred line"
    assert finding.subject == "gpu"
    assert finding.action is Action.INSPECT


def test_what_is_the_same_is_one_row_with_a_folded_list() -> None:
    def node(name: str, *findings: dict[str, object]) -> object:
        return judge(Target(name, name), Answer(1, report(name, *findings)))

    warm = {"check": "gpu.throttle", "status": "warn", "evidence": "83 C", "subject": "GPU1"}
    answers = [node(f"gpu{i}", LOST, {**warm, "evidence": f"8{i} C"}) for i in (1, 2, 3)]
    answers += [node("gpu7", {**LOST, "evidence": "PCI reads 0xff"}), node("gpu8", {**warm, "status": "ok"})]
    rows = [(g.check, g.folded, g.evidence, g.differ) for g in gather(answers)]  # type: ignore[arg-type]
    assert rows == [
        ("gpu.lost", "gpu[1-3]", "Xid 79", False),
        ("gpu.lost", "gpu7", "PCI reads 0xff", False),
        ("gpu.throttle", "gpu[1-3]", "81 C", True),
    ]
