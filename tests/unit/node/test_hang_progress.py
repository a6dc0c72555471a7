from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aistation_slurm.node import jobs
from aistation_slurm.node.jobs import JobRecord, from_environment
from aistation_slurm.probes import progress
from aistation_slurm.probes.progress import read_written, scan_folder, scan_outputs
from aistation_slurm.probes.user import Credentials
from tests.unit.node.hang_world import UID, USER, UserWorld


def write(path: Path, size: int, mtime: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, ns=(mtime, mtime))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for step in (100, 200):
        for rank in range(3):
            write(tmp_path / f"iter_{step}/mp_rank_{rank:02}/model.pt", 10, step)
    write(tmp_path / "latest.txt", 3, 200)
    return tmp_path


Change = Callable[[Path], object]
CHANGES: dict[str, Change] = {
    "a new folder": lambda t: (t / "iter_300").mkdir(),
    "a new shard": lambda t: write(t / "iter_200/mp_rank_03/model.pt", 10, 200),
    "a shard that grows": lambda t: write(t / "iter_200/mp_rank_02/model.pt", 11, 200),
    "a shard written again": lambda t: write(t / "iter_100/mp_rank_00/model.pt", 10, 10**18 * 4),
    "the tracker written again": lambda t: write(t / "latest.txt", 3, 10**18 * 4),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_counts_as_change(tree: Path, change: Change) -> None:
    before = scan_folder(str(tree))
    assert scan_folder(str(tree)) == before
    change(tree)
    assert scan_folder(str(tree)) != before


def test_files_of_our_own_are_no_progress(tree: Path) -> None:
    before = scan_folder(str(tree))
    for name in (".aistation-lease", ".aistation-attempts", "aistation-hang-7-attempt0.txt"):
        write(tree / name, 10, 10**18 * 4)
    assert scan_folder(str(tree)) == before


def test_the_newest_of_many_folders_is_entered(tmp_path: Path) -> None:
    for step in range(progress.MAX_FOLDERS + 20):
        write(tmp_path / f"step-{step}/weights", 1, 1)
        os.utime(tmp_path / f"step-{step}", ns=(1000 - step, 1000 - step))
    before = scan_folder(str(tmp_path))
    write(tmp_path / "step-0/weights", 2, 1)
    os.utime(tmp_path / "step-0", ns=(1000, 1000))
    assert scan_folder(str(tmp_path)) != before


def test_a_huge_directory_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_ENTRIES", 50)
    for number in range(80):
        (tmp_path / f"{number}.pt").touch()
    assert scan_folder(str(tmp_path)).entries == 50


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "loop").symlink_to(inside)
    (inside / "out").symlink_to(outside)
    before = scan_folder(str(inside))
    write(outside / "file", 10, 10**18 * 4)
    assert scan_folder(str(inside)) == before
    assert before.entries == 2


@pytest.mark.parametrize("path", ["", "/nonexistent/checkpoints"])
def test_no_directory_is_nothing_to_judge_by(path: str) -> None:
    assert scan_folder(path).state == "absent"


def test_outputs(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    assert scan_outputs([str(out), "/dev/null"]).state == "absent"
    out.touch()
    assert scan_outputs([str(out)]).state == "absent", "nothing was ever printed"
    write(out, 5, 100)
    first = scan_outputs([str(out), str(err)])
    assert (first.state, first.entries, first.size) == ("present", 1, 5)
    write(err, 1, 50)
    assert scan_outputs([str(out), str(err)]) != first


def test_where_the_processes_write_counts_as_output(tmp_path: Path) -> None:
    """``python train.py >train.log`` leaves Slurm's own file silent."""
    slurms, own = tmp_path / "slurm-7.out", tmp_path / "train.log"
    write(slurms, 5, 100)
    with own.open("ab") as log:
        process = subprocess.Popen(["sleep", "600"], stdout=log, stderr=subprocess.DEVNULL)
    try:
        before = scan_outputs([str(slurms)], pids=[process.pid])
        write(own, 7, 100)
        after = scan_outputs([str(slurms)], pids=[process.pid, process.pid])
    finally:
        process.kill()
        process.wait()
    assert (before.entries, before.size) == (1, 5), "an empty file is nothing to judge by"
    assert (after.entries, after.size) == (2, 12)
    assert scan_outputs([str(slurms)], pids=[process.pid]) == before, "a process that has ended is passed over"


# ---- as the user


@pytest.fixture
def world() -> Iterator[UserWorld]:
    made = UserWorld()
    yield made
    made.close()


def test_it_is_read_as_the_user(world: UserWorld) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    private = world.work / "private"
    private.mkdir(mode=0o700)
    write(private / "weights", 10, 100)
    written, _ = read_written([str(world.output)], str(private), USER, 20.0)
    assert (written.output.state, written.checkpoint.state) == ("present", "unknown")
    assert written.error == f"{private}: Permission denied"


def test_nothing_is_read_as_root(world: UserWorld) -> None:
    written, _ = read_written([str(world.output)], "", Credentials(0, 0), 20.0)
    assert (written.output.state, written.checkpoint.state) == ("unknown", "unknown")
    assert "PermissionError" in written.error


def test_a_fifo_does_not_block(world: UserWorld) -> None:
    if UID == 0:
        pytest.skip("needs a user other than root")
    os.mkfifo(world.work / "fifo")
    written, _ = read_written([str(world.work / "fifo")], str(world.work), USER, 20.0)
    assert (written.output.state, written.checkpoint.state) == ("absent", "present")


# ---- the gate's job record

ENV = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "20001", "SPANK_AISTATION_RESUME": "auto"}


@pytest.mark.parametrize(
    ("text", "minutes"), [("30", 30), ("10080", 10080), ("10081", 0), ("-1", 0), ("", 0), ("1e3", 0), ("٣", 0)]
)
def test_the_minutes_of_the_option(text: str, minutes: int) -> None:
    assert from_environment({**ENV, "SPANK_AISTATION_HANG_TIMEOUT": text}, 1.0).hang == minutes


@pytest.mark.parametrize(
    "path",
    ["/ckpt/run 1", "/ckpt/a=b", "/ckpt/\udcff", "/ckpt/ünï", "/ckpt/\u2028x", "/" + "x" * 4095],
    ids=["blank", "equals", "not utf-8", "letters", "line separator", "long"],
)
def test_the_checkpoint_directory_is_carried_as_it_is(tmp_path: Path, path: str) -> None:
    env = {**ENV, "SPANK_AISTATION_CKPT_DIR": path, "SPANK_AISTATION_HANG_TIMEOUT": "5"}
    jobs.write(str(tmp_path), from_environment(env, 1.0))
    found = jobs.read(str(tmp_path), 7)
    assert found is not None
    assert (found.ckpt_dir, found.hang, found.resume, found.uid) == (path, 5, "auto", 20001)


@pytest.mark.parametrize("path", ["relative", "/x\nresume=auto", "/x\x1cuid=0", "/x\x00", "/" + "x" * 4096])
def test_a_path_that_could_forge_a_line_is_dropped(tmp_path: Path, path: str) -> None:
    env = {**ENV, "SPANK_AISTATION_CKPT_DIR": path, "SPANK_AISTATION_RESUME": "none"}
    jobs.write(str(tmp_path), from_environment(env, 1.0))
    found = jobs.read(str(tmp_path), 7)
    assert found is not None
    assert (found.ckpt_dir, found.resume, found.uid) == ("", "", 20001)


def test_a_record_of_an_older_gate_is_read(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/7").write_text("job=7\nuid=20001\nrestart_count=0\ngpus=0,1\nresume=auto\ntime=1.000\n")
    found = jobs.read(str(tmp_path), 7)
    assert isinstance(found, JobRecord)
    assert (found.hang, found.ckpt_dir, found.gpus) == (0, "", frozenset({0, 1}))
