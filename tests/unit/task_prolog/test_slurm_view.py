"""What the start makes of Slurm's answers: real text of scontrol, sinfo and squeue 22.05.8, and hostile text in its fields."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aistation_slurm.checkpoints.run_note import read_run, run_note, with_run
from aistation_slurm.checkpoints.slurm_view import Deadline, JobRecord, SlurmView, hostlist_text
from tests.unit.task_prolog.slurm_tools import JOB, Tools

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 State=DOWN* ThreadsPerCore=1 Partitions=gpu  "
    "BootTime={boot} SlurmdStartTime=1796098691 LastBusyTime=1796098706 Reason=Not responding [slurm@1796098706]\n"
)


def test_a_job_record_is_read(tools: Tools) -> None:
    tools.answer("scontrol", JOB.replace("JobId=3", "JobId=2").replace("TaskId=1", "TaskId=2") + JOB)
    record = tools.view().job("3")
    assert record is not None
    assert record.argument == "2_1"
    assert record.states == {"RUNNING"}
    assert record.excluded_nodes == "gpu[1,3-5]"
    assert record.start == 1796098697
    assert record.comment == 'mine [ais: hi] text with = and "q"'
    assert record.tag == {"resume": "hf", "max": "3", "attempt": "1", "last": "infra"}
    assert tools.asked == ["scontrol show job 3"]


@pytest.mark.parametrize(
    ("ids", "argument"),
    [
        ("JobId=77", "77"),
        ("JobId=5 HetJobId=4 HetJobOffset=1", "4+1"),
        ("JobId=2 ArrayJobId=2 ArrayTaskId=4-9%2", "2"),  # tasks that were not split yet
        ("", ""),
    ],
)
def test_what_names_a_job_in_an_update(ids: str, argument: str) -> None:
    assert JobRecord(f"{ids} JobName=x\n   UserId=alice(1)\n").argument == argument


@pytest.mark.parametrize(
    ("line", "comment"),
    [
        ("", ""),
        ("   Comment=(null)\n", ""),
        ("   Comment=one\ntwo\n\n   three = 3\n", "one\ntwo\n\n   three = 3"),
        ("   Comment=a   StdErr=b\n", "a   StdErr=b"),
        ("   AdminComment=[ais last=user]\n", ""),
    ],
)
def test_a_comment_of_any_form_is_read_whole(line: str, comment: str) -> None:
    text = f"JobId=1 JobName=x\n   WorkDir=/\n{line}   StdErr=/x\n   Power=\n   \n\n"
    assert JobRecord(text).comment == comment


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("gpu[1-3,07],a.b-c_d", True),
        ("", False),
        ("-x", False),
        ("gpu1\nexport X=y", False),
        ("gpu1 gpu2", False),
        ("$(id)", False),
        ("gpu*", False),
        ("g" * 70_000, False),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_only_what_can_be_a_hostlist_goes_on(text: str, ok: bool) -> None:
    assert hostlist_text(text) == (text if ok else "")


def test_an_unknown_job_is_an_answer_and_a_dead_controller_is_none(tools: Tools) -> None:
    tools.command("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    view = tools.view()
    gone = view.job("6")
    assert gone is not None
    assert (gone.states, gone.argument) == (frozenset(), "")
    assert view.answers
    tools.command(
        "scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    )
    assert view.job("6") is None
    asked = len(tools.asked)
    assert view.job("6") is None
    assert view.silent_nodes("gpu1", 0) is None
    assert not view.set_comment("6", "x")
    assert len(tools.asked) == asked  # nobody is asked again


def test_a_controller_that_does_not_answer_costs_one_limit(tools: Tools) -> None:
    tools.command("scontrol", "exec sleep 300")
    tools.answer("squeue", "")
    view = tools.view()
    began = time.monotonic()
    assert view.job("6") is None
    assert view.jobs_of_directory("d", "7") == []
    assert view.silent_nodes("gpu1", 0) is None
    assert time.monotonic() - began < 20
    assert tools.asked == ["scontrol show job 6"]


def test_the_deadline_ends_the_questions(tools: Tools) -> None:
    assert tools.view(0).job("6") is None
    assert tools.asked == []


@pytest.mark.parametrize("job", ["", "6 7", "-d", "6\n7", "٣"])
def test_what_is_no_job_number_is_not_asked(tools: Tools, job: str) -> None:
    assert tools.view().job(job) is None
    assert tools.asked == []


def test_without_commands_or_configuration_nothing_is_asked(tools: Tools, tmp_path: Path) -> None:
    assert SlurmView({}, Deadline(30), directories=(str(tmp_path / "absent"),)).job("6") is None
    tools.env["SLURM_CONF"] = str(tmp_path / "absent.conf")
    assert tools.view().job("6") is None
    assert tools.asked == []


def test_the_commands_are_found_in_the_jobs_own_path(tools: Tools) -> None:
    tools.answer("scontrol", JOB)
    path = f"relative::/absent:{tools.root}"
    found = SlurmView({"AISTATION_JOB_PATH": path}, Deadline(30), directories=()).job("3")
    assert found is not None
    assert found.states == {"RUNNING"}


@pytest.mark.parametrize(
    ("states", "boot", "silent"),
    [
        ("idle gpu1\nmixed gpu2\n", 0, []),
        ("allocated gpu1\ndown* gpu2\n", 500, ["gpu2"]),
        ("idle* gpu2\n", 500, ["gpu2"]),
        ("down gpu2\n", 500, ["gpu2"]),  # slurmd answers, but a rank could not be killed
        ("draining* gpu2\n", 500, ["gpu2"]),
        ("down* gpu2\n", 2000, []),  # booted since
        ("down* gpu2\n", 1000, ["gpu2"]),  # in the second of the lease: not known to be later
        ("powered_down gpu2\nidle~ gpu3\npowering_down% gpu4\n", 500, []),
        ("drained gpu2\ndraining gpu1\nreserved gpu3\n", 500, []),
        ("down* gpu[2,5]\n", 500, ["gpu2", "gpu5"]),
        ("", 0, []),
        ("down*\nnonsense with many words\ndown* $(id)\n", 0, []),
    ],
)
def test_which_nodes_may_still_run_something(tools: Tools, states: str, boot: int, silent: list[str]) -> None:
    tools.answer("sinfo", states)
    tools.answer("scontrol", "".join(NODE.format(name=name, boot=boot) for name in (silent or ["gpu2"])))
    assert tools.view().silent_nodes("gpu[1-5]", 1000.0) == silent


def test_a_node_of_unknown_boot_time_may(tools: Tools) -> None:
    tools.answer("sinfo", "unknown* gpu2\n")
    tools.answer("scontrol", NODE.format(name="gpu2", boot="None"))
    assert tools.view().silent_nodes("gpu2", 1000.0) == ["gpu2"]


def test_nodes_that_are_no_hostlist_are_not_asked_about(tools: Tools) -> None:
    assert tools.view().silent_nodes("-x gpu1", 0) == []
    assert tools.asked == []


def test_other_jobs_of_the_directory(tools: Tools) -> None:
    lines = [
        "6 text [ais-run a=0 s=- v=fresh d=0badcafe t=1 n=gpu1]",
        "7 [ais-run a=0 s=- v=fresh d=0badcafe t=1 n=gpu1]",
        "8 [ais-run a=0 s=- v=fresh d=01234567]",
        "9 (null)",
        "",
        "a comment with a line end: d=0badcafe",
    ]
    tools.answer("squeue", "\n".join(lines))
    assert tools.view().jobs_of_directory("0badcafe", "7") == ["6"]


# ---- the text of the Comment


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "[ais-run a=2 s=1200 v=ok]"),
        ("mine", "mine [ais-run a=2 s=1200 v=ok]"),
        ("[ais-run a=1 s=- v=fresh d=1 t=2 n=g]", "[ais-run a=2 s=1200 v=ok]"),
        (
            "mine [ais: restart 1 of 3] [ais-run a=1 s=9 v=ok] more",
            "mine [ais: restart 1 of 3] more [ais-run a=2 s=1200 v=ok]",
        ),
        ("[ais-run a=1] x [ais-run b]", "x [ais-run a=2 s=1200 v=ok]"),
        ("[ais-runner x] [ais-run a=1", "[ais-runner x] [ais-run a=1 [ais-run a=2 s=1200 v=ok]"),
    ],
)
def test_our_segment_replaces_ours_alone(before: str, after: str) -> None:
    assert with_run(before, run_note(2, 1200, "ok")) == after


def test_the_segment_is_bounded_and_read_back() -> None:
    more = {"d": "0badcafe", "n": "gpu{1-3}", "long": "x" * 300, "blank": "a b", "bracket": "a]b", "empty": ""}
    note = run_note(10**9, None, "fresh", more)
    assert len(note) <= 256
    assert read_run(f"x {note} y") == {"a": "1000000000", "s": "-", "v": "fresh", "d": "0badcafe", "n": "gpu{1-3}"}


@pytest.mark.parametrize("text", ["", "[ais-run ]", "[ais-run", "[ais-run x y=]", "[ais resume=auto]", "[ais: a=1]"])
def test_a_segment_without_values(text: str) -> None:
    assert set(read_run(text)) <= {"y"}
