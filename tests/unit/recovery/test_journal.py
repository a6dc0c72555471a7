"""The journal on disk: permissions, network file systems, schema, locks, full disks, and events that come twice."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aistation_slurm.errors import JournalError, JournalLost
from aistation_slurm.recovery.attribution import Attempt
from aistation_slurm.recovery.events import JobEnded
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.recovery.local_disk import network_filesystem
from aistation_slurm.recovery.single import runs_here, take_place
from aistation_slurm.slurm.client import Job

ATTEMPT = Attempt(7, 10_000, ("gpu1", "gpu2"), gres=("gpu:8(IDX:0-7)", "gpu:8(IDX:0-7)"))
JOB = Job(job_id=7, state="RUNNING", restart_cnt=0, user_id=20001, name="train")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "var" / "journal.db", "one")


def ended(time: float, nodes: tuple[str, ...] = ("gpu1", "gpu2"), name: str = "7.1-1.ev") -> JobEnded:
    return JobEnded(Path(name), 7, time, nodes, exit_code=1, user_id=20001, max_restarts=4)


def restarts(journal: Journal) -> int:
    return sum(one.by_us for one in journal.past(7))


def test_nobody_else_can_read_it(journal: Journal) -> None:
    old = os.umask(0)
    try:
        made = Journal(journal.path.with_name("second.db"), "one")
    finally:
        os.umask(old)
    made.note(1.0, "x", "y")
    for path in journal.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700


def test_what_was_written_is_there_after_a_new_start(journal: Journal) -> None:
    assert journal.see_attempt(ATTEMPT, JOB)
    assert not journal.see_attempt(ATTEMPT, JOB)
    again = Journal(journal.path, "one")
    record = again.last(7)
    assert record is not None
    assert (record.attempt, record.state) == (ATTEMPT, "running")
    assert again.open_jobs() == {7}
    assert Journal(journal.path, "two").last(7) is None, "another cluster's job 7 is another job"


def test_an_event_ends_its_attempt_once(journal: Journal) -> None:
    journal.see_attempt(ATTEMPT, JOB)
    assert journal.end_attempt(ended(10_500))
    assert not journal.end_attempt(ended(10_500)), "the file was not removed before the watchdog was killed"
    record = journal.last(7)
    assert record is not None
    assert (record.state, record.attempt.ended, record.max_restarts) == ("ended", 10_500, 4)
    assert [row["kind"] for row in journal.incidents()] == ["started", "ended"]


def test_an_event_after_the_restart_is_of_an_attempt_too_short_to_be_seen(journal: Journal) -> None:
    journal.see_attempt(ATTEMPT, JOB)
    journal.end_attempt(ended(10_500))
    journal.mark(ATTEMPT, state="restarted")
    journal.end_attempt(ended(10_600, ("gpu3", "gpu4"), "7.2-2.ev"))
    record = journal.last(7)
    assert record is not None
    assert (record.state, record.attempt.nodes, record.attempt.seen) == ("ended", ("gpu3", "gpu4"), False)
    journal.end_attempt(ended(10_700, ("gpu3", "gpu4"), "7.3-3.ev"))
    assert len(journal.attempts(7)) == 3, "on the same nodes again"


def test_a_late_event_of_an_end_that_was_seen_already_starts_nothing(journal: Journal) -> None:
    journal.see_attempt(ATTEMPT, JOB)
    journal.mark(ATTEMPT, state="ended", ended=10_501.0)
    journal.mark(ATTEMPT, state="restarted")
    journal.end_attempt(ended(10_500))
    record = journal.last(7)
    assert record is not None
    assert (len(journal.attempts(7)), record.state) == (1, "restarted")


def test_an_event_of_an_older_attempt_does_not_end_the_new_one(journal: Journal) -> None:
    journal.see_attempt(ATTEMPT, JOB)
    newer = Attempt(7, 11_000, ("gpu3", "gpu4"))
    journal.see_attempt(newer, JOB)
    assert journal.end_attempt(ended(10_900))
    record = journal.last(7)
    assert record is not None
    assert (record.attempt, record.state) == (newer, "running")


def test_a_node_failure_names_fewer_nodes(journal: Journal) -> None:
    journal.see_attempt(ATTEMPT, JOB)
    journal.end_attempt(ended(10_500, ("gpu1",)))
    record = journal.last(7)
    assert record is not None
    assert (record.state, record.attempt.nodes) == ("ended", ("gpu1", "gpu2"))


def test_an_open_intent_is_taken_up_again_and_counts_once(journal: Journal) -> None:
    later = Attempt(7, 12_000, ())
    journal.see_attempt(ATTEMPT, JOB)
    journal.see_attempt(later, JOB)
    first = journal.intend(ATTEMPT, "start", 1.0, "why")
    assert journal.open_since(ATTEMPT, "start") == 1.0
    assert journal.intend(ATTEMPT, "start", 5.0, "why") == first
    assert journal.open_since(ATTEMPT, "start") == 5.0
    assert restarts(journal) == 0
    journal.done(first, ATTEMPT, 6.0, "done", "start: done", "restarted")
    assert (restarts(journal), journal.open_since(ATTEMPT, "start")) == (1, None)
    other = journal.intend(later, "release", 7.0, "why")
    journal.close_open(later, "release", 8.0, "done: seen in Slurm")
    assert restarts(journal) == 2
    assert other != first


def test_refusals_are_counted_per_attempt_and_action(journal: Journal) -> None:
    for time in (1.0, 2.0):
        journal.done(journal.intend(ATTEMPT, "start", time, ""), ATTEMPT, time, "refused: no", "x")
    assert journal.refusals(ATTEMPT, "start") == (2, 2.0)
    assert journal.refusals(ATTEMPT, "requeue") == (0, 0.0)


MOUNTS = """/dev/sda1 / ext4 rw 0 0
srv:/home /home nfs4 rw 0 0
tmpfs /home/local tmpfs rw 0 0
o2ib:/scratch /mnt/big\\040disk lustre rw 0 0
srv:/x /over ext4 rw 0 0
srv:/y /over nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/lib/aistation", ""), ("/home/slurm", "nfs4"), ("/home", "nfs4"), ("/homely", ""), ("/home/local/x", ""),
     ("/mnt/big disk/j", "lustre"), ("/over/x", "nfs")],
)  # fmt: skip
def test_network_file_systems(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert network_filesystem(Path(path), mounts) == kind


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aistation_slurm.recovery.journal_file.network_filesystem", lambda path: "nfs4")
    with pytest.raises(JournalError, match=r"lies on nfs4.*set watchdog\.journal to a local disk"):
        Journal(tmp_path / "j.db", "one")
    assert not (tmp_path / "j.db").exists()


def test_another_schema_is_not_touched(journal: Journal) -> None:
    with sqlite3.connect(journal.path) as db:
        db.execute("UPDATE meta SET value='99'")
    with pytest.raises(JournalError, match="schema 99, this version writes 3; move it aside"):
        Journal(journal.path, "one")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "j.db").write_text("not a database, " * 100)
    with pytest.raises(JournalError, match=r"j\.db: file is not a database"):
        Journal(tmp_path / "j.db", "one")
    assert (tmp_path / "j.db").read_text().startswith("not a database")


def test_a_locked_database_is_a_clear_error(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aistation_slurm.recovery.journal_file.BUSY_S", 0.1)
    second = Journal(journal.path, "one")
    other = sqlite3.connect(journal.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(JournalError, match="database is locked; check the disk's free space"):
        second.note(1.0, "x", "y")
    other.execute("ROLLBACK")
    second.note(1.0, "x", "y")
    other.close()
    assert len(second.incidents()) == 1


def test_a_full_disk_is_a_clear_error_and_loses_nothing(journal: Journal) -> None:
    journal.see_attempt(ATTEMPT, JOB)
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        for number in range(2000):
            journal.note(float(number), "x", "y" * 900)

    with pytest.raises(JournalError, match="database or disk is full"):
        fill()
    journal._db.execute("PRAGMA max_page_count=1000000")
    journal.note(9.0, "x", "after")
    assert journal.last(7) is not None
    assert journal.incidents()[-1]["text"] == "after"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be made"):
        Journal(tmp_path / "file" / "var" / "j.db", "one")


def test_reading_needs_a_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal yet"):
        Journal(tmp_path / "j.db", "", read_only=True)
    assert not (tmp_path / "j.db").exists()


def test_one_watchdog_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "var" / "j.db"
    assert not runs_here(path)
    place = take_place(path)
    assert runs_here(path)
    with pytest.raises(JournalError, match="another watchdog runs here"):
        take_place(path)
    os.close(place)
    assert not runs_here(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="switches to another user")
def test_a_journal_of_somebody_else_says_so_and_what_works_instead(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "journal.db"
    Journal(path, "c").close()
    code = (
        "import sys; from pathlib import Path; from aistation_slurm.recovery.journal import Journal; "
        "Journal(Path(sys.argv[1]), '', read_only=True)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        user=65534,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert "Permission denied; it is for root and the watchdog's user" in result.stderr


def test_a_journal_of_the_version_before_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    db = sqlite3.connect(path)
    text = (Path(__file__).parent / "schema2.sql").read_text()
    db.executescript(text)
    db.execute(
        "INSERT INTO attempts (cluster, job_id, start_time, seen, nodes, state) VALUES ('one', 7, 5, 1, 'gpu1', 'ended')"
    )
    db.commit()
    db.close()
    assert Journal(path, "one", read_only=True).attempts(7)[0]["nodes"] == "gpu1", "a reader leaves it as it is"
    made = Journal(path, "one")
    record = made.last(7)
    assert record is not None
    assert (record.attempt.nodes, record.bad) == (("gpu1",), ())
    made.exclude(7, ["gpu1"], 9.0)
    assert Journal(path, "one").exclusions(7) == {"gpu1": 9.0}


def test_a_journal_that_is_taken_away_is_noticed(journal: Journal) -> None:
    journal.require_present()
    moved = journal.path.with_name("moved.db")
    journal.path.rename(moved)
    with pytest.raises(JournalLost, match="removed or replaced while in use"):
        journal.require_present()
    Journal(journal.path, "one").close()
    with pytest.raises(JournalLost):
        journal.require_present()


def test_what_is_old_and_over_is_forgotten(journal: Journal) -> None:
    over, runs = Attempt(8, 100, ("gpu1",)), Attempt(9, 100, ("gpu2",))
    for attempt in (over, runs):
        journal.see_attempt(attempt, JOB)
        journal.intend(attempt, "start", 100.0, "why")
    journal.mark(over, state="done")
    journal.note(5_000.0, "note", "newer")
    assert journal.forget_before(1_000.0) > 0
    assert (journal.last(8), journal.actions(8)) == (None, [])
    assert journal.last(9) is not None, "an attempt that is not over stays, however old"
    assert [row["text"] for row in journal.incidents()] == ["newer"]
