"""Two writers never share a checkpoint directory, and doubt starts the job."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from aistation_slurm.checkpoints import lease
from aistation_slurm.checkpoints.lease import LEASE, Holder, Lease, judge, read, take, watch


def held(job: str = "6", attempt: int = 3, **more: Any) -> Lease:
    return Lease(job, "c1", attempt, "gpu[1-2]", {"gpu1": "b00t"}, 1000.0)._replace(**more)


@pytest.mark.parametrize(
    ("holder", "silent", "what", "says"),
    [
        (Holder.OURS, [], "take", ""),
        (Holder.GONE, [], "take", ""),
        (Holder.RUNNING, [], "busy", "job 6 runs on it (attempt 3, gpu[1-2])"),
        (Holder.RUNNING, ["gpu2"], "busy", "job 6 runs"),
        (Holder.ENDING, [], "watch", "only just ending"),
        (Holder.ELSEWHERE, [], "watch", "cluster c1"),
        (Holder.HIDDEN, [], "watch", "another user's"),
        (Holder.OURS, ["gpu2"], "watch", "attempt 3 of job 6 ran on gpu2, which Slurm cannot reach"),
        (Holder.GONE, [f"gpu{i}" for i in range(9)], "watch", "gpu3 and 5 more"),
        (Holder.OURS, None, "take", "warning: Slurm did not say"),
        (Holder.UNKNOWN, [], "take", "warning: Slurm did not say"),
        (Holder.UNKNOWN, ["gpu2"], "watch", "gpu2"),
    ],
)
def test_what_a_lease_means(holder: str, silent: Optional[list[str]], what: str, says: str) -> None:
    step = judge(held(), holder, silent)
    assert step.what == what
    assert says in step.why
    assert bool(step.why) == bool(says)


def test_a_lease_is_read_as_it_was_taken(tmp_path: Path) -> None:
    assert take(tmp_path, held(), None)
    found = read(tmp_path)
    assert found is not None
    assert (found.lease, found.owner) == (held(), os.geteuid())
    assert (tmp_path / LEASE).stat().st_mode & 0o777 == 0o644
    assert take(tmp_path, held("7", 0), found)
    after = read(tmp_path)
    assert after is not None
    assert after.lease == held("7", 0)
    assert [path.name for path in tmp_path.iterdir()] == [LEASE]


def test_a_lease_taken_by_another_meanwhile_is_left(tmp_path: Path) -> None:
    assert take(tmp_path, held("6"), None)
    seen = read(tmp_path)
    assert take(tmp_path, held("7"), seen)
    assert not take(tmp_path, held("8"), seen)
    assert not take(tmp_path, held("8"), None)
    found = read(tmp_path)
    assert found is not None
    assert found.lease.job == "7"
    assert [path.name for path in tmp_path.iterdir()] == [LEASE]


@pytest.mark.parametrize("old", ["an old lease", "no lease", "something else"])
def test_of_many_that_start_at_once_one_takes_it(tmp_path: Path, old: str, turns: None) -> None:
    if old == "an old lease":
        assert take(tmp_path, held("6"), None)
    if old == "something else":
        (tmp_path / LEASE).write_text("?")
    seen = read(tmp_path)
    gate = threading.Barrier(8)
    won: list[str] = []

    def one(job: str) -> None:
        gate.wait(60)
        if take(tmp_path, held(job), seen):
            won.append(job)

    threads = [threading.Thread(target=one, args=(str(job),)) for job in range(100, 108)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = read(tmp_path)
    assert found is not None
    assert won == [found.lease.job]
    assert [path.name for path in tmp_path.iterdir()] == [LEASE]


@pytest.fixture
def turns() -> Iterator[None]:
    """Threads that take turns at every step, as processes on many nodes do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_one_that_died_while_it_took_the_lease_holds_nobody_up_for_long(tmp_path: Path) -> None:
    assert take(tmp_path, held("6"), None)
    seen = read(tmp_path)
    assert seen is not None
    claim = tmp_path / f"{LEASE}.{seen.inode}"
    claim.write_bytes(b"")
    assert not take(tmp_path, held("7"), seen)
    os.utime(claim, (1.0, 1.0))
    assert not take(tmp_path, held("7"), seen)
    assert take(tmp_path, held("7"), seen)
    assert [path.name for path in tmp_path.iterdir()] == [LEASE]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert take(tmp_path, held("6"), None)
    assert take(tmp_path, held("7"), read(tmp_path))
    found = read(tmp_path)
    assert found is not None
    assert found.lease.job == "7"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"job": 6}',
        b'{"job": "6; rm"}',
        b'{"job": "6", "attempt": 1e300}',
        b'{"job": "6"' + b" " * 300_000 + b"}",
    ],
    ids=lambda content: repr(content[:30]),
)
def test_what_is_no_lease_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LEASE).write_bytes(content)
    assert read(tmp_path) is None
    assert take(tmp_path, held(), None)
    assert read(tmp_path) is not None


def test_values_of_other_types_count_as_not_known(tmp_path: Path) -> None:
    strange = {"job": "6", "cluster": 5, "attempt": "x", "nodes": ["gpu1"], "boot": 7, "time": None}
    (tmp_path / LEASE).write_text(json.dumps(strange), encoding="utf-8")
    found = read(tmp_path)
    assert found is not None
    assert found.lease == Lease("6", "", 0, "", {}, 0.0)


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_something_else_under_the_name_is_replaced_and_never_followed(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    target.write_text(json.dumps(held()._asdict()), encoding="utf-8")
    if kind == "link":
        (tmp_path / LEASE).symlink_to(target)
    else:
        os.mkfifo(tmp_path / LEASE)
    before = target.read_bytes()
    assert read(tmp_path) is None
    assert take(tmp_path, held("7"), None)
    assert target.read_bytes() == before
    found = read(tmp_path)
    assert found is not None
    assert found.lease.job == "7"


def test_a_folder_under_the_name_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / LEASE).mkdir()
    with pytest.raises(OSError, match="directory"):
        take(tmp_path, held(), None)
    assert [path.name for path in tmp_path.iterdir()] == [LEASE]


def change(directory: Path, how: str) -> None:
    if how == "a new file":
        (directory / "checkpoint-2").mkdir()
    elif how == "a file that grows":
        with (directory / "checkpoint-1/shards/rank_0").open("a", encoding="utf-8") as file:
            file.write("more")
    elif how == "a file removed":
        (directory / "checkpoint-1/shards/rank_0").unlink()
    else:
        (directory / LEASE).write_text("ours", encoding="utf-8")


@pytest.mark.parametrize(
    ("how", "seen"), [("a new file", True), ("a file that grows", True), ("a file removed", True), ("our own", False)]
)
def test_a_writer_is_seen(tmp_path: Path, how: str, seen: bool) -> None:
    (tmp_path / "checkpoint-1/shards").mkdir(parents=True)
    (tmp_path / "checkpoint-1/shards/rank_0").write_text("x", encoding="utf-8")
    (tmp_path / "loop").symlink_to(tmp_path)
    timer = threading.Timer(0.3, change, (tmp_path, how))
    timer.start()
    changed = watch(tmp_path, 60 if seen else 1.0, pause=0.05)
    timer.join(60)
    assert bool(changed) == seen
    assert changed.startswith(str(tmp_path) if seen else "")


def test_watching_a_large_tree_or_nothing_is_bounded(tmp_path: Path) -> None:
    for step in range(700):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert len(lease._signs(tmp_path)) <= 512
    assert watch(tmp_path / "absent", 0.0) == ""
