"""The start as a whole: what Slurm and the directory say, to what the job is given, what it is told and what is published."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from aistation_slurm.checkpoints import claim
from aistation_slurm.checkpoints.attempts import ATTEMPTS, read
from aistation_slurm.checkpoints.lease import LEASE, Busy
from aistation_slurm.checkpoints.startup import StartUp
from aistation_slurm.errors import CheckpointError
from tests.unit.task_prolog.slurm_tools import JOB, Tools
from tests.unit.task_prolog.test_start_up_answer import env, exports, notes, save, tear


def record(tag: str = "resume=hf", comment: str = "mine", states: str = "RUNNING") -> str:
    """Of job 77, as scontrol shows it."""
    text = JOB.replace("JobId=3 ArrayJobId=2 ArrayTaskId=1", "JobId=77").replace(
        "JobState=RUNNING", f"JobState={states}"
    )
    text = text.replace('mine [ais: hi] text with = and "q"\x20', comment)
    return text.replace("[ais resume=hf max=3 attempt=1 last=infra]", f"[ais {tag}]")


def begin(tools: Tools, job: dict[str, str]) -> StartUp:
    return StartUp(job, slurm=tools.view())


def published(tools: Tools) -> str:
    """The segment that was written last."""
    updates = [line for line in tools.asked if " update " in line]
    return updates[-1].partition("[ais-run ")[2].rstrip("]") if updates else ""


def run(tools: Tools, job: dict[str, str]) -> dict[str, str]:
    start = begin(tools, job)
    lines = start.answer()
    start.publish()
    return exports(lines)


def test_attempts_roll_back_one_checkpoint_after_the_other_and_never_to_step_0(tools: Tools, tmp_path: Path) -> None:
    tools.answer("scontrol", record())
    for step in (100, 200, 300):
        save(tmp_path, step)
    tear(tmp_path / "checkpoint-200")
    given = [run(tools, env(tmp_path, attempt))["RESUME_STEP"] for attempt in range(4)]
    assert given == ["300", "300", "100", "100"]
    assert published(tools) == "a=3 s=100 v=back"
    start = begin(tools, env(tmp_path, 4))
    with pytest.raises(CheckpointError, match=r"every valid checkpoint in .* rm .*aistation-attempts") as refused:
        start.answer()
    assert not isinstance(refused.value, Busy)
    start.publish()
    assert published(tools) == "a=4 s=- v=unusable"
    assert len(read(tmp_path)) == 4
    # what the message says does help
    (tmp_path / ATTEMPTS).unlink()
    assert run(tools, env(tmp_path, 5))["RESUME_STEP"] == "300"


def test_the_users_wish_to_start_in_any_case_takes_the_lease(tools: Tools, tmp_path: Path) -> None:
    tools.answer("scontrol", record())
    tear(save(tmp_path, 100))
    start = begin(tools, env(tmp_path, AISTATION_IF_UNREADABLE="start"))
    with pytest.raises(CheckpointError, match="none of them valid"):
        start.answer()
    start.publish()
    assert published(tools) == "a=0 s=- v=fresh"
    assert json.loads((tmp_path / LEASE).read_text(encoding="utf-8"))["job"] == "77"


def test_a_start_that_is_refused_leaves_the_directory_as_it_was(tools: Tools, tmp_path: Path) -> None:
    tools.answer("scontrol", record())
    tear(save(tmp_path, 100))
    with pytest.raises(CheckpointError):
        begin(tools, env(tmp_path)).answer()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-100"]


def test_other_jobs_attempts_count_for_nothing(tools: Tools, tmp_path: Path) -> None:
    tools.answer("scontrol", record())
    path = save(tmp_path, 100)
    theirs = [
        {"job": "78", "attempt": 0, "path": str(path)},
        {"job": "77", "cluster": "other", "attempt": 0, "path": str(path)},
        # of a job that had the same number before Slurm lost its state
        {"job": "77", "attempt": 9, "path": str(path)},
    ]
    lines = [json.dumps({**entry, "step": 100, "time": 1e12}) + "\n" for entry in theirs for _ in range(2)]
    (tmp_path / ATTEMPTS).write_text("".join(lines), encoding="utf-8")
    job = {**env(tmp_path, 2), "SLURM_CLUSTER_NAME": "here"}
    assert run(tools, job)["RESUME_STEP"] == "100"
    assert published(tools) == "a=2 s=100 v=ok"


def test_an_infrastructure_fault_is_remembered_with_the_attempt(tools: Tools, tmp_path: Path) -> None:
    for step in (100, 200):
        save(tmp_path, step)
    given = []
    for attempt, tag in enumerate(["", "attempt=1 last=infra", "attempt=2 last=user", "attempt=2 last=user"]):
        tools.answer("scontrol", record(f"resume=hf {tag}"))
        given.append(run(tools, env(tmp_path, attempt))["RESUME_STEP"])
    # of the attempts that 200 was given to, the first ended for the machines
    assert given == ["200", "200", "200", "100"]
    assert [entry["last"] for entry in read(tmp_path)] == ["", "infra", "user", ""]


def test_the_comment_is_written_for_this_job_alone_and_keeps_its_text(tools: Tools, tmp_path: Path) -> None:
    tools.answer("scontrol", JOB.replace("[ais: hi]", "[ais: hi] [ais-run a=0 s=- v=fresh]"))
    save(tmp_path, 100)
    run(tools, {**env(tmp_path, 1), "SLURM_JOB_ID": "3"})
    (update,) = [line for line in tools.asked if " update " in line]
    assert update == ('scontrol update JobId=2_1 Comment=mine [ais: hi] text with = and "q" [ais-run a=1 s=100 v=ok]')


@pytest.mark.parametrize(
    "answer", ["", "no record\n", record(comment="caf\\351")], ids=["nothing", "nonsense", "no UTF-8"]
)
def test_a_comment_that_cannot_be_kept_is_left_alone(tools: Tools, tmp_path: Path, answer: str) -> None:
    save(tmp_path, 100)
    tools.command("scontrol", f"printf '%b' '{answer}'")
    assert run(tools, env(tmp_path))["RESUME_STEP"] == "100"
    assert published(tools) == ""


def test_without_a_directory_there_is_nothing_to_publish(tools: Tools) -> None:
    tools.answer("scontrol", record())
    values = run(tools, {"SLURM_JOB_ID": "77", "SLURM_SPANK_AISTATION_RESUME": "auto"})
    assert values["EXCLUDED_NODES"] == "gpu[1,3-5]"
    assert published(tools) == ""


@pytest.mark.parametrize("command", ["exec sleep 300", "trap '' TERM; sleep 300 & wait"])
def test_a_slow_slurm_leaves_the_start_within_its_time(tools: Tools, tmp_path: Path, command: str) -> None:
    tools.command("scontrol", command)
    save(tmp_path, 100)
    (tmp_path / LEASE).write_text(json.dumps({"job": "6", "nodes": "gpu9"}), encoding="utf-8")
    began = time.monotonic()
    start = begin(tools, env(tmp_path))
    assert "warning: Slurm did not say whether attempt 0 of job 6 has ended" in notes(start.answer())
    start.publish()
    assert time.monotonic() - began < 20
    assert len(tools.asked) == 1


def jobs(tools: Tools, states: str) -> None:
    """Job 6 in these states beside our job 77, which runs."""
    gone = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    other = record(states=states).replace("JobId=77", "JobId=6")
    tools.answer("other", other)
    tools.answer("ours", record())
    body = f'case "$*" in "show job 6") {f"exec {tools.root}/other" if states else gone} ;; *) exec {tools.root}/ours ;; esac'
    tools.command("scontrol", body)


@pytest.mark.parametrize(
    ("states", "busy"),
    [
        ("RUNNING", True),
        ("SUSPENDED", True),
        ("CONFIGURING", True),
        ("RUNNING+RESIZING", True),
        ("PENDING", False),
        ("COMPLETED", False),
        ("NODE_FAIL", False),
        ("", False),
    ],
)
def test_a_directory_held_by_another_job(tools: Tools, tmp_path: Path, states: str, busy: bool) -> None:
    save(tmp_path, 100)
    jobs(tools, states)
    tools.answer("sinfo", "idle gpu9\n")
    (tmp_path / LEASE).write_text(json.dumps({"job": "6", "nodes": "gpu9"}), encoding="utf-8")
    start = begin(tools, env(tmp_path))
    if busy:
        with pytest.raises(Busy, match="job 6 runs on it"):
            start.answer()
    else:
        assert exports(start.answer())["RESUME_STEP"] == "100"
    start.publish()
    assert published(tools) == ("a=0 s=- v=busy" if busy else "a=0 s=100 v=ok")
    assert json.loads((tmp_path / LEASE).read_text(encoding="utf-8"))["job"] == ("6" if busy else "77")
    assert (tmp_path / ATTEMPTS).exists() != busy


@pytest.mark.parametrize("writes", [True, False])
def test_a_directory_of_a_job_that_is_only_just_ending(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    save(tmp_path, 100)
    jobs(tools, "COMPLETING")
    (tmp_path / LEASE).write_text(json.dumps({"job": "6", "nodes": "gpu9"}), encoding="utf-8")
    monkeypatch.setattr(claim, "WATCH_S", 1.0)
    monkeypatch.setattr(claim.lease, "watch", lambda *_: str(tmp_path / "checkpoint-200") if writes else "")
    start = begin(tools, env(tmp_path))
    if writes:
        with pytest.raises(Busy, match="checkpoint-200 changed"):
            start.answer()
    else:
        assert "only just ending; nothing was written" in notes(start.answer())


def test_the_first_attempts_nodes_are_known_from_the_comment(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first start leaves an empty directory empty, so that it can have no lease."""
    tools.answer("scontrol", record())
    run(tools, env(tmp_path))
    said = published(tools)
    assert said.startswith("a=0 s=- v=fresh d=")
    assert said.endswith(" n=gpu{1-2}")
    assert list(tmp_path.iterdir()) == []
    save(tmp_path, 100)
    tools.answer("scontrol", record(comment=f"[ais-run {said}]") + "NodeName=gpu2 State=DOWN* BootTime=5 x=y\n")
    tools.answer("sinfo", "down* gpu2\nidle gpu1\n")
    monkeypatch.setattr(claim.lease, "watch", lambda *_: "")
    job = {**env(tmp_path, 1), "SLURM_JOB_NODELIST": "gpu[3-4]"}
    start = begin(tools, job)
    assert "attempt 0 of job 77 ran on gpu2, which Slurm cannot reach" in notes(start.answer())
    assert read(tmp_path)[-1]["last"] == "infra"  # Slurm lost its node, whatever the tag says
    assert "sinfo --noheader --all --nodes=gpu[1-2] --format=%T %N" in tools.asked
    # its comment was about another directory: nothing is known then
    elsewhere = {**job, "SLURM_SPANK_AISTATION_CKPT_DIR": str(tmp_path / "other")}
    assert "gpu2" not in notes(begin(tools, elsewhere).answer())


def test_a_directory_that_cannot_be_written_starts_with_a_warning(tools: Tools, tmp_path: Path) -> None:
    tools.answer("scontrol", record())
    save(tmp_path, 100)
    (tmp_path / LEASE).mkdir()
    start = begin(tools, env(tmp_path))
    assert "warning: no lease can be written" in notes(start.answer())
    start.publish()
    assert published(tools).startswith("a=0 s=100 v=ok d=")


def test_lease_and_attempts_of_a_directory_that_was_emptied_do_not_stay_behind(tools: Tools, tmp_path: Path) -> None:
    tools.answer("scontrol", record())
    (tmp_path / LEASE).write_text(json.dumps({"job": "77", "attempt": 0, "nodes": "gpu[1-2]"}), encoding="utf-8")
    assert run(tools, env(tmp_path, 1))["RESUME_STEP"] == ""
    assert json.loads((tmp_path / LEASE).read_text(encoding="utf-8"))["attempt"] == 1


def test_a_link_to_the_directory_is_the_same_directory(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "link").symlink_to("ckpt")
    os.makedirs(tmp_path / "other")
    digests = [StartUp(env(tmp_path / name), slurm=tools.view(0)).start.digest for name in ("ckpt", "link", "other")]
    assert digests[0] == digests[1] != digests[2]
