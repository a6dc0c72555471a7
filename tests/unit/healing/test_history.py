"""The memory of attempts: durable, bounded, and never trusted where somebody else could have written it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aistation_slurm.errors import StateFileError
from aistation_slurm.healing import history
from aistation_slurm.healing.history import Attempt, Case, HealLock, History


def case(ident: str = "a1b2c3", *attempts: Attempt, **fields: object) -> Case:
    made = Case(ident, "gpu1", f"ais:gpu.xid GPU2 x [{ident}]", "gpu.xid", 1.0, subject="GPU2", attempts=[*attempts])
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def attempt(began: float = 100.0, counted: bool = True) -> Attempt:
    return Attempt("gpu_reset", "0000:3a:00.0", "b1", began, began + 1, "done", counted)


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    folder = str(tmp_path / "new/healing")
    kept = History(cases=[case("a1b2c3", attempt())])
    history.save(folder, "gpu1", kept)
    assert history.load(folder, "gpu1") == kept
    assert history.load(folder, "gpu2") == History(), "nodes that share a folder share nothing else"
    assert os.stat(f"{folder}/gpu1.json").st_mode & 0o777 == 0o600
    assert os.listdir(folder) == ["gpu1.json"]


def test_a_name_is_no_path(tmp_path: Path) -> None:
    history.save(str(tmp_path), "../../etc/x", History())
    assert os.listdir(tmp_path) == [".._.._etc_x.json"]


@pytest.mark.parametrize("text", ["", "{", '{"version": 1, "cases": [{}]}', '{"version": 2}', "[]", "\0" * 100])
def test_a_damaged_file_stops_healing(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu1.json").write_text(text, encoding="utf-8")
    with pytest.raises(StateFileError, match=r"gpu1\.json"):
        history.load(str(tmp_path), "gpu1")


def test_what_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "gpu1.json"
    history.save(str(tmp_path), "gpu1", History())
    path.chmod(0o666)
    with pytest.raises(StateFileError, match="root's alone"):
        history.load(str(tmp_path), "gpu1")
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(StateFileError):
        history.load(str(tmp_path), "gpu1")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StateFileError):
        history.load(str(tmp_path), "gpu1")


def test_a_folder_in_which_others_could_remove_it_is_not_used(tmp_path: Path) -> None:
    history.save(str(tmp_path), "gpu1", History())
    tmp_path.chmod(0o777)
    with pytest.raises(StateFileError, match="go-w"):
        history.load(str(tmp_path), "gpu1")


def test_a_full_disk_is_an_error_and_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.save(str(tmp_path), "gpu1", History(cases=[case()]))

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateFileError, match="No space left"):
        history.save(str(tmp_path), "gpu1", History())
    assert len(history.load(str(tmp_path), "gpu1").cases) == 1
    assert os.listdir(tmp_path) == ["gpu1.json"]


def test_old_closed_cases_go_and_open_ones_stay(tmp_path: Path) -> None:
    many = [case(f"{n:06x}", state="returned") for n in range(150)]
    many.insert(0, case("ffffff", state="inspect"))
    history.save(str(tmp_path), "gpu1", History(cases=many))
    kept = history.load(str(tmp_path), "gpu1").cases
    assert len(kept) == history.MOST_CASES
    assert kept[0].ident == "ffffff"
    assert kept[-1].ident == f"{149:06x}"


def test_attempts_count_over_drains_of_the_same_fault() -> None:
    now, week = 1000.0, 500.0
    returned = case("000001", attempt(100.0), attempt(900.0), state="returned")
    repaired = case("000002", attempt(900.0), state="left", repaired=True)
    by_slurm = case("000005", attempt(900.0), state="left")
    other_text = case("000004", attempt(5.0), state="left", subject="", repaired=True)
    other = case("000003", attempt(900.0), state="returned", subject="GPU5")
    own = case("000004", attempt(10.0), attempt(20.0, counted=False), state="judging")
    found = History(cases=[returned, repaired, by_slurm, other_text, other, own])
    assert found.spent(own, now, week) == 1 + 1 + 1 + 1, (
        "all of its id of any age, and the recent ones of the same fault"
    )
    assert found.spent(own, now, 0.0) == 2


def test_the_same_thing_is_said_once_and_the_story_is_bounded() -> None:
    one = case()
    assert [one.say(1.0, "waits"), one.say(2.0, "waits"), one.say(3.0, "acts")] == [True, False, True]
    for n in range(500):
        one.say(float(n), str(n))
    assert len(one.steps) == history.MOST_STEPS


def test_one_process_heals_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom aistation_slurm.healing.history import HealLock\n"
        f"with HealLock({str(tmp_path)!r}) as held:\n    print(held, flush=True)\n    time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "True"
        with HealLock(str(tmp_path)) as held:
            assert not held
    finally:
        other.kill()
        other.communicate(timeout=30)
    with HealLock(str(tmp_path)) as held:
        assert held


@pytest.mark.parametrize(
    ("mounts", "memory"),
    [
        ("/dev/sda / ext4 rw 0 0\n", False),
        ("rootfs / rootfs rw 0 0\n", True),
        ("/dev/sda / ext4 rw 0 0\ntmpfs /var tmpfs rw 0 0\n", True),
        ("tmpfs / tmpfs rw 0 0\nnfs:/x /var/lib/aistation nfs4 rw 0 0\n", False),
        ("/dev/sda / ext4 rw 0 0\ntmpfs /var/lib/aistation/healing-old tmpfs rw 0 0\n", False),
    ],
)
def test_a_folder_in_memory_is_known(tmp_path: Path, mounts: str, memory: bool) -> None:
    (tmp_path / "mounts").write_text(mounts, encoding="ascii")
    assert history.volatile("/var/lib/aistation/healing", tmp_path / "mounts") is memory
